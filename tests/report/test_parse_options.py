"""Parsers of option values: heads, lists of numbers and files of labels."""

from pathlib import Path

import pytest

import rheoscope as rs
from rheoscope.report.parse_options import parse_heads, parse_numbers, read_labels
from tests.report.cases import model


@pytest.mark.parametrize("text", ["a", "5.", "5.1,", "5-1", "5.1.2", "", "5", "L", "H3"])
def test_heads_that_cannot_be_parsed(text: str) -> None:
    with pytest.raises(
        rs.RheoscopeError, match=r"a head is typed as layer.head, got .*; type heads=\[\(5, 1\)"
    ) as error:
        parse_heads(text, model().view)
    assert error.value.on("shell").endswith("; type --heads 5.1,3.2, or --heads L5 for a layer")


def test_heads_and_layers_can_be_mixed() -> None:
    assert parse_heads("1.2, L3", model().view) == [(1, 2), (3, 0), (3, 1), (3, 2), (3, 3)]
    assert parse_heads(None, model().view) is None
    with pytest.raises(rs.RheoscopeError, match="there is no layer 9"):
        parse_heads("L9", model().view)


@pytest.mark.parametrize("text", ["", "1,", "a", "1;2"])
def test_numbers_that_cannot_be_parsed(text: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=r"--layers takes numbers separated by commas, got") as error:
        parse_numbers(text, int, "layers")
    assert error.value.on("shell").endswith("; type --layers 1,4")


def test_labels_are_read_from_a_file_under_its_name(tmp_path: Path) -> None:
    file = tmp_path / "class.tsv"
    file.write_text("keys\tthing\n\nare\ta verb\n")
    assert read_labels(str(file)) == {"class": {"keys": "thing", "are": "a verb"}}


@pytest.mark.parametrize("line", ["keys thing", "keys\t", "\tthing"])
def test_a_line_without_a_word_and_its_label_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "class.tsv"
    file.write_text(f"are\tverb\n{line}\n")
    with pytest.raises(rs.RheoscopeError, match=r"class.tsv, line 2: expected a word, a tab and its label, got '"):
        read_labels(str(file))
    with pytest.raises(rs.RheoscopeError, match="there is no file"):
        read_labels(str(tmp_path / "none.tsv"))

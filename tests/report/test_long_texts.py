"""What of a long text is analysed: all of it, its first tokens, or pieces of one length."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rheoscope as rs
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Lines, Table
from rheoscope.report.long_texts import split_into_windows, truncate_text
from rheoscope.report.windowed_report import merge_windows, window_blocks
from rheoscope.running.over_texts import over_texts, summarise_texts
from rheoscope.space.results import Results
from tests.report.cases import small

TEXT = "the keys to the cabinet are on the table in the old hall "
SEVEN = bytes(10 + letter % 7 for letter in range(256))
"""A token for every letter."""


class Letters:
    """A model whose tokens are letters, between a start and an end."""

    tokenizer = object()

    def __init__(self, context: int | None) -> None:
        self.view = type("View", (), {"context_length": context})
        self.read: list[int] = []

    def encode(self, text: str) -> list[int]:
        self.read.append(len(text))
        return [1, *text.encode("ascii").translate(SEVEN), 2]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(4, 150), st.integers(16, 60))
def test_pieces_are_the_text(letters: int, first: int, window: int) -> None:
    """Of one length, each between start and end, one after the other the beginning of the text; at most the rest is left out."""
    model: Any = Letters(context=60)
    said = "".join(chr(97 + at % 26) for at in range(letters))
    pieces = split_into_windows(model, said, first, window)
    inner = [one for ids in pieces.texts for one in ids.tolist()[1:-1]]
    whole = model.encode(said)[1:-1][: max(1, first - 2)]
    assert inner == whole[: len(inner)]
    assert len(inner) + pieces.n_dropped == len(whole)
    assert all((one[0], one[-1]) == (1, 2) for one in pieces.texts)
    assert len({len(one) for one in pieces.texts}) == 1
    assert len(pieces.texts[0]) == min(window, len(whole) + 2)
    assert pieces.n_dropped < window


def test_a_text_that_fits_is_left_as_it_was_typed() -> None:
    model: Any = Letters(context=60)
    assert split_into_windows(model, "a" * 58, None).texts == ["a" * 58]
    assert truncate_text(model, "abc", None) == "abc"
    assert truncate_text(model, "abcdef", 4).tolist() == model.encode("ab")


def test_a_text_that_does_not_is_refused_and_both_ways_are_named() -> None:
    model: Any = Letters(context=60)
    says = "the text has 102 tokens, the model reads at most 60; .*type --first 60"
    with pytest.raises(rs.RheoscopeError, match=f"{says}, or --window 60 to analyse all of it"):
        split_into_windows(model, "a" * 100, None)
    with pytest.raises(rs.RheoscopeError, match=f"{says}$"):
        truncate_text(model, "a" * 100, None)
    with pytest.raises(rs.RheoscopeError, match=r"at most 60 tokens, got --first 80; .*type --first 60"):
        split_into_windows(model, "a" * 100, 80)
    with pytest.raises(rs.RheoscopeError, match=r"a window has 16 to 60 tokens, got 61; .*type --window 60"):
        split_into_windows(model, "a" * 100, None, 61)
    with pytest.raises(
        rs.RheoscopeError, match=r"are 2,143 windows of 16, expected at most 1,000; .*type --window 16 --first 14000"
    ):
        split_into_windows(model, "a" * 30_002, None, 16)


def test_of_a_huge_text_only_the_beginning_is_tokenised() -> None:
    model: Any = Letters(context=60)
    with pytest.raises(rs.RheoscopeError, match="the text has 4 MB, more than 60 tokens"):
        split_into_windows(model, "a" * 4_000_000, None)
    assert len(split_into_windows(model, "a" * 4_000_000, 50).texts[0]) == 50
    assert max(model.read) < 2_000_000


def test_pieces_are_joined_as_texts_are() -> None:
    """From Datasets or from Traces: the same."""
    model = small()
    traces = [model.trace(one) for one in split_into_windows(model, TEXT * 6, None, 24).texts]
    assert len(traces) > 2
    found = summarise_texts([rs.trajectory(one) for one in traces])
    assert found.equals(over_texts(rs.trajectory, traces))
    assert torch.equal(traces[0].ids[:1], traces[1].ids[:1])  # each begins as the tokenizer begins a text


def test_of_pieces_one_analysis_is_told_and_the_others_in_brief() -> None:
    """Intervals stand in the files, and beside single numbers."""
    model = small()
    traces = [model.trace(one) for one in split_into_windows(model, TEXT * 4, None, 24).texts]
    answers = [
        Results(model.view, model.token_strings, None, {"agreement": rs.agreement(one, draws=2)}) for one in traces
    ]
    whole = merge_windows(answers)
    table, lines = window_blocks(answers, whole, "trajectory")
    assert isinstance(table, Table)
    assert [cell.text for cell in table.header] == ["measure", "overall", "overall_low", "overall_high", "split_half"]
    assert isinstance(lines, Lines)
    assert f"({format_number(float(whole.datasets['agreement'].mean_agreement_low))} to" in lines.lines[0]
    names = [
        cell.text
        for block in window_blocks(answers, whole, "agreement")
        if isinstance(block, Table)
        for cell in block.header
    ]
    assert {"layer", "agreement", "position_baseline"} <= set(names)
    assert not {"draw", "agreement_low", "agreement_high", "agreement_z", "agreement_q_value"} & set(names)

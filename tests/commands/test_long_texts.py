"""Long texts on the command line: what is refused, --first, and --window."""

import json
from pathlib import Path

import pytest

from rheoscope.report.long_texts import split_into_windows
from tests.commands.conftest import Run
from tests.report.cases import small

TEXT = "the keys to the cabinet are on the table in the old hall "


@pytest.fixture
def book(run: Run) -> Run:
    """The command in a directory with a long text, and with a file of 300 MB that takes no space on the disk."""
    Path("book.txt").write_text(TEXT * 400)
    with Path("huge.txt").open("wb") as file:
        file.write(TEXT.encode() * 400)
        file.truncate(300_000_000)
    return run


@pytest.mark.parametrize("command", [["flow"], ["covers"], ["analyse", "trajectory"]])
def test_a_text_that_is_too_long_is_refused_with_two_remedies(command: list[str], book: Run) -> None:
    outcome = book(*command, "--file", "book.txt")
    assert outcome.status == 1
    assert "the model reads at most 512; type --first 512, or --window 512" in outcome.err


def test_a_command_without_windows_advises_to_truncate(book: Run) -> None:
    assert book("reverse", "--file", "book.txt").err.rstrip().endswith("reads at most 512; type --first 512")


def test_a_file_of_300_megabytes_is_refused_unread_or_read_as_far_as_needed(book: Run) -> None:
    message = "huge.txt has 300 MB, more than any model reads at once; type --first 1000"
    assert message in book("flow", "--file", "huge.txt").err
    outcome = book("analyse", "trajectory", "--file", "huge.txt", "--first", "12")
    assert "\n12 tokens: " in outcome.out


def test_the_main_job_in_windows_reports_means_and_intervals(book: Run) -> None:
    window = ["--first", "50", "--window", "25"]
    outcome = book("flow", "--file", "book.txt", *window, "--fast", "--no-html", "--json", "a.json")
    assert outcome.status == 0, outcome.err
    assert "50 tokens in 2 " in outcome.words
    assert "readout" in outcome.words
    numbers = json.loads(Path("a.json").read_text())
    assert {"kappa", "kappa_low", "kappa_high"} <= set(numbers["transport"]["data_vars"])


def test_one_analysis_in_windows_covers_the_whole_text(book: Run) -> None:
    window = ["--first", "60", "--window", "20"]
    outcome = book("analyse", "trajectory", "--file", "book.txt", *window, "--json", "a.json")
    windows = split_into_windows(small(), TEXT * 400, 60, 20)
    assert f"in {len(windows.texts)} " in outcome.words
    assert json.loads(Path("a.json").read_text())["trajectory"]["attrs"]["texts"] == len(windows.texts)

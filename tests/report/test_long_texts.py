"""Long texts: the whole text, its first tokens, or windows of equal length."""

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
"""A token for every character."""


class Letters:
    """A model whose tokens are characters, with a start and an end token."""

    tokenizer = object()

    def __init__(self, context: int | None) -> None:
        self.view = type("View", (), {"context_length": context})
        self.read: list[int] = []

    def encode(self, text: str) -> list[int]:
        self.read.append(len(text))
        return [1, *text.encode("ascii").translate(SEVEN), 2]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(4, 150), st.integers(16, 60))
def test_windows_join_to_the_text(letters: int, first: int, window: int) -> None:
    """Windows have equal length, start and end with special tokens, and together are the start of the text."""
    model: Any = Letters(context=60)
    text = "".join(chr(97 + index % 26) for index in range(letters))
    windows = split_into_windows(model, text, first, window)
    inner = [item for ids in windows.texts for item in ids.tolist()[1:-1]]
    expected_ids = model.encode(text)[1:-1][: max(1, first - 2)]
    assert inner == expected_ids[: len(inner)]
    assert len(inner) + windows.n_dropped == len(expected_ids)
    assert all((item[0], item[-1]) == (1, 2) for item in windows.texts)
    assert len({len(item) for item in windows.texts}) == 1
    assert len(windows.texts[0]) == min(window, len(expected_ids) + 2)
    assert windows.n_dropped < window


def test_a_text_that_fits_is_unchanged() -> None:
    model: Any = Letters(context=60)
    assert split_into_windows(model, "a" * 58, None).texts == ["a" * 58]
    assert truncate_text(model, "abc", None) == "abc"
    assert truncate_text(model, "abcdef", 4).tolist() == model.encode("ab")


def test_a_text_that_is_too_long_is_refused_with_advice() -> None:
    model: Any = Letters(context=60)
    reason = "the text has 102 tokens, the model reads at most 60; .*type --first 60"
    with pytest.raises(rs.RheoscopeError, match=f"{reason}, or --window 60 to analyse all of it"):
        split_into_windows(model, "a" * 100, None)
    with pytest.raises(rs.RheoscopeError, match=f"{reason}$"):
        truncate_text(model, "a" * 100, None)
    with pytest.raises(rs.RheoscopeError, match=r"at most 60 tokens, got --first 80; .*type --first 60"):
        split_into_windows(model, "a" * 100, 80)
    with pytest.raises(rs.RheoscopeError, match=r"a window has 16 to 60 tokens, got 61; .*type --window 60"):
        split_into_windows(model, "a" * 100, None, 61)
    with pytest.raises(
        rs.RheoscopeError, match=r"are 2,143 windows of 16, expected at most 1,000; .*type --window 16 --first 14000"
    ):
        split_into_windows(model, "a" * 30_002, None, 16)


def test_only_the_start_of_a_huge_text_is_tokenised() -> None:
    model: Any = Letters(context=60)
    with pytest.raises(rs.RheoscopeError, match="the text has 4 MB, more than 60 tokens"):
        split_into_windows(model, "a" * 4_000_000, None)
    assert len(split_into_windows(model, "a" * 4_000_000, 50).texts[0]) == 50
    assert max(model.read) < 2_000_000


def test_windows_are_summarised_like_texts() -> None:
    """Summaries of Datasets and of Traces are equal."""
    model = small()
    traces = [model.trace(item) for item in split_into_windows(model, TEXT * 6, None, 24).texts]
    assert len(traces) > 2
    summary = summarise_texts([rs.trajectory(item) for item in traces])
    assert summary.equals(over_texts(rs.trajectory, traces))
    assert torch.equal(traces[0].ids[:1], traces[1].ids[:1])  # each begins as the tokenizer begins a text


def test_windows_show_the_required_analysis_in_full_and_others_in_brief() -> None:
    """Intervals are shown for scalars only."""
    model = small()
    traces = [model.trace(item) for item in split_into_windows(model, TEXT * 8, None, 24).texts]
    window_results = [
        Results(model.view, model.token_strings, None, {"agreement": rs.agreement(item, draws=2)}) for item in traces
    ]
    expected_ids = merge_windows(window_results)
    table, lines = window_blocks(window_results, expected_ids, "trajectory")
    assert isinstance(table, Table)
    assert [cell.text for cell in table.header] == ["measure", "overall", "overall_low", "overall_high", "split_half"]
    assert isinstance(lines, Lines)
    assert f"({format_number(float(expected_ids.datasets['agreement'].mean_agreement_low))} to" in lines.lines[0]
    names = [
        cell.text
        for block in window_blocks(window_results, expected_ids, "agreement")
        if isinstance(block, Table)
        for cell in block.header
    ]
    assert {"layer", "agreement", "position_baseline"} <= set(names)
    assert not {"draw", "agreement_low", "agreement_high", "agreement_z", "agreement_q_value"} & set(names)

"""Tests of the text of `agreement`: the table of layers, the summary, the lists of heads and the named pairs."""

from functools import cache
from typing import Any

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.covers.agreement.picture import MAP_TITLES
from rheoscope.covers.agreement.words import (
    HEAD_LISTS,
    MAX_LISTED_HEADS,
    blocks,
    head_list_lines,
    head_lists,
    head_table,
    least_similar_head,
    most_similar_head,
    pair_texts,
    summary_lines,
)
from rheoscope.picture.blocks import Table
from rheoscope.report.draw.inline import picture_html
from rheoscope.report.draw_result import picture_of
from rheoscope.report.report_plans import REPORTS
from rheoscope.space.results import Results
from tests.report.cases import TEXT, Parts, flow_results, model, report_results, small


@cache
def example_agreement() -> Any:
    return rs.agreement(model().trace(TEXT), draws=4)


def results_with(dataset: Any) -> Results:
    return Results(model().view, model().token_strings, model().trace(TEXT)).with_result("agreement", dataset)


def test_the_table_has_one_row_per_layer_with_counts_and_types() -> None:
    own, kinds = flow_results().datasets["agreement"], flow_results().datasets["head_types"]
    (table, _) = blocks(flow_results())
    assert isinstance(table, Table)
    titles = [cell.text for cell in table.header]
    assert titles == ["layer", "agreement", "null sd", "raw", "position", "similar", "opposite", "types"]
    for layer, row in enumerate(table.rows):
        significant = own.q_value.values[layer] <= 0.05
        assert row[5].text == str(int((significant & (own.z.values[layer] > 0)).sum()))
        assert row[6].text == str(int((significant & (own.z.values[layer] < 0)).sum()))
        assert sum(int(part.split()[0]) for part in row[7].text.split(", ")) == kinds.sizes["head"]


def test_the_summary_counts_heads_above_and_below_their_null() -> None:
    dataset = example_agreement()
    q, z = np.ones((6, 4)), np.zeros((6, 4))
    q[0, :3], z[0, 0], z[0, 1], z[0, 2] = 0.01, 5, 6, -4
    planted = dataset.assign(q_value=dataset.q_value.copy(data=q), z=dataset.z.copy(data=z))
    first = summary_lines(results_with(planted))[0]
    assert first == (
        "2 of 24 heads attend to similar tokens more than random heads of the same spectrum, 1 less. "
        "21 do not differ from them (4 draws per head, false discovery rate 5 %)."
    )
    picture = picture_of(planted)
    assert picture.panels[0].marks[0].marked == {(0, 0), (0, 1), (0, 2)}
    maps = rs.plot(planted).axes
    assert [len(axes.patches) for axes in maps[: len(MAP_TITLES) - 1]] == [3, 0, 0, 0, 0]
    bare = planted.drop_vars(["z", "q_value", "null_mean", "null_sd"])
    assert len(picture_of(bare).panels) == len(MAP_TITLES) - 1
    assert Parts(picture_html(picture)).count("svg") == len(MAP_TITLES)


def test_lists_are_sorted_by_effect_size() -> None:
    dataset = example_agreement()
    q, z, agreement = np.ones((6, 4)), np.full((6, 4), 0.5), np.zeros((6, 4))
    for head_index, (sign, size) in {(3, 2): (-1, 0.4), (0, 1): (-1, 0.7), (5, 3): (1, 0.2), (1, 0): (1, 0.9)}.items():
        q[head_index], z[head_index], agreement[head_index] = 0.01, sign * 5, sign * size
    z[2, 2], z[4, 4 - 1] = 0.1, float("nan")
    planted = dataset.assign(
        q_value=dataset.q_value.copy(data=q), z=dataset.z.copy(data=z), agreement=dataset.agreement.copy(data=agreement)
    )
    heads_of = head_lists(planted)
    assert heads_of["similar"] == [(1, 0), (5, 3)]
    assert heads_of["opposite"] == [(0, 1), (3, 2)]
    assert heads_of["random"][0] == (2, 2)
    assert (4, 3) not in heads_of["random"]
    assert len(heads_of["random"]) == 19
    assert least_similar_head(planted) == (0, 1)
    assert planted.z.values[most_similar_head(planted)] == 5
    lines = head_list_lines(results_with(planted))
    assert lines[0].startswith("Attends to similar tokens (2 heads): L1.H0 .90, L5.H3 .20. L1.H0 separates")
    assert lines[1].startswith("Attends to dissimilar tokens (2 heads): L0.H1 -.70, L3.H2 -.40. L0.H1 separates")
    assert f"and {19 - MAX_LISTED_HEADS} more" in lines[2]
    (table,) = head_table(results_with(planted))
    assert isinstance(table, Table)
    assert [row[0].text for row in table.rows[:5]] == ["L1.H0", "L5.H3", "L0.H1", "L3.H2", "L2.H2"]
    assert len(table.rows) == 4 + MAX_LISTED_HEADS
    assert {len(row) for row in table.rows} == {len(table.header)}
    assert {row[-3].text for row in table.rows} == set(HEAD_LISTS.values())


def test_pairs_are_listed_with_their_positions() -> None:
    trace = model().trace(TEXT)
    pairs = rs.distorted_pairs(trace, layer=3, head=2, top=2)
    texts = pair_texts(flow_results().with_result("distorted_pairs L3.H2", pairs), 3, 2, n_pairs=2)
    for kind in ("separated", "merged"):
        row = pairs.sel(kind=kind)
        for pair in range(2):
            assert f"({int(row['earlier_token'][pair])})" in texts[kind].split("; ")[pair]
            assert f"({int(row['later_token'][pair])})" in texts[kind].split("; ")[pair]


def test_the_report_has_the_pairs_of_every_listed_head() -> None:
    """The terminal shows the pairs of the first head of each list, and the page those of all heads."""
    page = report_results(REPORTS["covers"], of=small(), draws=2)
    assert max(map(len, head_lists(page.datasets["agreement"]).values())) > MAX_LISTED_HEADS
    assert page.skipped == {}
    for heads in head_lists(page.datasets["agreement"]).values():
        for layer, head in heads[:MAX_LISTED_HEADS]:
            assert f"distorted_pairs L{layer}.H{head}" in page.datasets
    assert not [line for line in head_list_lines(page) if "not computed" in line]
    (table,) = head_table(page)
    assert isinstance(table, Table)
    assert not [cell for row in table.rows for cell in row if cell.text == "not computed"]


def test_the_untrained_control_has_a_column_and_a_sentence() -> None:
    control = rs.load(untrained=True).trace(TEXT)
    dataset = rs.agreement(model().trace(TEXT), draws=0, control=control)
    lines = summary_lines(results_with(dataset))
    assert lines[-1].startswith("The same architecture at initial weights: ")
    assert len(lines) == 2  # no sentence about random heads, since draws=0
    (table, summary) = blocks(results_with(dataset))
    assert isinstance(table, Table)
    assert "untrained" in [cell.text for cell in table.header]
    assert [row[-3].text for row in table.rows] == ["none"] * 6
    assert summary.lines == lines  # type: ignore[union-attr]


@pytest.mark.parametrize("builder", [blocks, head_table])
def test_there_are_no_blocks_without_a_result(builder: Any) -> None:
    empty = Results(model().view, model().token_strings, model().trace("a"))
    assert builder(empty.with_failure("agreement", rs.RheoscopeError("the text is too short"))) == []

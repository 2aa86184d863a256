"""The covers for people: a row a layer, sentences with their nulls, lists of heads, pairs by name."""

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
from tests.report.cases import TEXT, Parts, answered, model, small, told


def holding(found: Any) -> Results:
    return Results(model().view, model().token_strings, model().trace(TEXT)).with_result("agreement", found)


def test_a_row_a_layer_with_medians_counts_and_types() -> None:
    own, kinds = told().datasets["agreement"], told().datasets["head_types"]
    (table, _) = blocks(told())
    assert isinstance(table, Table)
    titles = [cell.text for cell in table.header]
    assert titles == ["layer", "agreement", "null sd", "raw", "position", "similar", "opposite", "types"]
    for layer, row in enumerate(table.rows):
        sure = own.q_value.values[layer] <= 0.05
        assert row[5].text == str(int((sure & (own.z.values[layer] > 0)).sum()))
        assert row[6].text == str(int((sure & (own.z.values[layer] < 0)).sum()))
        assert sum(int(part.split()[0]) for part in row[7].text.split(", ")) == kinds.sizes["head"]


def test_sentences_count_heads_on_both_sides_of_their_null() -> None:
    found = rs.agreement(model().trace(TEXT), draws=4)
    q, z = np.ones((6, 4)), np.zeros((6, 4))
    q[0, :3], z[0, 0], z[0, 1], z[0, 2] = 0.01, 5, 6, -4
    planted = found.assign(q_value=found.q_value.copy(data=q), z=found.z.copy(data=z))
    first = summary_lines(holding(planted))[0]
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


def test_lists_are_sorted_by_how_clear_their_heads_are() -> None:
    found = rs.agreement(model().trace(TEXT), draws=2)
    q, z, own = np.ones((6, 4)), np.full((6, 4), 0.5), np.zeros((6, 4))
    for at, (sign, size) in {(3, 2): (-1, 0.4), (0, 1): (-1, 0.7), (5, 3): (1, 0.2), (1, 0): (1, 0.9)}.items():
        q[at], z[at], own[at] = 0.01, sign * 5, sign * size
    z[2, 2], z[4, 4 - 1] = 0.1, float("nan")
    planted = found.assign(
        q_value=found.q_value.copy(data=q), z=found.z.copy(data=z), agreement=found.agreement.copy(data=own)
    )
    read = head_lists(planted)
    assert read["similar"] == [(1, 0), (5, 3)]
    assert read["opposite"] == [(0, 1), (3, 2)]
    assert read["random"][0] == (2, 2)
    assert (4, 3) not in read["random"]
    assert len(read["random"]) == 19
    assert least_similar_head(planted) == (0, 1)
    assert planted.z.values[most_similar_head(planted)] == 5
    lines = head_list_lines(holding(planted))
    assert lines[0].startswith("Attends to similar tokens (2 heads): L1.H0 .90, L5.H3 .20. L1.H0 separates")
    assert lines[1].startswith("Attends to dissimilar tokens (2 heads): L0.H1 -.70, L3.H2 -.40. L0.H1 separates")
    assert f"and {19 - MAX_LISTED_HEADS} more" in lines[2]
    (table,) = head_table(holding(planted))
    assert isinstance(table, Table)
    assert [row[0].text for row in table.rows[:5]] == ["L1.H0", "L5.H3", "L0.H1", "L3.H2", "L2.H2"]
    assert len(table.rows) == 4 + MAX_LISTED_HEADS
    assert {len(row) for row in table.rows} == {len(table.header)}
    assert {row[-3].text for row in table.rows} == set(HEAD_LISTS.values())


def test_pairs_are_told_by_name_and_place() -> None:
    trace = model().trace(TEXT)
    wanted = rs.distorted_pairs(trace, layer=3, head=2, top=2)
    named = pair_texts(told().with_result("distorted_pairs L3.H2", wanted), 3, 2, n_pairs=2)
    for kind in ("torn", "glued"):
        row = wanted.sel(kind=kind)
        for at in range(2):
            assert f"({int(row['earlier_token'][at])})" in named[kind].split("; ")[at]
            assert f"({int(row['later_token'][at])})" in named[kind].split("; ")[at]


def test_the_command_has_the_pairs_of_every_head_that_it_names() -> None:
    """On the terminal those of the first head of each list, on the page those of all."""
    page = answered(REPORTS["covers"], of=small(), draws=2)
    assert max(map(len, head_lists(page.datasets["agreement"]).values())) > MAX_LISTED_HEADS
    assert page.skipped == {}
    for _, head_of_list in head_lists(page.datasets["agreement"]).items():
        for layer, head in head_of_list[:MAX_LISTED_HEADS]:
            assert f"distorted_pairs L{layer}.H{head}" in page.datasets
    assert not [line for line in head_list_lines(page) if "not computed" in line]
    (table,) = head_table(page)
    assert isinstance(table, Table)
    assert not [cell for row in table.rows for cell in row if cell.text == "not computed"]


def test_an_untrained_model_stands_beside_it() -> None:
    control = rs.load(untrained=True).trace(TEXT)
    found = rs.agreement(model().trace(TEXT), draws=0, control=control)
    lines = summary_lines(holding(found))
    assert lines[-1].startswith("The same architecture at initial weights: ")
    assert len(lines) == 2  # nothing is said of random heads without them
    (table, settled) = blocks(holding(found))
    assert isinstance(table, Table)
    assert "untrained" in [cell.text for cell in table.header]
    assert [row[-3].text for row in table.rows] == ["none"] * 6
    assert settled.lines == lines  # type: ignore[union-attr]


@pytest.mark.parametrize("tell", [blocks, head_table])
def test_nothing_is_told_without_an_answer(tell: Any) -> None:
    assert tell(told("a")) == []

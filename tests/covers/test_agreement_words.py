"""The covers for people: a row a layer, sentences with their nulls, lists of heads, pairs by name."""

from typing import Any

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.covers.agreement.picture import MAPS
from rheoscope.covers.agreement.words import (
    LISTED,
    LISTS,
    blocks,
    furthest,
    head_table,
    list_lines,
    lists,
    pairs,
    surest,
    verdict,
)
from rheoscope.picture.blocks import Table
from rheoscope.report.draw.inline import figures
from rheoscope.report.draw_result import picture_of
from rheoscope.report.report_plans import JOBS
from rheoscope.space.results import Answers
from tests.report.cases import TEXT, Parts, answered, model, small, told


def holding(found: Any) -> Answers:
    return Answers(model().view, model().words, model().trace(TEXT)).with_answer("agreement", found)


def test_a_row_a_layer_with_medians_counts_and_types() -> None:
    own, kinds = told().found["agreement"], told().found["head_types"]
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
    first = verdict(holding(planted))[0]
    assert first.endswith(
        "by 2 of 24 heads, its opposite by 1; not to be told from random: 21 (4 draws a head, false discovery rate 5 %)."
    )
    picture = picture_of(planted)
    assert picture.panels[0].marks[0].marked == {(0, 0), (0, 1), (0, 2)}
    maps = rs.plot(planted).axes
    assert [len(axes.patches) for axes in maps[: len(MAPS) - 1]] == [3, 0, 0, 0, 0]
    bare = planted.drop_vars(["z", "q_value", "null_mean", "null_sd"])
    assert len(picture_of(bare).panels) == len(MAPS) - 1
    assert Parts(figures(picture)).count("svg") == len(MAPS)


def test_lists_are_sorted_by_how_clear_their_heads_are() -> None:
    found = rs.agreement(model().trace(TEXT), draws=2)
    q, z, own = np.ones((6, 4)), np.full((6, 4), 0.5), np.zeros((6, 4))
    for at, (sign, size) in {(3, 2): (-1, 0.4), (0, 1): (-1, 0.7), (5, 3): (1, 0.2), (1, 0): (1, 0.9)}.items():
        q[at], z[at], own[at] = 0.01, sign * 5, sign * size
    z[2, 2], z[4, 4 - 1] = 0.1, float("nan")
    planted = found.assign(
        q_value=found.q_value.copy(data=q), z=found.z.copy(data=z), agreement=found.agreement.copy(data=own)
    )
    read = lists(planted)
    assert read["similar"] == [(1, 0), (5, 3)]
    assert read["opposite"] == [(0, 1), (3, 2)]
    assert read["random"][0] == (2, 2)
    assert (4, 3) not in read["random"]
    assert len(read["random"]) == 19
    assert furthest(planted) == (0, 1)
    assert planted.z.values[surest(planted)] == 5
    lines = list_lines(holding(planted))
    assert lines[0].startswith("Reads similarity (2 heads): L1.H0 .90, L5.H3 .20. L1.H0 has torn apart")
    assert lines[1].startswith("Reads its opposite (2 heads): L0.H1 -.70, L3.H2 -.40. L0.H1 has torn apart")
    assert f"and {19 - LISTED} more" in lines[2]
    (table,) = head_table(holding(planted))
    assert isinstance(table, Table)
    assert [row[0].text for row in table.rows[:5]] == ["L1.H0", "L5.H3", "L0.H1", "L3.H2", "L2.H2"]
    assert len(table.rows) == 4 + LISTED
    assert {len(row) for row in table.rows} == {len(table.header)}
    assert {row[-3].text for row in table.rows} == set(LISTS.values())


def test_pairs_are_told_by_name_and_place() -> None:
    trace = model().trace(TEXT)
    wanted = rs.distorted_pairs(trace, layer=3, head=2, top=2)
    named = pairs(told().with_answer("distorted_pairs L3.H2", wanted), 3, 2, top=2)
    for kind in ("torn", "glued"):
        row = wanted.sel(kind=kind)
        for at in range(2):
            assert f"({int(row['first'][at])})" in named[kind].split("; ")[at]
            assert f"({int(row['second'][at])})" in named[kind].split("; ")[at]


def test_the_command_has_the_pairs_of_every_head_that_it_names() -> None:
    """On the terminal those of the first head of each list, on the page those of all."""
    page = answered(JOBS["covers"], of=small(), draws=2)
    assert max(map(len, lists(page.found["agreement"]).values())) > LISTED
    assert page.left_out == {}
    for _, head_of_list in lists(page.found["agreement"]).items():
        for layer, head in head_of_list[:LISTED]:
            assert f"distorted_pairs L{layer}.H{head}" in page.found
    assert not [line for line in list_lines(page) if "not asked" in line]
    (table,) = head_table(page)
    assert isinstance(table, Table)
    assert not [cell for row in table.rows for cell in row if cell.text == "not asked"]


def test_an_untrained_model_stands_beside_it() -> None:
    control = rs.load(untrained=True).trace(TEXT)
    found = rs.agreement(model().trace(TEXT), draws=0, control=control)
    lines = verdict(holding(found))
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

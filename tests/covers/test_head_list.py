"""The list of heads by type: complete, strongest first, with the numbers of the result."""

from dataclasses import replace
from typing import Any

import numpy as np

import rheoscope as rs
from rheoscope.covers.head_types.head_list import LISTED_TYPES, MAX_HEADS, TYPE_NAMES, blocks
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Table
from rheoscope.report.analysis_runs import Subject, empty_results
from rheoscope.report.report_plans import REPORTS, report_of_analysis
from tests.covers.cases import random_model

SHAPE = (5, 6)
SCORES = np.random.default_rng(0).uniform(0.4, 1, SHAPE)


def planted_table(types: np.ndarray) -> Table:
    """The list of a result with these types, in which every head has the same score in all types."""
    import xarray as xr

    axes = ("layer", "head")
    fields: dict[str, Any] = dict.fromkeys(LISTED_TYPES, (axes, SCORES)) | {"type": (axes, types)}
    fields |= {f"{name}_null": ("layer", np.full(SHAPE[0], 0.1)) for name in LISTED_TYPES if name != "uniform"}
    dataset = xr.Dataset(fields, attrs={"probe": "the text"})
    results = empty_results(Subject(random_model(), None, None), draw_nulls=True)
    (table,) = blocks(replace(results, datasets={"head_types": dataset}))
    assert isinstance(table, Table)
    return table


def test_every_head_has_its_score_its_null_and_their_ratio_strongest_first() -> None:
    types = np.array([LISTED_TYPES[index % len(LISTED_TYPES)] for index in range(SCORES.size)]).reshape(SHAPE)
    table, row_index = planted_table(types), 0
    for name in LISTED_TYPES:
        heads = sorted(map(tuple, np.argwhere(types == name)), key=lambda head: -SCORES[head])
        rows = table.rows[row_index : row_index + len(heads)]
        assert rows[0][0].text == f"{TYPE_NAMES[name]} ({len(heads)})"
        assert [row[1].text for row in rows] == [f"L{layer}.H{head}" for layer, head in heads]
        assert [row[2].text for row in rows] == [format_number(SCORES[head]) for head in heads]
        ratios = [f"{format_number(SCORES[head] / 0.1)} ×" if name != "uniform" else "none" for head in heads]
        assert [row[4].text for row in rows] == ratios
        row_index += len(heads)
        assert row_index - 1 in table.group_ends
    assert row_index == len(table.rows) == SCORES.size
    assert table.note == ""


def test_many_heads_of_a_type_show_the_strongest_and_untyped_heads_are_named() -> None:
    types = np.full(SHAPE, "sink", dtype=object)
    types[0, :2] = "mixed"
    table = planted_table(types)
    assert len(table.rows) == MAX_HEADS
    assert table.rows[0][0].text == f"sink ({MAX_HEADS} of {SCORES.size - 2})"
    assert table.note == f"No single type (2 of {SCORES.size} heads): L0.H0, L0.H1"


def test_the_command_and_the_full_report_show_the_list() -> None:
    model = random_model(heads=2)
    results = empty_results(Subject(model, None, None), draw_nulls=True)
    results = replace(results, datasets={"head_types": rs.head_types(model)})
    (section,) = report_of_analysis("head_types").sections
    assert section.blocks(results) == blocks(results)
    assert blocks in [section.blocks for section in REPORTS["flow"].sections]

"""The table of layers: every number describes the end of its layer and has its null."""

import numpy as np
import pytest

from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Table
from rheoscope.report.layer_table import NULL_CAPTION, available_columns, blocks, comparison_blocks
from rheoscope.report.report_plans import REPORTS
from tests.report.cases import SHORT_TEXT, flow_results, report_results, small


def test_a_row_describes_the_end_of_its_layer() -> None:
    datasets = flow_results().datasets
    path, moves, cloud = (datasets[name] for name in ("trajectory", "transport", "clusters"))
    end = cloud.sel(point="L2.resid_post")
    speed = path.speed.values[:6]
    expected = {
        "moved": float(path.relative_speed.sel(step=["L2.resid_mid", "L2.resid_post"]).median("token").sum()),
        "attn": float(path.attention_share.sel(layer=2)),
        "straight": float(path.straightness_so_far.sel(layer=2).median()),
        "κ": float(moves.kappa.sel(step="L2.resid_post")),
        "clusters": float(end.cluster_count),
        "eff. rank": float(end.effective_rank),
        "dim": float(end.intrinsic_dimension),
    }
    nulls = {
        "straight": float(np.median(np.sqrt((speed**2).sum(0)) / speed.sum(0))),
        "κ": float(moves.kappa_null.sel(step="L2.resid_post")),
        "clusters": float(end.cluster_count_null),
        "eff. rank": float(end.effective_rank_null),
        "dim": float(end.intrinsic_dimension_null),
    }
    columns = available_columns(datasets)
    assert {c.title: c.value(datasets[c.analysis], 2) for c in columns} == pytest.approx(expected)
    assert {c.title: c.null(datasets[c.analysis], 2) for c in columns if c.null} == pytest.approx(nulls)
    (table,) = blocks(flow_results())
    assert isinstance(table, Table)
    assert [cell.text for cell in table.rows[2]] == ["L2", *map(format_number, expected.values())]
    assert {
        table.header[index].text: cell.small_text for index, cell in enumerate(table.rows[2]) if cell.small_text
    } == {name: format_number(null) for name, null in nulls.items()}
    assert (table.small_caption, table.note) == (NULL_CAPTION, "")


def test_a_column_without_a_result_is_left_out() -> None:
    (table,) = blocks(flow_results("a"))
    assert isinstance(table, Table)
    titles = [cell.text for cell in table.header]
    assert titles[:3] == ["layer", "moved", "attn"]
    assert "clusters" not in titles
    assert {len(row) for row in table.rows} == {len(titles)}


def test_fast_tables_have_no_sampled_nulls_and_a_note() -> None:
    (table,) = blocks(report_results(REPORTS["flow"], "The keys to the cabinet are", fast=True, of=small()))
    assert isinstance(table, Table)
    assert table.note == "null distributions were not drawn (--fast)"
    for row in table.rows:
        assert [table.header[index].text for index, cell in enumerate(row) if cell.small_text] == [
            "straight"
        ]  # it has a formula
        assert "none" not in [cell.text for cell in row]


def test_two_texts_have_rows_and_their_difference() -> None:
    second_results = flow_results(SHORT_TEXT)
    (table,) = comparison_blocks(flow_results(), second_results)
    assert isinstance(table, Table)
    assert len(table.rows) == 3 * 6
    assert table.group_ends == frozenset({2, 5, 8, 11, 14, 17})
    for layer in range(6):
        first, second, difference = table.rows[3 * layer : 3 * layer + 3]
        assert [row[0].text for row in (first, second, difference)] == [
            f"L{layer} {text}" for text in ("1", "2", "2−1")
        ]
        for index, column in enumerate(available_columns(flow_results().datasets), 1):
            a, b = (
                column.value(results.datasets[column.analysis], layer) for results in (flow_results(), second_results)
            )
            assert (first[index].text, second[index].text, difference[index].text) == (
                format_number(a),
                format_number(b),
                format_number(b - a),
            )

"""Comparison arms: their order, their draws, and that every arm edits only the chosen heads."""

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Generator

import rheoscope as rs
from rheoscope.covers.comparison_arms import batch_mean_outputs, iterate_edits
from rheoscope.covers.head_replacement import plan_edits
from rheoscope.covers.text_batches import included_tokens, window_batches
from rheoscope.space.model import Rewrite
from tests.cases import double, gap, text


def test_arms_have_a_fixed_order() -> None:
    comparisons = rs.Comparisons(("uniform", "cloud", "mean", "size"))
    assert comparisons.changes == ["edit", "size", "cloud", "mean", "uniform"]
    assert rs.Comparisons(()).changes == ["edit"]
    assert rs.Comparisons(draws=0).changes == ["edit", "mean", "uniform"]


@torch.no_grad()
def test_every_draw_runs_once_and_changes_only_the_chosen_heads() -> None:
    model = double("llama")
    (batch,) = window_batches(model, [text(0), text(1)])
    comparisons = rs.Comparisons(draws=3)
    edit_draws = comparisons.build_edits(
        plan_edits(model.view, {1: [0, 2, 3]}, "symmetric", None), Generator().manual_seed(0)
    )
    means = batch_mean_outputs(batch, comparisons)
    runs = list(iterate_edits(batch, {1: [2]}, edit_draws, means, comparisons))
    names = [name for name, *_ in runs]
    assert names == ["edit", *["size"] * 3, *["cloud"] * 3, *["spectrum"] * 3, "mean", "uniform"]
    logits: list[Any] = []
    for _, edits in runs:
        is_unchanged: list[bool] = []

        def record(x: Any, *arguments: Any, edit: Any = edits[1], is_unchanged: Any = is_unchanged) -> Any:
            new, update = edit.edit(x, *arguments) if isinstance(edit, Rewrite) else (edit(*arguments), None)
            is_unchanged[:] = [bool(torch.equal(new[:, head], arguments[-1][:, head])) for head in range(4)]
            return new, update

        logits.append(model.run_batch(batch.ids, {1: Rewrite(record)}))
        assert is_unchanged == [True, True, False, True]
    assert all(gap(a, b) > 1e-9 for a, b in combinations(logits, 2))
    for row, trace in enumerate(batch.traces):
        expected = model.view.layer_heads[1].outputs(trace.layer_input(1))[:, included_tokens(trace)].mean(1)
        assert gap(means[1][row], expected) <= 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ("median",)}, "names must be a tuple of size, cloud, spectrum, mean, uniform, got 'median'"),
        ({"names": "size"}, r"names must be a tuple of .*, got 'size'; type rs.Comparisons"),
        ({"draws": -1}, "draws must be at least 0, got -1; type draws=1"),
    ],
)
def test_invalid_arms_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=message):
        rs.Comparisons(**options)

"""What a change is measured against: names, draws, seeds, and that a sweep runs each of them."""

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


def test_names_are_kept_in_one_order() -> None:
    asked = rs.Comparisons(("uniform", "cloud", "mean", "size"))
    assert asked.changes == ["edit", "size", "cloud", "mean", "uniform"]
    assert rs.Comparisons(()).changes == ["edit"]
    assert rs.Comparisons(draws=0).changes == ["edit", "mean", "uniform"]


@torch.no_grad()
def test_every_draw_is_run_once_and_only_the_chosen_heads_change() -> None:
    of = double("llama")
    (batch,) = window_batches(of, [text(0), text(1)])
    asked = rs.Comparisons(draws=3)
    made = asked.build_edits(plan_edits(of.view, {1: [0, 2, 3]}, "symmetric", None), Generator().manual_seed(0))
    means = batch_mean_outputs(batch, asked)
    runs = list(iterate_edits(batch, {1: [2]}, made, means, asked))
    names = [name for name, *_ in runs]
    assert names == ["edit", *["size"] * 3, *["cloud"] * 3, *["spectrum"] * 3, "mean", "uniform"]
    logits: list[Any] = []
    for _, edits in runs:
        found = {}

        def look(x: Any, *given: Any, edit: Any = edits[1], found: Any = found) -> Any:
            new, added = edit.edit(x, *given) if isinstance(edit, Rewrite) else (edit(*given), None)
            found["same"] = [bool(torch.equal(new[:, head], given[-1][:, head])) for head in range(4)]
            return new, added

        logits.append(of.run_batch(batch.ids, {1: Rewrite(look)}))
        assert found["same"] == [True, True, False, True]
    assert all(gap(one, other) > 1e-9 for at, one in enumerate(logits) for other in logits[:at])
    for row, trace in enumerate(batch.traces):
        own = of.view.layer_heads[1].outputs(trace.layer_input(1))[:, included_tokens(trace)].mean(1)
        assert gap(means[1][row], own) <= 1e-12


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"names": ("median",)}, "unknown comparison 'median'; type some of size, cloud, spectrum, mean, uniform"),
        ({"names": "size"}, "unknown comparison 'size'; type some of .*, as a tuple"),
        ({"draws": -1}, "a control is drawn 0 times or more, got -1; type draws=1"),
    ],
)
def test_bad_input_is_told_in_one_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=said):
        rs.Comparisons(**asked)

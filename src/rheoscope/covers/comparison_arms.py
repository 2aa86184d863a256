"""What a change of M or F is measured against: random changes that mean nothing, and heads silenced."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator

from rheoscope.covers import head_replacement
from rheoscope.covers.ablation import MeanOutputs, mean_ablation, mean_outputs, uniform_ablation
from rheoscope.covers.head_replacement import EditPlan, OperatorEdit, model_edits
from rheoscope.covers.head_selection import HeadsByLayer
from rheoscope.covers.text_batches import Batch
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edits

CONTROLS = {
    "size": head_replacement.same_size_control,
    "cloud": head_replacement.same_cloud_size_control,
    "spectrum": head_replacement.same_spectrum_control,
}
ABLATIONS = ("mean", "uniform")
COMPARISONS = (*CONTROLS, *ABLATIONS)
EditDraws = dict[str, list[list[OperatorEdit]]]
"""Name → operations of every draw; the edit itself is one draw."""
NamedEdits = tuple[str, Edits]


@dataclass(frozen=True)
class Against:
    """Comparisons by their names, how often the random ones are drawn, and from which seed.

    **Names** `size`: the change turned at random, of the same singular values at every offset; `cloud`: the same, scaled to the size that
    the edit has on each text; `spectrum`: the replacement turned at random; `mean`, `uniform`: the heads silenced.

    >>> Against(("size", "mean"), draws=3).controls
    ['size']
    """

    names: Sequence[str] = COMPARISONS
    draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        unknown_names = [name for name in self.names if name not in COMPARISONS]
        if isinstance(self.names, str) or unknown_names:
            unknown_name = self.names if isinstance(self.names, str) else unknown_names[0]
            raise RheoscopeError(
                f"unknown comparison {unknown_name!r}; type some of {', '.join(COMPARISONS)}, as a tuple"
            )
        if self.draws < 0:
            raise RheoscopeError(f"a control is drawn 0 times or more, got {self.draws}; type draws=1")

    @property
    def controls(self) -> list[str]:
        """The random ones; `draws=0` leaves them out."""
        return [name for name in CONTROLS if name in self.names and self.draws]

    @property
    def ablations(self) -> list[str]:
        return [name for name in ABLATIONS if name in self.names]

    @property
    def changes(self) -> list[str]:
        """Everything that is run: the edit, then what it is measured against."""
        return ["edit", *self.controls, *self.ablations]

    @torch.no_grad()
    def build_edits(self, plans: list[EditPlan], generator: Generator) -> EditDraws:
        """The edit and every draw of every control, made once for all texts."""
        edit_draws = {"edit": [[head_replacement.replacement_edit(plan, generator) for plan in plans]]}
        for name in self.controls:
            edit_draws[name] = [[CONTROLS[name](plan, generator) for plan in plans] for _ in range(self.draws)]
        return edit_draws


ALL_COMPARISONS = Against()
SIZE_MATCHED = Against(("size", "cloud"))
"""Random changes of the size of the edit, in E and on each text."""


def batch_mean_outputs(batch: Batch, against: Against) -> MeanOutputs:
    """What every head gives on average, text by text; nothing where no one asks."""
    if "mean" not in against.names:
        return []
    traces_with_masks = zip(batch.traces, batch.is_included, strict=True)
    return [
        torch.stack(layer_means)
        for layer_means in zip(*(mean_outputs(*trace_with_mask) for trace_with_mask in traces_with_masks), strict=True)
    ]


def iterate_edits(
    batch: Batch, heads_by_layer: HeadsByLayer, edit_draws: EditDraws, means: MeanOutputs, against: Against
) -> Iterator[NamedEdits]:
    """Name and edits of one run after another, for the chosen heads of the layers that were made."""
    for name, draws in edit_draws.items():
        for layer_edits in draws:
            selected_edits = [
                replace(edit, head_indices=heads_by_layer[edit.layer])
                for edit in layer_edits
                if edit.layer in heads_by_layer
            ]
            yield name, model_edits(batch.is_included, selected_edits)
    if "mean" in against.names:
        yield "mean", mean_ablation(means, heads_by_layer)
    if "uniform" in against.names:
        yield "uniform", uniform_ablation(heads_by_layer)

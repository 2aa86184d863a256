"""The comparison arms of an edit of M or F: size-matched random changes and ablations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator

from rheoscope.covers import head_replacement
from rheoscope.covers.ablation import MeanOutputs, mean_ablation, mean_outputs, uniform_ablation
from rheoscope.covers.head_replacement import EditPlan, OperatorEdit, model_edits
from rheoscope.covers.head_selection import HeadsByLayer
from rheoscope.covers.text_batches import Batch
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
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
"""Name → the edits of every draw. The edit itself has one draw."""
NamedEdits = tuple[str, Edits]


@dataclass(frozen=True)
class Comparisons:
    """The comparison arms of an edit by name, with the number of draws and the seed of the random arms.

    **Settings** `size` is the change with randomly rotated directions and the same singular values at every offset.
    `cloud` is the same, scaled to the size of the edit on each text. `spectrum` is the randomly rotated replacement.
    `mean` and `uniform` ablate the heads. `draws=0` omits the random arms.

    >>> Comparisons(("size", "mean"), draws=3).controls
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
                Message(
                    "names must be a tuple of {expected}, got {received!r}",
                    expected=", ".join(COMPARISONS),
                    received=unknown_name,
                ),
                Advice('rs.Comparisons(("size", "mean"))'),
            )
        if self.draws < 0:
            raise RheoscopeError(Message("draws must be at least 0, got {value}", value=self.draws), use(draws=1))

    @property
    def controls(self) -> list[str]:
        """The names of the random arms; none if `draws` is 0."""
        return [name for name in CONTROLS if name in self.names and self.draws]

    @property
    def ablations(self) -> list[str]:
        """The names of the ablations."""
        return [name for name in ABLATIONS if name in self.names]

    @property
    def changes(self) -> list[str]:
        """The names of all arms: the edit, then its comparisons."""
        return ["edit", *self.controls, *self.ablations]

    @torch.no_grad()
    def build_edits(self, plans: list[EditPlan], generator: Generator) -> EditDraws:
        """The edit and every draw of every random arm, built once for all texts."""
        edit_draws = {"edit": [[head_replacement.replacement_edit(plan, generator) for plan in plans]]}
        for name in self.controls:
            edit_draws[name] = [[CONTROLS[name](plan, generator) for plan in plans] for _ in range(self.draws)]
        return edit_draws


ALL_COMPARISONS = Comparisons()
SIZE_MATCHED = Comparisons(("size", "cloud"))
"""Random changes with the size of the edit, in E and on each text."""


def batch_mean_outputs(batch: Batch, comparisons: Comparisons) -> MeanOutputs:
    """The mean output of every head for each text; empty unless mean ablation is requested."""
    if "mean" not in comparisons.names:
        return []
    traces_with_masks = zip(batch.traces, batch.is_included, strict=True)
    return [
        torch.stack(layer_means)
        for layer_means in zip(*(mean_outputs(*trace_with_mask) for trace_with_mask in traces_with_masks), strict=True)
    ]


def iterate_edits(
    batch: Batch, heads_by_layer: HeadsByLayer, edit_draws: EditDraws, means: MeanOutputs, comparisons: Comparisons
) -> Iterator[NamedEdits]:
    """The name and the edits of every run, restricted to the chosen heads."""
    for name, draws in edit_draws.items():
        for layer_edits in draws:
            selected_edits = [
                replace(edit, head_indices=heads_by_layer[edit.layer])
                for edit in layer_edits
                if edit.layer in heads_by_layer
            ]
            yield name, model_edits(batch.is_included, selected_edits)
    if "mean" in comparisons.names:
        yield "mean", mean_ablation(means, heads_by_layer)
    if "uniform" in comparisons.names:
        yield "uniform", uniform_ablation(heads_by_layer)

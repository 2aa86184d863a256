"""What a change of M or F is measured against: random changes that mean nothing, and heads silenced."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator

from rheoscope.covers import head_replacement
from rheoscope.covers.ablation import Means, mean_ablation, mean_outputs, uniform_ablation
from rheoscope.covers.head_replacement import Operation, Plan, live
from rheoscope.covers.head_selection import Chosen
from rheoscope.covers.text_batches import Batch
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edits

CONTROLS = {
    "size": head_replacement.same_size,
    "cloud": head_replacement.same_on_cloud,
    "spectrum": head_replacement.same_spectrum,
}
ABLATIONS = ("mean", "uniform")
AGAINST = (*CONTROLS, *ABLATIONS)
Made = dict[str, list[list[Operation]]]
"""Name → operations of every draw; the edit itself is one draw."""
Running = tuple[str, Edits]


@dataclass(frozen=True)
class Against:
    """Comparisons by their names, how often the random ones are drawn, and from which seed.

    **Names** `size`: the change turned at random, of the same singular values at every offset; `cloud`: the same, scaled to the size that
    the edit has on each text; `spectrum`: the replacement turned at random; `mean`, `uniform`: the heads silenced.

    >>> Against(("size", "mean"), draws=3).controls
    ['size']
    """

    names: Sequence[str] = AGAINST
    draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = [name for name in self.names if name not in AGAINST]
        if isinstance(self.names, str) or wrong:
            came = self.names if isinstance(self.names, str) else wrong[0]
            raise RheoscopeError(f"unknown comparison {came!r}; type some of {', '.join(AGAINST)}, as a tuple")
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
    def made(self, planned: list[Plan], generator: Generator) -> Made:
        """The edit and every draw of every control, made once for all texts."""
        made = {"edit": [[head_replacement.edit(plan, generator) for plan in planned]]}
        for name in self.controls:
            made[name] = [[CONTROLS[name](plan, generator) for plan in planned] for _ in range(self.draws)]
        return made


EVERYTHING = Against()
MATCHED = Against(("size", "cloud"))
"""Random changes of the size of the edit, in E and on each text."""


def means_of(batch: Batch, against: Against) -> Means:
    """What every head gives on average, text by text; nothing where no one asks."""
    if "mean" not in against.names:
        return []
    pairs = zip(batch.traces, batch.kept, strict=True)
    return [torch.stack(layer) for layer in zip(*(mean_outputs(*pair) for pair in pairs), strict=True)]


def running(batch: Batch, chosen: Chosen, made: Made, means: Means, against: Against) -> Iterator[Running]:
    """Name and edits of one run after another, for the chosen heads of the layers that were made."""
    for name, draws in made.items():
        for one in draws:
            own = [replace(part, chosen=chosen[part.layer]) for part in one if part.layer in chosen]
            yield name, live(batch.kept, own)
    if "mean" in against.names:
        yield "mean", mean_ablation(means, chosen)
    if "uniform" in against.names:
        yield "uniform", uniform_ablation(chosen)

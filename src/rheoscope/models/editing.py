"""Heads changed while a model runs: every module computes its heads as ever, then the edited ones are replaced."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rheoscope.attention.definition import Masked
from rheoscope.attention.mechanism import Mechanism
from rheoscope.space.editing import by_layer
from rheoscope.space.model import Edits, LayerEdit
from rheoscope.space.stream import Description


@dataclass(frozen=True, eq=False)
class Edited(Mechanism):
    """A mechanism whose heads are computed as ever, and then changed as their edit says."""

    edit: LayerEdit = lambda q, k, v, mechanism, out: out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None, lowering: str | None = None) -> Tensor:
        own = Mechanism(self.score, self.mask, self.position, self.normaliser, self.value).under(mask)
        return self.edit(q, k, v, own, own.attend(q, k, v, lowering=lowering))


@contextmanager
def editing(said: Description, edit: Edits) -> Iterator[None]:
    """Inside, heads (layer, head) or whole layers are computed by their edits; every mechanism is its own again on exit."""
    with ExitStack() as stack:
        for layer, change in by_layer(said.blocks, edit).items():
            stack.enter_context(_edited(said.attentions[layer].mechanism, change))
        yield


@contextmanager
def _edited(attention: Any, change: LayerEdit) -> Iterator[None]:
    """`current()` of one module, which every forward asks for its mechanism, answers with the edited one."""
    own, held = attention.current, vars(attention).get("current")

    def current() -> Mechanism:
        now = own()
        return Edited(now.score, now.mask, now.position, now.normaliser, now.value, change)

    vars(attention)["current"] = current
    try:
        yield
    finally:
        del vars(attention)["current"]
        if held is not None:
            vars(attention)["current"] = held

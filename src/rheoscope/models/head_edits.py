"""Heads changed while a model runs: every module computes its heads as ever, then the edited ones are replaced."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from rheoscope.attention.definition import Masked
from rheoscope.attention.mechanism import Mechanism
from rheoscope.running.head_edits import by_layer
from rheoscope.running.shared_patch import Undo, set_method, shared_change
from rheoscope.running.stream import Description
from rheoscope.space.model import Edits, LayerEdit


@dataclass(frozen=True, eq=False)
class Edited(Mechanism):
    """A mechanism whose heads are computed as ever, and then changed as their edit says."""

    edit: LayerEdit = lambda q, k, v, mechanism, out: out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None, lowering: str | None = None) -> Tensor:
        own = Mechanism(self.score, self.mask, self.position, self.normaliser, self.value).under(mask)
        return self.edit(q, k, v, own, own.attend(q, k, v, lowering=lowering))


_edits: ContextVar[Mapping[nn.Module, LayerEdit]] = ContextVar("edits of this thread", default=MappingProxyType({}))


@contextmanager
def editing(description: Description, edit: Edits) -> Iterator[None]:
    """Inside, and in this thread alone, heads (layer, head) or whole layers are computed by their edits."""
    attentions: Sequence[Any] = description.attentions
    edits = {attentions[layer].mechanism: change for layer, change in by_layer(description.blocks, edit).items()}
    with ExitStack() as stack:
        for attention in edits:
            stack.enter_context(shared_change((attention, "current"), partial(_asking_first, attention)))
        stack.callback(_edits.reset, _edits.set({**_edits.get(), **edits}))
        yield


def _asking_first(attention: Any) -> Undo:
    """`current()` of one module, which every forward asks for its mechanism, answers threads that edit with the edited one."""
    own = attention.current

    def current() -> Mechanism:
        now, change = own(), _edits.get().get(attention)
        return now if change is None else Edited(now.score, now.mask, now.position, now.normaliser, now.value, change)

    return set_method(attention, "current", current)

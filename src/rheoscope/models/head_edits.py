"""Head edits in models of this project: modules compute their heads normally, then edited heads are replaced."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from rheoscope.attention.definition import MaskLike
from rheoscope.attention.mechanism import Mechanism
from rheoscope.running.head_edits import edits_by_layer
from rheoscope.running.shared_patch import Undo, replace_method, shared_patch
from rheoscope.running.stream import ModelDescription
from rheoscope.space.model import Edits, LayerEdit


@dataclass(frozen=True, eq=False)
class EditedMechanism(Mechanism):
    """A mechanism that computes its heads normally and then applies an edit to the output."""

    edit: LayerEdit = lambda q, k, v, mechanism, out: out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike = None, lowering: str | None = None) -> Tensor:
        mechanism = Mechanism(self.score, self.mask, self.position, self.normaliser, self.value).with_mask(mask)
        return self.edit(q, k, v, mechanism, mechanism.attend(q, k, v, lowering=lowering))


_edits: ContextVar[Mapping[nn.Module, LayerEdit]] = ContextVar("edits of this thread", default=MappingProxyType({}))


@contextmanager
def edit_heads(description: ModelDescription, edit: Edits) -> Iterator[None]:
    """Apply edits of heads (layer, head) or whole layers inside the block, in this thread only."""
    attentions: Sequence[Any] = description.attention_modules
    edits = {
        attentions[layer].mechanism: layer_edit
        for layer, layer_edit in edits_by_layer(description.layer_heads, edit).items()
    }
    with ExitStack() as stack:
        for attention in edits:
            stack.enter_context(shared_patch((attention, "current_mechanism"), partial(_override_current, attention)))
        stack.callback(_edits.reset, _edits.set({**_edits.get(), **edits}))
        yield


def _override_current(attention: Any) -> Undo:
    """Patch `current_mechanism` of one module, so that threads with an edit get the edited mechanism."""
    original = attention.current_mechanism

    def current_mechanism() -> Mechanism:
        mechanism, edit = original(), _edits.get().get(attention)
        return (
            mechanism
            if edit is None
            else EditedMechanism(
                mechanism.score, mechanism.mask, mechanism.position, mechanism.normaliser, mechanism.value, edit
            )
        )

    return replace_method(attention, "current_mechanism", current_mechanism)

"""Heads changed while a model runs: the model's own attention computes every head, then the edited ones are replaced."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from rheoscope.attention.mechanism import Mechanism
from rheoscope.pretrained import interface
from rheoscope.space.editing import by_layer
from rheoscope.space.model import Edits, LayerEdit
from rheoscope.space.stream import Description

KEY = "rheoscope-edited"
_now: ContextVar[tuple[str, dict[int, LayerEdit]]] = ContextVar("edits of the running model")


@contextmanager
def editing(model: Any, said: Description, edit: Edits) -> Iterator[None]:
    """Inside, heads (layer, head) or whole layers are computed by their edits; the model's implementation comes back on exit."""
    edits = {id(said.attentions[layer]): change for layer, change in by_layer(said.blocks, edit).items()}
    if not edits:
        yield
        return
    _register()
    original = model.config._attn_implementation
    token = _now.set((original, edits))
    model.set_attn_implementation(KEY)
    try:
        yield
    finally:
        model.set_attn_implementation(original)
        _now.reset(token)


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(KEY, attend)
    AttentionMaskInterface.register(KEY, mask_function)


def mask_function(*args: Any, **kw: Any) -> Any:
    """The mask that the model's own implementation asks for."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    return ALL_MASK_ATTENTION_FUNCTIONS[_now.get()[0]](*args, **kw)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **kw: Any
) -> Any:
    """The model's own attention, with the edited heads replaced by what their edits say."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    original, edits = _now.get()
    eager = sys.modules[type(module).__module__].eager_attention_forward
    out, weights = ALL_ATTENTION_FUNCTIONS.get_interface(original, eager)(
        module, query, key, value, attention_mask, **kw
    )
    if id(module) not in edits:
        return out, weights
    asked = interface.read(module, kw | {"output_attentions": None})
    call = interface.under_the_mask(interface.lay(query, key, value, asked), attention_mask, asked)
    mechanism = interface.honour(Mechanism(), call, asked)
    new = edits[id(module)](call.q, call.k, call.v, mechanism, out.transpose(1, 2))
    return new.transpose(1, 2).contiguous(), weights

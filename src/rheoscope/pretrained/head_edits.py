"""Heads changed while a model runs: the model's own attention computes every head, then the edited ones are replaced."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from rheoscope.attention.mechanism import Mechanism
from rheoscope.pretrained import attention_interface
from rheoscope.running.head_edits import by_layer
from rheoscope.running.shared_patch import Undo, shared_change
from rheoscope.running.stream import Description
from rheoscope.space.model import Edits, LayerEdit

_edits: ContextVar[Mapping[nn.Module, LayerEdit]] = ContextVar("edits of this thread", default=MappingProxyType({}))


@contextmanager
def editing(network: Any, description: Description, edit: Edits) -> Iterator[None]:
    """Inside, and in this thread alone, heads (layer, head) or whole layers are computed by their edits.

    The model's implementation comes back when no thread edits any more; until then it computes for all others as ever.
    """
    edits = {description.attentions[layer]: change for layer, change in by_layer(description.blocks, edit).items()}
    if not edits:
        yield
        return
    with shared_change((network, "attention"), partial(_switched, network)):
        token = _edits.set({**_edits.get(), **edits})
        try:
            yield
        finally:
            _edits.reset(token)


def _switched(network: Any) -> Undo:
    original = network.config._attn_implementation
    network.set_attn_implementation(registered(original))
    return partial(network.set_attn_implementation, original)


def registered(original: str) -> str:
    """The name of an implementation that asks for edits, and else does what the original does."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name = f"rheoscope-edited:{original.replace('/', '-')}"  # a name with a slash would be looked for on the hub
    AttentionInterface.register(name, partial(attend, original))
    AttentionMaskInterface.register(name, partial(mask_function, original))
    return name


def mask_function(original: str, *args: Any, **kw: Any) -> Any:
    """The mask that the model's own implementation asks for."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    return ALL_MASK_ATTENTION_FUNCTIONS[original](*args, **kw)


def attend(
    original: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **kw: Any,
) -> Any:
    """The model's own attention, with the edited heads replaced by what their edits say."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager = sys.modules[type(module).__module__].eager_attention_forward
    out, weights = ALL_ATTENTION_FUNCTIONS.get_interface(original, eager)(
        module, query, key, value, attention_mask, **kw
    )
    change = _edits.get().get(module)
    if change is None:
        return out, weights
    asked = attention_interface.read(module, kw | {"output_attentions": None})
    call = attention_interface.under_the_mask(attention_interface.lay(query, key, value, asked), attention_mask, asked)
    mechanism = attention_interface.honour(Mechanism(), call, asked)
    new = change(call.q, call.k, call.v, mechanism, out.transpose(1, 2))
    return new.transpose(1, 2).contiguous(), weights

"""Head edits in Hugging Face models: the model's attention computes every head, then edited heads are replaced."""

import inspect
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
from rheoscope.pretrained.finder.segments import SEGMENT_ENDS
from rheoscope.pretrained.output_edits import edit_outputs
from rheoscope.running.head_edits import edits_by_layer
from rheoscope.running.shared_patch import Undo, shared_patch
from rheoscope.running.stream import ModelDescription
from rheoscope.space.model import Edits, LayerEdit

_thread_edits: ContextVar[Mapping[nn.Module, LayerEdit]] = ContextVar(
    "edits of this thread", default=MappingProxyType({})
)


@contextmanager
def apply_edits(network: Any, description: ModelDescription, edit: Edits) -> Iterator[None]:
    """Apply edits of heads (layer, head) or whole layers inside the block, in this thread only."""
    edits = edits_by_layer(description.layer_heads, edit)
    modules = description.attention_modules
    by_call = {
        i: x for i, x in edits.items() if uses_interface(modules[i]) and description.layer_taps[i][-1].n_turns == 1
    }
    with (
        edit_outputs(network, description, {i: x for i, x in edits.items() if i not in by_call}),
        edit_calls(network, {modules[i]: x for i, x in by_call.items()}),
    ):
        yield


def uses_interface(module: nn.Module) -> bool:
    """Whether a module computes attention by a function that `set_attn_implementation` chooses, once for all tokens."""
    if SEGMENT_ENDS in inspect.signature(module.forward).parameters:
        return False
    forward = inspect.unwrap(type(module).forward)
    return "ALL_ATTENTION_FUNCTIONS" in getattr(getattr(forward, "__code__", None), "co_names", ())


@contextmanager
def edit_calls(network: Any, edits: Mapping[nn.Module, LayerEdit]) -> Iterator[None]:
    """Edit what the attention function of some modules returns.

    The model's implementation is restored when the last thread stops editing. Until then other threads compute as usual.
    """
    if not edits:
        yield
        return
    with shared_patch((network, "attention"), partial(_switch_implementation, network)):
        token = _thread_edits.set({**_thread_edits.get(), **edits})
        try:
            yield
        finally:
            _thread_edits.reset(token)


def _switch_implementation(network: Any) -> Undo:
    original_implementation = network.config._attn_implementation
    network.set_attn_implementation(register_editable(original_implementation))
    return partial(network.set_attn_implementation, original_implementation)


def register_editable(original_implementation: str) -> str:
    """Register an implementation that applies edits and otherwise calls the original, and return its name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name = f"rheoscope-edited:{original_implementation.replace('/', '-')}"  # transformers would look up a name with a slash on the hub
    AttentionInterface.register(name, partial(attend_with_edits, original_implementation))
    AttentionMaskInterface.register(name, partial(original_mask, original_implementation))
    return name


def original_mask(original_implementation: str, *args: Any, **keywords: Any) -> Any:
    """The mask that the model's own implementation expects."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    return ALL_MASK_ATTENTION_FUNCTIONS[original_implementation](*args, **keywords)


def attend_with_edits(
    original_implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **keywords: Any,
) -> Any:
    """The model's own attention, with edited heads replaced."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager = sys.modules[type(module).__module__].eager_attention_forward
    out, weights = ALL_ATTENTION_FUNCTIONS.get_interface(original_implementation, eager)(
        module, query, key, value, attention_mask, **keywords
    )
    layer_edit = _thread_edits.get().get(module)
    if layer_edit is None:
        return out, weights
    settings = attention_interface.parse_keywords(module, keywords | {"output_attentions": None})
    call = attention_interface.with_mask(
        attention_interface.attention_call(query, key, value, settings), attention_mask, settings
    )
    mechanism = attention_interface.apply_settings(Mechanism(), call, settings)
    edited_out = layer_edit(call.q, call.k, call.v, mechanism, out.transpose(1, 2))
    return edited_out.transpose(1, 2).contiguous(), weights

"""The weight and bias with which a module acts, however they are stored: with its adapters, and dequantised."""

import copy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.messages.message import Message
from rheoscope.pretrained.adapter_layers import active_names, is_adapter_layer, stored_module, wrapped_module
from rheoscope.pretrained.library_errors import one_line
from rheoscope.pretrained.quantised_weights import dequantise, is_quantised
from rheoscope.shapes import RheoscopeError


class EffectiveWeights(NamedTuple):
    """A linear map y = x weightᵀ + bias, or the table of an embedding."""

    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None


def effective_weights(module: Any) -> EffectiveWeights:
    """The weight (out, in) and the bias of a projection or an embedding, as its forward pass applies them.

    A plain module returns its own tensors as views. The `Conv1D` of GPT-2 is transposed. A module with active adapters returns
    the weights that merging them would give, in float32 or better. A quantised module returns its dequantised weights. Other
    linear modules are read off their outputs for the unit vectors. The module itself is not changed.

    >>> linear = nn.Linear(3, 2)
    >>> effective_weights(linear).weight is linear.weight
    True
    """
    module = wrapped_module(module)
    if is_adapter_layer(module):
        return _merged_weights(module)
    if is_quantised(module):
        return EffectiveWeights(*dequantise(module))
    return _stored_weights(module)


def dequantise_projections(module: nn.Module, dtype: torch.dtype) -> None:
    """Replace every quantised projection inside a module by a plain linear layer with its effective weights."""
    for name, child in list(module.named_children()):
        if is_quantised(stored_module(child)):
            setattr(module, name, _linear(effective_weights(child), dtype))
        else:
            dequantise_projections(child, dtype)


def _linear(weights: EffectiveWeights, dtype: torch.dtype) -> nn.Linear:
    """A linear layer with these weights."""
    n_out, n_in = weights.weight.shape
    linear = nn.Linear(n_in, n_out, bias=weights.bias is not None, device="meta")
    linear.weight = nn.Parameter(weights.weight.to(dtype), requires_grad=False)
    if weights.bias is not None:
        linear.bias = nn.Parameter(weights.bias.detach().to(dtype), requires_grad=False)
    return linear


def _stored_weights(module: Any) -> EffectiveWeights:
    """The tensors of a module that stores its weight as numbers."""
    weight: Tensor = module.weight
    return EffectiveWeights(weight.T if type(module).__name__ == "Conv1D" else weight, getattr(module, "bias", None))


@torch.no_grad()
def _merged_weights(layer: Any) -> EffectiveWeights:
    """The weights of an adapter layer after its adapters are merged, computed on a copy.

    peft runs merged adapters as they are, whichever of them are active.
    """
    if is_quantised(layer.get_base_layer()):
        return _added_weights(layer)
    merged_layer = copy.deepcopy(layer)
    merged_layer.to(torch.promote_types(layer.weight.dtype, torch.float32))
    if layer.disable_adapters and layer.merged:
        merged_layer.unmerge()
    elif not layer.disable_adapters and not layer.merged:
        _merge(merged_layer)
    return _stored_weights(merged_layer.get_base_layer())


def _merge(layer: Any) -> None:
    try:
        layer.merge()
    except Exception as error:  # an adapter kind may raise anything
        raise _unmergeable(layer, one_line(error)) from error


def _added_weights(layer: Any) -> EffectiveWeights:
    """The dequantised weights plus the low-rank edits. Merging would round them to the quantised grid again."""
    weight, bias = dequantise(layer.get_base_layer())
    for name in active_names(layer):
        if not hasattr(layer, "get_delta_weight") or name in getattr(layer, "lora_variant", {}):
            raise _unmergeable(layer, "its base is quantised")
        weight = weight + layer.get_delta_weight(name).to(weight)
    return EffectiveWeights(weight, bias)


def _unmergeable(layer: nn.Module, reason: str) -> RheoscopeError:
    return RheoscopeError(
        Message(
            "the adapter layer {kind} cannot be written as one weight matrix ({reason}), so it has no M and F; "
            "choose a LoRA adapter",
            kind=f"{type(layer).__module__.removeprefix('peft.tuners.')}.{type(layer).__name__}",
            reason=reason,
        )
    )

"""Quantised weights of any library: which modules have them, and the numbers that they stand for."""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.messages.message import Message
from rheoscope.pretrained.adapter_layers import is_adapter_layer
from rheoscope.pretrained.library_errors import one_line
from rheoscope.running.network_copy import copy_sharing_weights
from rheoscope.running.network_walk import modules_of
from rheoscope.shapes import RheoscopeError
from rheoscope.space.safe_arithmetic import at_least_float32

ROWS_PER_PRODUCT = 1024
"""The number of unit vectors that are mapped at once."""
INPUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of inputs, in the order in which they are tried. Many kernels take one of them only."""


def is_quantised(module: Any) -> bool:
    """Whether a module stores its weight as anything but plain numbers of 16 bits or more.

    >>> is_quantised(nn.Linear(2, 2))
    False
    """
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor):  # a tensor subclass with tensors inside, codes, or numbers of 8 bits
        is_wrapper = hasattr(weight, "__tensor_flatten__")
        return is_wrapper or not weight.is_floating_point() or weight.dtype.itemsize == 1
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return hasattr(module, "in_features") and any(not x.is_floating_point() for x in tensors)


def quantisation_method(network: nn.Module) -> str:
    """The library that quantised the weights of a network, as its config or the classes of its weights say; empty if none did.

    >>> quantisation_method(nn.Linear(2, 2))
    ''
    """
    settings = getattr(getattr(network, "config", None), "quantization_config", None)
    method = getattr(settings, "quant_method", None)
    if method is not None:
        return str(getattr(method, "value", method))
    module = next(quantised_modules(network), None)
    return "" if module is None else type(module).__module__.split(".")[0]


def quantised_modules(network: nn.Module) -> Iterator[Any]:
    """The linear modules of a network whose weights are quantised while it runs."""
    modules = (module for module in modules_of(network) if not is_adapter_layer(module))
    return (module for module in modules if hasattr(module, "in_features") and is_quantised(module))


def copy_modules(network: Any) -> Any:
    """The same modules over the same weights. Quantised modules are shared, because they store more than their weights."""
    return copy_sharing_weights(network, quantised_modules(network))


def dequantise(module: Any) -> tuple[Float[Tensor, "out in"], Tensor | None]:
    """The weight and the bias of a quantised module, in float32 or better."""
    try:
        with torch.no_grad():
            weight = _dequantised_weight(module)
            return _weight_of_outputs(module) if weight is None else (weight, getattr(module, "bias", None))
    except Exception as error:  # a kernel may raise anything
        raise RheoscopeError(
            Message(
                "a {kind} is quantised and its weights cannot be computed here ({reason}); load the model without quantisation",
                kind=type(module).__name__,
                reason=one_line(error),
            )
        ) from error


def _dequantised_weight(module: Any) -> Float[Tensor, "out in"] | None:
    """The weight by the library's own function, or None if it has none that is known here."""
    weight: Any = getattr(module, "weight", None)
    if type(weight).__name__ in ("Int8Params", "Params4bit") and "bitsandbytes" in sys.modules:
        from transformers.integrations.bitsandbytes import dequantize_bnb_weight

        return at_least_float32(dequantize_bnb_weight(weight, getattr(module, "state", None)))
    if hasattr(weight, "__tensor_flatten__"):  # a tensor subclass, as torchao writes them
        return at_least_float32(weight.dequantize())
    return None


def _weight_of_outputs(module: Any) -> tuple[Float[Tensor, "out in"], Float[Tensor, " out"]]:
    """The weight and the bias of a linear map, from its outputs for the unit vectors and for 0."""
    device = next((x.device for x in [*module.parameters(), *module.buffers()]), torch.device("cpu"))
    dtype = _input_dtype(module, device)
    identity = torch.eye(module.in_features, dtype=dtype, device=device)
    bias = module(torch.zeros_like(identity[None, :1]))[0, 0].float()
    rows = [module(block[None])[0].float() - bias for block in identity.split(ROWS_PER_PRODUCT)]
    return torch.cat(rows).T.contiguous(), bias


def _input_dtype(module: Any, device: torch.device) -> torch.dtype:
    """The first dtype of inputs that a module takes."""
    problem: Exception | None = None
    for dtype in INPUT_DTYPES:
        try:
            module(torch.zeros(1, 1, module.in_features, dtype=dtype, device=device))
            return dtype
        except Exception as error:  # a kernel may raise anything
            problem = problem or error
    assert problem is not None
    raise problem

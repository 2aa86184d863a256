"""Plain products in place of layers with adapters and of quantised layers, so that a tape shows the matrix with which each acts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from rheoscope.pretrained.adapter_layers import is_adapter_layer, stored_module
from rheoscope.pretrained.effective_weights import effective_weights
from rheoscope.pretrained.quantised_weights import is_quantised
from rheoscope.running.shared_patch import replace_method


@contextmanager
def plain_products(network: nn.Module) -> Iterator[None]:
    """Inside, layers with adapters and quantised layers compute x Wᵀ + b with their effective weights. Others stay as they are."""
    layers = [layer for layer in list(network.modules()) if is_converted(layer)]
    inner_layers = {inner for layer in layers for inner in layer.modules() if inner is not layer}
    undo = [
        replace_method(layer, "forward", plain_forward(layer, _dtype(network)))
        for layer in layers
        if layer not in inner_layers
    ]
    try:
        yield
    finally:
        for restore in undo:
            restore()


def is_converted(module: Any) -> bool:
    """Whether a module is a linear map whose weight is not stored as one matrix of numbers.

    >>> is_converted(nn.Linear(2, 2))
    False
    """
    stored = stored_module(module)
    is_linear = hasattr(stored, "in_features") or type(stored).__name__ == "Conv1D"
    return is_linear and (is_adapter_layer(module) or is_quantised(module))


def plain_forward(layer: Any, dtype: torch.dtype) -> Callable[..., Tensor]:
    """The same linear map as one product. Dequantised weights get a dtype, since a network may have many."""
    weight, bias = effective_weights(layer)
    weight = weight.detach()
    if is_quantised(stored_module(layer)):
        weight = weight.to(dtype)
    bias = None if bias is None else bias.detach().to(weight.dtype)

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return linear(x.to(weight.dtype), weight, bias).to(x.dtype)

    return forward


def _dtype(network: Any) -> torch.dtype:
    """The dtype in which a network computes."""
    dtype: torch.dtype = effective_weights(network.get_input_embeddings()).weight.dtype
    return dtype

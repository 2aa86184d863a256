"""Networks whose linear layers have weights of few bits."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tests.pretrained.cases import network

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj")


class Int8Linear(nn.Module):
    """A linear layer with weights of `bits`, in 8 bits each, and inputs rounded to multiples of `grid` of their largest value."""

    def __init__(self, linear: nn.Linear, grid: float = 0.0, bits: int = 8) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias, self.grid = (
            linear.in_features,
            linear.out_features,
            linear.bias,
            grid,
        )
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        self.register_buffer("scale", scale)
        self.register_buffer("codes", (linear.weight.detach() / scale).round().to(torch.int8))

    def numbers(self) -> Tensor:
        return self.codes * self.scale

    def forward(self, x: Tensor) -> Tensor:
        step = x.abs().amax(-1, keepdim=True) * self.grid
        rounded = x if not self.grid else (x / step.clamp(min=1e-9)).round() * step
        return nn.functional.linear(rounded, self.numbers(), self.bias)


def quantised(name: str = "llama", grid: float = 0.0, bits: int = 8) -> Any:
    """A case with every projection of attention, and one of the MLP, in 8 bits or fewer."""
    net = copy.deepcopy(network(name))
    for module in list(net.modules()):
        for child_name, child in list(module.named_children()):
            if child_name in PROJECTIONS:
                setattr(module, child_name, Int8Linear(child, grid, bits))
    return net


def dequantised(net: Any) -> Any:
    """The same network with plain linear layers."""
    plain = copy.deepcopy(net)
    for module in list(plain.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Int8Linear):
                linear = nn.Linear(child.in_features, child.out_features, child.bias is not None)
                linear.weight, linear.bias = nn.Parameter(child.numbers()), child.bias
                setattr(module, name, linear)
    return plain

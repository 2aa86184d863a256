"""What a caller could notice about a network, to test that calls leave it unchanged."""

from typing import Any

import torch
from torch import nn

OUTDATED = "the weights of this model have changed"
"""The beginning of the error of a model whose weights have changed."""


def state_of(net: nn.Module) -> dict[str, Any]:
    """Everything that a caller could notice: modes, tensors with their values, and hooks."""
    tensors = dict([*net.named_parameters(), *net.named_buffers()])
    return {
        "modes": [module.training for module in net.modules()],
        "attributes": [set(vars(module)) for module in net.modules()],
        "tensors": {
            name: (id(x), x.dtype, x.device, x.requires_grad, x.detach().clone().view(torch.uint8))
            for name, x in tensors.items()
            if x.ndim
        },
        "hooks": [
            list(hooks.values())
            for module in net.modules()
            for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        ],
    }


def same_state(before: dict[str, Any], after: dict[str, Any]) -> bool:
    a, b = before.pop("tensors"), after.pop("tensors")
    same_tensors = a.keys() == b.keys() and all(
        a[name][:-1] == b[name][:-1] and torch.equal(a[name][-1], b[name][-1]) for name in a
    )
    return same_tensors and before == after

"""Copies of a network, which leave the network itself as it is: on another device, in another dtype, or sharing its weights."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from rheoscope.attention.memory import check_free_memory
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.running.network_walk import parameters_of
from rheoscope.shapes import RheoscopeError


def copy_if_needed(
    network: Any, device: torch.device, dtype: torch.dtype | None, buffer_suffixes: tuple[str, ...]
) -> Any:
    """The network itself if its weights have this device and dtype, else a copy of it in evaluation mode.

    Buffers whose names end with `buffer_suffixes` keep their dtype. Tied weights stay tied.

    >>> linear = nn.Linear(2, 2).bfloat16()
    >>> copy_if_needed(linear, torch.device("cpu"), torch.float32, ()).weight.dtype, linear.weight.dtype
    (torch.float32, torch.bfloat16)
    """
    buffers = dict(network.named_buffers())
    fixed = {id(x) for name, x in buffers.items() if name.endswith(buffer_suffixes)}
    tensors = {id(x): x for x in [*parameters_of(network), *buffers.values()]}
    targets = {
        key: (device, dtype if x.is_floating_point() and key not in fixed and dtype is not None else x.dtype)
        for key, x in tensors.items()
    }
    if all((x.device, x.dtype) == targets[key] for key, x in tensors.items()):
        return network
    size = sum(x.numel() * targets[key][1].itemsize for key, x in tensors.items())
    check_free_memory(Message("the model"), size, device, use(dtype="bfloat16"))
    copies = {key: _copy_tensor(x, *targets[key]) for key, x in tensors.items()}
    return _copy_modules(network, copies).eval()


def copy_sharing_weights(network: Any, shared_modules: Iterable[nn.Module] = ()) -> Any:
    """The same modules over the same weights: modules of the copy can be replaced, and it follows when the weights are trained.

    `shared_modules` are not copied but occur in both networks.

    >>> linear = nn.Linear(2, 2)
    >>> copy_sharing_weights(linear).weight is linear.weight
    True
    """
    return _copy_modules(network, {id(x): x for x in [*network.parameters(), *network.buffers(), *shared_modules]})


def _copy_modules(network: Any, replacements: dict[int, Any]) -> Any:
    """A copy of all modules, in which the objects with these ids are replaced."""
    try:
        return copy.deepcopy(network, dict(replacements))
    except Exception as error:  # a module may hold anything, for example a lock or an open file
        raise RheoscopeError(
            Message(
                "cannot copy {network} ({reason}); convert it yourself to the device, the dtype and the adapter that you need",
                network=type(network).__name__,
                reason=str(error).splitlines()[0] if str(error) else type(error).__name__,
            ),
            Advice("rs.load(network.to(…))"),
        ) from error


def _copy_tensor(x: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A tensor of the same kind on a device and in a dtype, with its own memory."""
    values = x.detach().to(device, dtype, copy=True)
    return nn.Parameter(values, requires_grad=x.requires_grad) if isinstance(x, nn.Parameter) else values

"""A snapshot of the weights of a network, which detects that they have changed since they were described."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.network_walk import modules_of
from rheoscope.running.weight_files import plain_tensors
from rheoscope.shapes import RheoscopeError

PLAIN_TYPES = (Tensor, nn.Parameter)
"""The classes of tensors that hold their numbers themselves."""
SAMPLES_PER_WEIGHT = 16
"""The largest number of values of each weight that a snapshot compares."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer type of each size in bytes. NumPy has no bfloat16, and integers compare bits."""


@dataclass(eq=False)
class WeightsSnapshot:
    """The weights of a network at one time: which tensors they are, how often each was written to, and a sample of values.

    If a counter has moved, the digest of all weights decides, so weights that were restored are current again. Writes through
    `.data` do not move the counter of a tensor, so the sample finds them. The sample has at most 16 values of each
    weight at equal distances. Reading it from a GPU waits for the device. `settings` are compared too.

    >>> from rheoscope.running.weight_files import fingerprint
    >>> linear = nn.Linear(2, 2)
    >>> snapshot = take_snapshot(linear, lambda: fingerprint(linear), fingerprint(linear))
    >>> with torch.no_grad():
    ...     _ = linear.weight.add_(1)
    >>> snapshot.is_current()
    False
    """

    modules: tuple[nn.Module, ...]
    identities: list[int]
    n_writes: list[int]
    arrays: list[Any]
    device_tensors: list[Tensor]
    values: bytes
    device_values: bytes
    digest: Callable[[], str]
    described_digest: str
    settings: Callable[[], Any]
    described_settings: Any

    def is_current(self, reads_device: bool = True) -> bool:
        """Whether nothing has changed, as far as the counters and the sample can see."""
        identities, n_writes = weight_identities(self.modules)
        if self.settings() != self.described_settings:
            return False
        if identities != self.identities or (n_writes != self.n_writes and self.digest() != self.described_digest):
            return False
        self.n_writes = n_writes
        return read_arrays(self.arrays) == self.values and (
            not reads_device or read_device(self.device_tensors) == self.device_values
        )

    def check(self, reads_device: bool = True) -> None:
        """Raise if the weights have changed. `reads_device=False` does not wait for a GPU."""
        if not self.is_current(reads_device):
            raise RheoscopeError(
                Message("the weights of this model have changed since it was loaded, so its M and F are out of date"),
                Advice("model = rs.load(model.network, tokenizer=model.tokenizer)"),
            )


def read_arrays(arrays: list[Any]) -> bytes:
    return b"".join([array.tobytes() for array in arrays])


def read_device(tensors: list[Tensor]) -> bytes:
    """The values of tensors on other devices, with one transfer for each device and type."""
    groups: dict[Any, list[Tensor]] = {}
    for x in tensors:
        groups.setdefault((x.device, x.dtype), []).append(x)
    return b"".join(torch.cat(group).cpu().numpy().tobytes() for group in groups.values())


def take_snapshot(
    network: nn.Module,
    digest: Callable[[], str],
    described_digest: str,
    reads_gpu: bool = True,
    settings: Callable[[], Any] = lambda: None,
) -> WeightsSnapshot:
    """The snapshot of a network in its current state. `digest()` computes what was `described_digest` when it was described.

    `settings()` returns what the description depends on besides the weights, for example which adapters are active.
    """
    modules = tuple(modules_of(network))
    weights = [sample_of(x) for module in modules for x in persistent_tensors(module) if x.numel()]
    arrays = [x.numpy() for x in weights if x.device.type == "cpu"]
    on_device = [x for x in weights if x.device.type != "cpu"] if reads_gpu else []
    identities, n_writes = weight_identities(modules)
    values, device_values = read_arrays(arrays), read_device(on_device)
    return WeightsSnapshot(
        modules,
        identities,
        n_writes,
        arrays,
        on_device,
        values,
        device_values,
        digest,
        described_digest,
        settings,
        settings(),
    )


def persistent_tensors(module: nn.Module) -> list[Tensor]:
    """The parameters and stored buffers of one module. Buffers that are not stored may change in a forward pass."""
    tensors: list[Tensor] = [x for x in module._parameters.values() if x is not None]
    if module._buffers:
        temporary = module._non_persistent_buffers_set
        tensors += [x for name, x in module._buffers.items() if x is not None and name not in temporary]
    if all(type(x) in PLAIN_TYPES for x in tensors):
        return tensors
    return [inner for x in tensors for inner in plain_tensors(x)]


def weight_identities(modules: tuple[nn.Module, ...]) -> tuple[list[int], list[int]]:
    """The identities of all submodules and weights with the addresses of the weights, and the number of writes to each."""
    identities: list[int] = []
    n_writes: list[int] = []
    for module in modules:
        identities += map(id, module._modules.values())
        for x in persistent_tensors(module):
            identities += id(x), x.data_ptr()
            n_writes.append(-1 if x.is_inference() else x._version)
    return identities, n_writes


def sample_of(x: Tensor) -> Tensor:
    """At most 16 values of a tensor at equal distances in memory, as a view of its bytes."""
    values = x.detach()
    if x.is_contiguous():
        sample = values.view(-1)[:: -(-x.numel() // SAMPLES_PER_WEIGHT)]
    else:  # by steps along its longest dimension, since a copy would not see later writes
        longest = max(range(x.ndim), key=lambda dim: x.shape[dim])
        first_row = values[tuple(slice(None) if dim == longest else 0 for dim in range(x.ndim))]
        sample = first_row[:: -(-len(first_row) // SAMPLES_PER_WEIGHT)]
    return sample.view(INTEGERS[sample.dtype.itemsize]) if sample.dtype.itemsize in INTEGERS else sample

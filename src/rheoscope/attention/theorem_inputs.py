"""Random inputs on which theorems are measured."""

import torch
from torch import Generator, Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.parameters import tensors_by_path, with_tensors


def random_normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


def to_float64(instance: Mechanism) -> Mechanism:
    return with_tensors(instance, {path: x.double() for path, x in tensors_by_path(instance).items()})

"""Every model of the tests, whoever made it: those of Hugging Face (tests/pretrained) and our own (tests/models)."""

from typing import Any

import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.models import certificate as of_ours
from rheoscope.pretrained import certificate as of_theirs
from tests.models import cases as ours
from tests.pretrained import cases as theirs
from tests.pretrained.cases import LENGTH, distance, gap, once, random, text

EVERY = [*theirs.EVERY, *ours.EVERY]
KINDS = [*theirs.KINDS, *ours.KINDS]
BIDIRECTIONAL = theirs.BIDIRECTIONAL | ours.BIDIRECTIONAL
POST_NORM = theirs.POST_NORM | ours.POST_NORM
PARALLEL = theirs.PARALLEL
CAUSAL = [name for name in EVERY if name not in BIDIRECTIONAL]
WITH_LOGITS = [*theirs.WITH_LOGITS, *ours.EVERY]
WITH_M = [*theirs.EVERY, *ours.WITH_M]
DOT = [*theirs.EVERY, *ours.DOT]
SOFTMAX = [*theirs.EVERY, *(name for name in ours.EVERY if ours.CASES[name].mechanism in {"scaled_dot", "metric"})]
TURNING = [*theirs.ISLANDS, *(name for name in ours.EVERY if ours.CASES[name].position == "rotary")]
"""Models whose positions turn queries and keys (every_family.py compares with the models themselves)."""
PADDED = [name for name in EVERY if name not in ours.UNMASKED]
F32 = torch.float32


def of(name: str) -> Any:
    """The room of tests that a case belongs to."""
    return ours if name in ours.CASES else theirs


def network(name: str, dtype: torch.dtype = F32) -> Any:
    return of(name).network(name, dtype)


def model(name: str, dtype: torch.dtype = F32) -> Any:
    return of(name).model(name, dtype)


def double(name: str) -> Any:
    return model(name, torch.float64)


def traced(name: str, dtype: torch.dtype = F32, seed: int = 0, n: int = LENGTH) -> Any:
    return of(name).traced(name, dtype, seed, n)


def untouched(name: str, ids: Tensor) -> Tensor:
    return of(name).untouched(name, ids)


@once
def default() -> Any:
    """The model that comes with Rheoscope, opened once. Shared: change nothing in it."""
    return rs.load()


def seen(name: str, dtype: torch.dtype = F32) -> Any:
    return of(name).seen(name, dtype)


def stream(name: str, ids: Tensor) -> list[Tensor]:
    """The embedding, then the stream after each layer, as the network itself lists them."""
    return of(name).stream(name, ids)


def eager(name: str, ids: Tensor) -> Any:
    """A trace, and the weights by the model's own reference attention on it."""
    return (of_ours if name in ours.CASES else of_theirs).attended(model(name), ids)


__all__ = [
    "BIDIRECTIONAL", "CAUSAL", "DOT", "EVERY", "KINDS", "LENGTH", "PADDED", "PARALLEL", "POST_NORM", "SOFTMAX",
    "TURNING", "WITH_LOGITS", "WITH_M", "default", "distance", "double", "eager", "gap", "model", "network", "of", "ours", "random",
    "seen",
    "stream", "text", "theirs", "traced", "untouched",
]  # fmt: skip

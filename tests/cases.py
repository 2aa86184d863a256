"""Every model of the tests: those of Hugging Face (tests/pretrained) and our own (tests/models)."""

from typing import Any

import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.models import certificate as our_certificate
from rheoscope.pretrained import certificate as their_certificate
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
ROTARY = [*theirs.ISLANDS, *(name for name in ours.EVERY if ours.CASES[name].position == "rotary")]
"""Models with rotary positions (every_family.py compares with the models themselves)."""
PADDED = [name for name in EVERY if name not in ours.UNMASKED]
F32 = torch.float32


def case_module(name: str) -> Any:
    """The test module that defines a case."""
    return ours if name in ours.CASES else theirs


def network(name: str, dtype: torch.dtype = F32) -> Any:
    return case_module(name).network(name, dtype)


def model(name: str, dtype: torch.dtype = F32) -> Any:
    return case_module(name).model(name, dtype)


def double(name: str) -> Any:
    return model(name, torch.float64)


def traced(name: str, dtype: torch.dtype = F32, seed: int = 0, n: int = LENGTH) -> Any:
    return case_module(name).traced(name, dtype, seed, n)


def untouched(name: str, ids: Tensor) -> Tensor:
    return case_module(name).untouched(name, ids)


@once
def default() -> Any:
    """The default model of Rheoscope, loaded once and shared: tests must not change it."""
    return rs.load()


def seen(name: str, dtype: torch.dtype = F32) -> Any:
    return case_module(name).seen(name, dtype)


def stream(name: str, ids: Tensor) -> list[Tensor]:
    """The embedding, then the stream after each layer, as returned by the network itself."""
    return case_module(name).stream(name, ids)


def eager(name: str, ids: Tensor) -> Any:
    """A trace, and the weights of the model's own reference attention on it."""
    if name in ours.CASES:
        return our_certificate.trace_and_weights(model(name), ids)
    return their_certificate.trace_eager(model(name), ids)


__all__ = [
    "BIDIRECTIONAL", "CAUSAL", "DOT", "EVERY", "KINDS", "LENGTH", "PADDED", "PARALLEL", "POST_NORM", "SOFTMAX",
    "ROTARY", "WITH_LOGITS", "WITH_M", "case_module", "default", "distance", "double", "eager", "gap", "model", "network", "ours",
    "random", "seen",
    "stream", "text", "theirs", "traced", "untouched",
]  # fmt: skip

"""What the attention tests share: mechanisms, masks, positions and inputs, all from a seed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Generator, Tensor

from rheoscope.attention.additive import Additive
from rheoscope.attention.definition import reference
from rheoscope.attention.feature_maps import Linear, Tanh
from rheoscope.attention.kernel_score import Polynomial
from rheoscope.attention.lower.choice import LOWERINGS
from rheoscope.attention.lower.lowering import Offer
from rheoscope.attention.mask import Causal, Document, Mask, NoMask, Padding, Prefix, Table, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.entmax import Entmax
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.sigmoid import Sigmoid
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.parameters import tensors, with_tensors
from rheoscope.attention.position import (
    ALiBi,
    Bias,
    Buckets,
    Learned,
    NoPosition,
    Position,
    Rotary,
    Sinusoidal,
    Together,
    alibi_slopes,
)
from rheoscope.attention.score import Distance, Gram, Relation, SoftCap
from rheoscope.attention.zoo import ZOO

Inputs = tuple[Tensor, Tensor, Tensor]


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def coins(seed: int, *shape: int, share: float = 0.6) -> Tensor:
    return torch.rand(*shape, generator=Generator().manual_seed(seed)) < share


def inputs(
    m: int = 5,
    n: int = 5,
    d: int = 6,
    e: int = 3,
    b: int = 2,
    h: int = 4,
    g: int = 2,
    seed: int = 0,
    scale: float = 1.0,
) -> Inputs:
    """q, k, v in float64; `scale` stretches q and k."""
    return scale * random(seed, b, h, m, d), scale * random(seed + 1, b, g, n, d), random(seed + 2, b, g, n, e)


def constructed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is put together from now on, of those whose defaults are values: torch.compile (2.11) breaks its graph there."""
    made: list[str] = []
    for kind in (Mechanism, Gram, Relation, Distance):

        def told(self: object, *given: object, own: Callable[..., None] = kind.__init__, **named: object) -> None:
            made.append(type(self).__name__)
            own(self, *given, **named)

        monkeypatch.setattr(kind, "__init__", told)
    return made


def in_dtype(mechanism: Mechanism, dtype: torch.dtype) -> Mechanism:
    return with_tensors(mechanism, {at: x.to(dtype) for at, x in tensors(mechanism).items() if x.is_floating_point()})


def stirred(mechanism: Mechanism, seed: int = 7) -> Mechanism:
    """Its own tensors moved at random: a B or a root that starts as the identity hides every transposition."""
    held = {at: x.double() for at, x in tensors(mechanism).items() if x.is_floating_point()}
    return with_tensors(mechanism, {at: x + nudge(seed + c, x) for c, (at, x) in enumerate(held.items())})


def nudge(seed: int, x: Tensor) -> Tensor:
    """Small beside a matrix that keeps the size of its rows, so that scores stay of order 1."""
    return 0.4 * random(seed, *x.shape) * x.shape[-2 if x.ndim > 1 else -1] ** -0.5


def made(name: str, dim: int = 6) -> Mechanism:
    """A mechanism of the zoo in float64, by nothing but its row."""
    row = ZOO[name]
    return stirred(row(dim=dim) if row.needs_dim else row())


HEADS, DIM, OUT = 4, 6, 3


def wave(q: Tensor, k: Tensor) -> Tensor:
    """A score that no part of ours is."""
    return 2 * torch.sin(q @ k.mT) + q[..., :1] * k[..., -1:].mT


def bent(v: Tensor) -> Tensor:
    return torch.cat([v.sin(), v.square()[..., :2]], -1)


COMPOSED: dict[str, Callable[[], Mechanism]] = {
    "soft-capped dot": lambda: Mechanism(SoftCap(Gram(), 0.7)),
    "soft-capped map": lambda: replace(made("metric_map"), score=SoftCap(made("metric_map").score, 2.0)),
    "sink a head": lambda: replace(made("softmax_sink"), normaliser=Sink(random(3, HEADS))),
    "sink shared": lambda: replace(made("softmax_sink"), normaliser=Sink(random(3, 1))),
    "bilinear a head": lambda: Mechanism(Relation(Linear(random(4, HEADS, DIM, 5)), Linear(random(5, HEADS, DIM, 5)))),
    "additive a head": lambda: Mechanism(
        Additive(random(4, HEADS, DIM, 5), random(5, HEADS, DIM, 5), random(6, HEADS, 5, 1))
    ),
    "value map": lambda: Mechanism(value=Linear(random(4, OUT, 5))),
    "value map, linear": lambda: replace(
        made("linear"), value=Tanh(random(4, OUT, 5), random(5, 1, 5), random(6, 5, 2))
    ),
    "value map, shaped": lambda: replace(made("shaped"), value=Linear(random(4, HEADS, OUT, 2))),
    "other parts of shaped": lambda: replace(made("shaped"), normaliser=Shaped(0.5, 2.0, 0.3)),
    "sigmoid with a bias": lambda: replace(made("sigmoid"), normaliser=Sigmoid(-1.5)),
    "polynomial of degree 4": lambda: Mechanism(Polynomial(4, scale=0.3, offset=0.2)),
    "negative scale": lambda: Mechanism(Gram(scale=-0.5)),
    "no scale": lambda: Mechanism(Gram(scale=0.0)),
    "functions": lambda: Mechanism(score=wave, value=bent),
    "functions, sparse": lambda: Mechanism(score=wave, normaliser=Entmax(1.5), value=bent),
}
"""Mechanisms that no row of the zoo makes, for tensors of h = 4 heads, d = 6, e = 3."""

EVERY = [*ZOO, *COMPOSED]


def any_mechanism(name: str) -> Mechanism:
    return COMPOSED[name]() if name in COMPOSED else made(name)


POSITIONS: dict[str, Callable[[int, int], Position]] = {
    "none": lambda m, n: NoPosition(),
    "rotary": lambda m, n: Rotary(),
    "rotary neighbours": lambda m, n: Rotary(pairs="neighbours", width=4, base=100.0),
    "alibi": lambda m, n: ALiBi(alibi_slopes(HEADS).double()),
    "sinusoidal": lambda m, n: Sinusoidal(),
    "learned": lambda m, n: Learned(random(11, 12, DIM)),
    "buckets": lambda m, n: Buckets(random(12, 8, HEADS), max_distance=6),
    "buckets back": lambda m, n: Buckets(random(12, 6, HEADS), max_distance=7, bidirectional=False),
    "bias": lambda m, n: Bias(random(13, HEADS, m, n)),
    "bias a text": lambda m, n: Bias(random(13, 2, HEADS, m, n)),
    "together": lambda m, n: Together(
        Together(Rotary(), Learned(random(14, 12, DIM))), ALiBi(alibi_slopes(HEADS).double())
    ),
}
"""Every position, for h = 4 heads, d = 6, 2 texts."""


def _with_empty_rows(table: Tensor) -> Table:
    table[..., 0, :] = False
    return Table(table)


MASKS: dict[str, Callable[[int, int], Mask]] = {
    "none": lambda m, n: NoMask(),
    "causal": lambda m, n: Causal(),
    "sliding": lambda m, n: Causal() & Window(3),
    "window": lambda m, n: Window(2),
    "prefix": lambda m, n: Prefix(3),
    "document": lambda m, n: Document(coins(21, 2, n).long()),
    "padding": lambda m, n: Padding(coins(22, 2, n) & torch.tensor([[True], [False]])),
    "causal padding": lambda m, n: Causal() & Padding(coins(23, 2, n)),
    "table": lambda m, n: _with_empty_rows(coins(24, m, n, share=0.4)),
    "table a text": lambda m, n: _with_empty_rows(coins(25, 2, m, n)),
    "table a head": lambda m, n: _with_empty_rows(coins(26, 2, HEADS, m, n)),
}
"""Every mask, for h = 4 heads, 2 texts; a text of `padding` is empty, and so is a row of each table."""


def allows(mechanism: Mechanism, mask: Mask, m: int, n: int) -> bool:
    if not mechanism.domain.masked and not mask.forbids_nothing:
        return False
    return not (mechanism.domain.square and m != n) and not (isinstance(mask, Document) and m > n)


def lowerings(
    mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor
) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Every implementation that offers to run this call, by name."""
    answers = {name: offer(mechanism, q, k, v) for name, offer in LOWERINGS.items()}
    return {name: partial(answer.run, mechanism) for name, answer in answers.items() if isinstance(answer, Offer)}


def gradients(run: Callable[..., Tensor], mechanism: Mechanism, inputs: Inputs, g: Tensor) -> dict[str, Tensor]:
    """By autograd: dL/dq, dL/dk, dL/dv and of the mechanism's own tensors, for L = <g, run(mechanism, q, k, v)>."""
    named = dict(zip("qkv", inputs, strict=True))
    own = {at: x for at, x in tensors(mechanism).items() if x.is_floating_point()}
    leaves = {at: x.detach().clone().requires_grad_() for at, x in (named | own).items()}
    out = run(with_tensors(mechanism, {at: leaves[at] for at in own}), *(leaves[c] for c in "qkv"))
    found = torch.autograd.grad(out, list(leaves.values()), g.to(out.dtype), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def by_reference(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return reference(mechanism, q, k, v)[0]


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest number of b (absolute below 1); NaN never passes a bound."""
    assert a.shape == b.shape, f"{tuple(a.shape)} is not {tuple(b.shape)}"
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).abs().max()) / max(1.0, float(b.abs().max()))


@contextmanager
def as_users_run() -> Iterator[None]:
    """Without jaxtyping's checks, which only tests switch on and which would answer before the package does."""
    from jaxtyping import config

    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)

"""Shared test cases for attention: seeded mechanisms, masks, positions and inputs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Generator, Tensor

from rheoscope.attention.additive import Additive
from rheoscope.attention.definition import reference_attention
from rheoscope.attention.feature_maps import Linear, Tanh
from rheoscope.attention.kernel_score import Polynomial
from rheoscope.attention.lower.choice import LOWERINGS
from rheoscope.attention.lower.lowering import LoweredCall
from rheoscope.attention.mask import BooleanMask, Causal, Chunks, Mask, NoMask, Padding, Prefix, SameDocument, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.entmax import Entmax
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.sigmoid import Sigmoid
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.parameters import tensors_by_path, with_tensors
from rheoscope.attention.position import CombinedPosition, LearnedPosition, NoPosition, Position, Rotary, Sinusoidal
from rheoscope.attention.position_bias import ALiBi, Bias, Buckets, alibi_slopes
from rheoscope.attention.score import Distance, Gram, Relation, SoftCap
from rheoscope.attention.zoo import ZOO

Inputs = tuple[Tensor, Tensor, Tensor]


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def random_booleans(seed: int, *shape: int, probability: float = 0.6) -> Tensor:
    return torch.rand(*shape, generator=Generator().manual_seed(seed)) < probability


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
    """q, k, v in float64; `scale` multiplies q and k."""
    return scale * random(seed, b, h, m, d), scale * random(seed + 1, b, g, n, d), random(seed + 2, b, g, n, e)


def record_constructions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record constructor calls of classes with dataclass defaults, at which torch.compile (2.11) breaks its graph."""
    constructions: list[str] = []
    for part_type in (Mechanism, Gram, Relation, Distance):

        def record(
            self: object, *args: object, original: Callable[..., None] = part_type.__init__, **kwargs: object
        ) -> None:
            constructions.append(type(self).__name__)
            original(self, *args, **kwargs)

        monkeypatch.setattr(part_type, "__init__", record)
    return constructions


def to_dtype(mechanism: Mechanism, dtype: torch.dtype) -> Mechanism:
    return with_tensors(
        mechanism, {path: x.to(dtype) for path, x in tensors_by_path(mechanism).items() if x.is_floating_point()}
    )


def perturb_tensors(mechanism: Mechanism, seed: int = 7) -> Mechanism:
    """The mechanism with randomly perturbed tensors: an identity B or root would hide a wrong transposition."""
    tensors = {path: x.double() for path, x in tensors_by_path(mechanism).items() if x.is_floating_point()}
    return with_tensors(mechanism, {path: x + perturbation(seed + c, x) for c, (path, x) in enumerate(tensors.items())})


def perturbation(seed: int, x: Tensor) -> Tensor:
    """Small compared with a norm-preserving matrix, so that scores stay of order 1."""
    return 0.4 * random(seed, *x.shape) * x.shape[-2 if x.ndim > 1 else -1] ** -0.5


def zoo_mechanism(name: str, dim: int = 6) -> Mechanism:
    """A mechanism of the zoo in float64 with perturbed tensors."""
    entry = ZOO[name]
    return perturb_tensors(entry(dim=dim) if entry.needs_dim else entry())


HEADS, DIM, OUT = 4, 6, 3


def wave(q: Tensor, k: Tensor) -> Tensor:
    """A score that no built-in part computes."""
    return 2 * torch.sin(q @ k.mT) + q[..., :1] * k[..., -1:].mT


def curved_values(v: Tensor) -> Tensor:
    return torch.cat([v.sin(), v.square()[..., :2]], -1)


COMPOSED: dict[str, Callable[[], Mechanism]] = {
    "soft-capped dot": lambda: Mechanism(SoftCap(Gram(), 0.7)),
    "soft-capped map": lambda: replace(
        zoo_mechanism("metric_map"), score=SoftCap(zoo_mechanism("metric_map").score, 2.0)
    ),
    "sink per head": lambda: replace(zoo_mechanism("softmax_sink"), normaliser=Sink(random(3, HEADS))),
    "sink shared": lambda: replace(zoo_mechanism("softmax_sink"), normaliser=Sink(random(3, 1))),
    "bilinear per head": lambda: Mechanism(
        Relation(Linear(random(4, HEADS, DIM, 5)), Linear(random(5, HEADS, DIM, 5)))
    ),
    "additive per head": lambda: Mechanism(
        Additive(random(4, HEADS, DIM, 5), random(5, HEADS, DIM, 5), random(6, HEADS, 5, 1))
    ),
    "value map": lambda: Mechanism(value=Linear(random(4, OUT, 5))),
    "value map, linear": lambda: replace(
        zoo_mechanism("linear"), value=Tanh(random(4, OUT, 5), random(5, 1, 5), random(6, 5, 2))
    ),
    "value map, shaped": lambda: replace(zoo_mechanism("shaped"), value=Linear(random(4, HEADS, OUT, 2))),
    "shaped with other coefficients": lambda: replace(zoo_mechanism("shaped"), normaliser=Shaped(0.5, 2.0, 0.3)),
    "sigmoid with a bias": lambda: replace(zoo_mechanism("sigmoid"), normaliser=Sigmoid(-1.5)),
    "polynomial of degree 4": lambda: Mechanism(Polynomial(4, scale=0.3, offset=0.2)),
    "negative scale": lambda: Mechanism(Gram(scale=-0.5)),
    "zero scale": lambda: Mechanism(Gram(scale=0.0)),
    "functions": lambda: Mechanism(score=wave, value=curved_values),
    "functions, sparse": lambda: Mechanism(score=wave, normaliser=Entmax(1.5), value=curved_values),
}
"""Mechanisms outside the zoo, for inputs of h = 4 heads, d = 6, e = 3."""

MECHANISM_NAMES = [*ZOO, *COMPOSED]


def any_mechanism(name: str) -> Mechanism:
    return COMPOSED[name]() if name in COMPOSED else zoo_mechanism(name)


POSITIONS: dict[str, Callable[[int, int], Position]] = {
    "none": lambda m, n: NoPosition(),
    "rotary": lambda m, n: Rotary(),
    "rotary neighbours": lambda m, n: Rotary(pairs="neighbours", width=4, base=100.0),
    "alibi": lambda m, n: ALiBi(alibi_slopes(HEADS).double()),
    "sinusoidal": lambda m, n: Sinusoidal(),
    "learned": lambda m, n: LearnedPosition(random(11, 12, DIM)),
    "buckets": lambda m, n: Buckets(random(12, 8, HEADS), max_distance=6),
    "causal buckets": lambda m, n: Buckets(random(12, 6, HEADS), max_distance=7, bidirectional=False),
    "bias": lambda m, n: Bias(random(13, HEADS, m, n)),
    "bias per text": lambda m, n: Bias(random(13, 2, HEADS, m, n)),
    "combined": lambda m, n: CombinedPosition(
        CombinedPosition(Rotary(), LearnedPosition(random(14, 12, DIM))), ALiBi(alibi_slopes(HEADS).double())
    ),
}
"""Every position, for h = 4 heads, d = 6 and 2 texts."""


def _with_empty_rows(table: Tensor) -> BooleanMask:
    table[..., 0, :] = False
    return BooleanMask(table)


MASKS: dict[str, Callable[[int, int], Mask]] = {
    "none": lambda m, n: NoMask(),
    "causal": lambda m, n: Causal(),
    "sliding": lambda m, n: Causal() & Window(3),
    "window": lambda m, n: Window(2),
    "chunks": lambda m, n: Chunks(3),
    "prefix": lambda m, n: Prefix(3),
    "document": lambda m, n: SameDocument(random_booleans(21, 2, n).long()),
    "padding": lambda m, n: Padding(random_booleans(22, 2, n) & torch.tensor([[True], [False]])),
    "causal padding": lambda m, n: Causal() & Padding(random_booleans(23, 2, n)),
    "table": lambda m, n: _with_empty_rows(random_booleans(24, m, n, probability=0.4)),
    "table per text": lambda m, n: _with_empty_rows(random_booleans(25, 2, m, n)),
    "table per head": lambda m, n: _with_empty_rows(random_booleans(26, 2, HEADS, m, n)),
}
"""Every mask, for h = 4 heads and 2 texts; `padding` has an empty text and each table an empty row."""


def allows(mechanism: Mechanism, mask: Mask, m: int, n: int) -> bool:
    if not mechanism.domain.allows_masks and not mask.allows_all:
        return False
    return not (mechanism.domain.requires_square and m != n) and not (isinstance(mask, SameDocument) and m > n)


def lowerings(
    mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor
) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Every lowering that accepts this call, by name."""
    outcomes = {name: try_lower(mechanism, q, k, v) for name, try_lower in LOWERINGS.items()}
    return {
        name: partial(outcome.run, mechanism) for name, outcome in outcomes.items() if isinstance(outcome, LoweredCall)
    }


def gradients(run: Callable[..., Tensor], mechanism: Mechanism, inputs: Inputs, g: Tensor) -> dict[str, Tensor]:
    """Gradients of q, k, v and of the mechanism's tensors by autograd, for L = <g, run(mechanism, q, k, v)>."""
    qkv = dict(zip("qkv", inputs, strict=True))
    tensors = {path: x for path, x in tensors_by_path(mechanism).items() if x.is_floating_point()}
    leaves = {path: x.detach().clone().requires_grad_() for path, x in (qkv | tensors).items()}
    out = run(with_tensors(mechanism, {path: leaves[path] for path in tensors}), *(leaves[c] for c in "qkv"))
    computed = torch.autograd.grad(out, list(leaves.values()), g.to(out.dtype), materialize_grads=True)
    return dict(zip(leaves, computed, strict=True))


def reference_output(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return reference_attention(mechanism, q, k, v)[0]


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest number of b (absolute below 1); NaN passes no bound."""
    assert a.shape == b.shape, f"{tuple(a.shape)} is not {tuple(b.shape)}"
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).abs().max()) / max(1.0, float(b.abs().max()))


@contextmanager
def without_jaxtyping_checks() -> Iterator[None]:
    """Run without jaxtyping's checks, which only tests enable and which would raise before the package does."""
    from jaxtyping import config

    was_disabled = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", was_disabled)

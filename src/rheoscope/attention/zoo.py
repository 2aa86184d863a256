"""The named mechanisms, one row each: what it computes, how to make it, the laws it declares. The only registry.

A row here is all that a new mechanism needs: the battery of laws, the gradient checks, the lowering checks, the table
of `rheoscope attention` and `attn_implementation="rheoscope:<name>"` then apply to it by themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Generator, Tensor

from rheoscope.attention.additive import Additive
from rheoscope.attention.feature_maps import EluPlusOne, Linear, Residual, Tanh, Unit
from rheoscope.attention.kernel_score import Laplace, Polynomial
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.domain import Domain
from rheoscope.attention.normaliser.entmax import Entmax
from rheoscope.attention.normaliser.hard import Hard
from rheoscope.attention.normaliser.linear import Linear as DivideBySum
from rheoscope.attention.normaliser.relu import ReLU
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.sigmoid import Sigmoid
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.score import Distance, Gram, Relation
from rheoscope.shapes import RheoscopeError

Scale = float | None


@dataclass(frozen=True)
class Named:
    """One row of the zoo: formula, maker, declared laws, source. Its domain is that of the mechanism it makes."""

    name: str
    formula: str
    make: Callable[..., Mechanism]
    laws: tuple[str, ...]
    source: str

    @property
    def needs_dim(self) -> bool:
        return "dim" in signature(self.make).parameters

    @property
    def domain(self) -> Domain:
        return self(**({"dim": 4} if self.needs_dim else {})).domain

    def __call__(self, **options: Any) -> Mechanism:
        known = signature(self.make).parameters
        for option in options:
            if option not in known:
                takes = ", ".join(known) or "no options"
                raise RheoscopeError(f"mechanism {self.name!r} has no option {option!r}; it takes {takes}")
        return self.make(**options)


def _positive(what: str, value: float) -> float:
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise RheoscopeError(f"{what} must be a positive number, got {value!r}; type {what}=1.0")
    return value


def _finite(what: str, value: float) -> float:
    if not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise RheoscopeError(f"{what} must be a finite number, got {value!r}; type {what}=1.0")
    return value


def _count(what: str, value: int, least: int, usual: int) -> int:
    if type(value) is not int or value < least:  # True is an int too
        raise RheoscopeError(f"{what} must be a whole number of {least} or more, got {value!r}; type {what}={usual}")
    return value


def _matrix(what: str, x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        came = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise RheoscopeError(
            f"{what} must be a tensor of floating-point numbers, got {came}; type {what}=torch.eye(<width of q>)"
        )
    return x


def _scale(scale: Scale) -> Scale:
    return None if scale is None else _finite("scale", scale)


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(_count("seed", seed, 0, 0))) * shape[-2] ** -0.5


def _given_or_made(what: str, given: Tensor | None, dim: int | None, make: Callable[[int], Tensor]) -> Tensor:
    if given is None and dim is None:
        raise RheoscopeError(f"this mechanism learns {what}: type dim=<width of q> to start one, or {what}=<tensor>")
    return make(_width(dim)) if given is None else _matrix(what, given)


def _tanh(seed: int, dim: int, hidden: int, out: int) -> Tanh:
    _count("hidden", hidden, 1, 32)
    _count("features", out, 1, 32)
    return Tanh(_random(seed, dim, hidden), torch.zeros(1, hidden), _random(seed + 1, hidden, out))


def _width(dim: int | None) -> int:
    if not isinstance(dim, int) or dim < 1:
        raise RheoscopeError(f"this mechanism learns maps of tokens: type dim=<width of q>, got dim={dim!r}")
    return dim


def _key_width(key_dim: int | None, dim: int) -> int:
    return dim if key_dim is None else _count("key_dim", key_dim, 1, dim)


def scaled_dot(scale: Scale = None) -> Mechanism:
    return Mechanism(Gram(scale=_scale(scale)))


def bilinear(
    dim: int | None = None, B: Tensor | None = None, scale: Scale = None, key_dim: int | None = None
) -> Mechanism:
    start = _given_or_made("B", B, dim, lambda d: torch.eye(d, _key_width(key_dim, d)))
    return Mechanism(Relation(Linear(start), scale=_scale(scale)))


def additive(dim: int | None = None, hidden: int = 32, seed: int = 0, key_dim: int | None = None) -> Mechanism:
    d, hidden = _width(dim), _count("hidden", hidden, 1, 32)
    W, at_k = _random(seed, d, hidden), _key_width(key_dim, d)
    return Mechanism(Additive(W, _random(seed + 1, at_k, hidden), _random(seed + 2, hidden, 1)))


def cosine(tau: float = 10.0) -> Mechanism:
    return Mechanism(Gram(Unit(), scale=_positive("tau", tau)))


def metric(sigma: float = 1.0) -> Mechanism:
    return Mechanism(Distance(scale=0.5 / _positive("sigma", sigma) ** 2))


def mahalanobis(dim: int | None = None, P: Tensor | None = None, root: Tensor | None = None) -> Mechanism:
    if P is not None:
        root = psd_root(P)
    return Mechanism(Distance(Linear(_given_or_made("root", root, dim, torch.eye)), scale=0.5))


def kernel_rbf(gamma: float = 0.5) -> Mechanism:
    return Mechanism(Distance(scale=_positive("gamma", gamma)))


def kernel_laplace(gamma: float = 1.0) -> Mechanism:
    return Mechanism(Laplace(_positive("gamma", gamma)))


def kernel_polynomial(degree: int = 2, scale: Scale = None, offset: float = 1.0) -> Mechanism:
    if not isinstance(degree, int) or degree < 2 or degree % 2:
        raise RheoscopeError(
            f"degree must be even and at least 2 (an odd power can be negative), got {degree!r}; type degree=2"
        )
    return Mechanism(Polynomial(degree, _scale(scale), _finite("offset", offset)))


def relation(
    dim: int | None = None, features: int = 32, hidden: int = 32, seed: int = 0, key_dim: int | None = None
) -> Mechanism:
    d = _width(dim)
    phi, at_k = _tanh(seed, d, hidden, features), _key_width(key_dim, d)
    return Mechanism(Relation(phi, _tanh(seed + 2, at_k, hidden, features)))


def symmetric_relation(dim: int | None = None, features: int = 32, hidden: int = 32, seed: int = 0) -> Mechanism:
    return Mechanism(Gram(_tanh(seed, _width(dim), hidden, features)))


def metric_map(dim: int | None = None, hidden: int = 32, seed: int = 0) -> Mechanism:
    d = _width(dim)
    return Mechanism(Distance(Residual(_tanh(seed, d, hidden, d)), scale=1.0))


def softmax_sink(sink: Tensor | float = 0.0, scale: Scale = None) -> Mechanism:
    return Mechanism(
        Gram(scale=_scale(scale)), normaliser=Sink(sink if isinstance(sink, Tensor) else _finite("sink", sink))
    )


def sigmoid(bias: float = 0.0, scale: Scale = None) -> Mechanism:
    return Mechanism(Gram(scale=_scale(scale)), normaliser=Sigmoid(_finite("bias", bias)))


def relu(scale: Scale = None) -> Mechanism:
    return Mechanism(Gram(scale=_scale(scale)), normaliser=ReLU())


def sparsemax(scale: Scale = None) -> Mechanism:
    return Mechanism(Gram(scale=_scale(scale)), normaliser=Entmax(2.0))


def entmax15(scale: Scale = None) -> Mechanism:
    return Mechanism(Gram(scale=_scale(scale)), normaliser=Entmax(1.5))


def entmax(alpha: float = 1.25, scale: Scale = None) -> Mechanism:
    return Mechanism(Gram(scale=_scale(scale)), normaliser=Entmax(alpha))


def sinkhorn(rounds: int = 10, scale: Scale = None) -> Mechanism:
    return Mechanism(Gram(scale=_scale(scale)), normaliser=Sinkhorn(_count("rounds", rounds, 0, 10)))


def hard(scale: Scale = None) -> Mechanism:
    return Mechanism(Gram(scale=_scale(scale)), normaliser=Hard())


def linear() -> Mechanism:
    return Mechanism(Gram(EluPlusOne(), scale=1.0), normaliser=DivideBySum())


def shaped(
    alpha: float = 1.0,
    beta: float = 1.0,
    gamma: float = 1.0,
    scale: Scale = None,
    tau0: float | None = None,
    width: int | None = None,
    head_width: int | None = None,
) -> Mechanism:
    parts = _finite("alpha", alpha), _finite("beta", beta), _finite("gamma", gamma)
    if tau0 is not None:
        if width is None or head_width is None or scale is not None:
            raise RheoscopeError(
                "tau0 gives the scale 1/(tau0 √(width · head_width)); type tau0=1.0, width=64, head_width=16, and no scale"
            )
        sizes = _count("width", width, 1, 64), _count("head_width", head_width, 1, 16)
        scale = 1 / (_positive("tau0", tau0) * (sizes[0] * sizes[1]) ** 0.5)
    return Mechanism(Gram(scale=_scale(scale)), normaliser=Shaped(*parts))


def psd_root(P: Tensor) -> Tensor:
    """L with L L^T = P; refuses a P that is not symmetric positive semi-definite."""
    if _matrix("P", P).ndim < 2 or P.shape[-1] != P.shape[-2] or not torch.allclose(P, P.mT):
        raise RheoscopeError(f"P must be a symmetric matrix (d, d), got shape {tuple(P.shape)}; type P=(P + P.mT)/2")
    values, vectors = torch.linalg.eigh(P)
    if float(values.min()) < -1e-6 * float(values.abs().max()):
        raise RheoscopeError(
            f"P must be positive semi-definite, got the eigenvalue {float(values.min()):.3g}; type P=A @ A.mT"
        )
    return vectors * values.clamp(min=0).sqrt()[..., None, :]


ANY = ("linear_in_values", "permutation", "masked_is_zero")
MEAN = (*ANY, "rows_sum_to_one", "in_unit_interval")
SOFT = (*MEAN, "shift_invariant")
UNMASKED = tuple(law for law in SOFT if law != "masked_is_zero")
DOT = ("dot_form",)
SAME = ("symmetric_score",)
ROUND = (*SAME, "rotation")

# fmt: off
ZOO = {
    row.name: row
    for row in (
        Named("scaled_dot", "q·k/√d", scaled_dot, (*SOFT, *DOT, *ROUND, "gram_psd"), "arXiv:1706.03762"),
        Named("bilinear", "q B kᵀ/√d", bilinear, (*SOFT, *DOT), "arXiv:1508.04025"),
        Named("additive", "wᵀtanh(qW + kU)", additive, SOFT, "arXiv:1409.0473"),
        Named("cosine", "τ cos(q, k)", cosine, (*SOFT, *DOT, *ROUND, "gram_psd"), "arXiv:2111.09883"),
        Named("metric", "−‖q−k‖²/2σ²", metric, (*SOFT, *DOT, *ROUND, "kernel_psd"), "arXiv:2412.18288"),
        Named("mahalanobis", "−(q−k)P(q−k)ᵀ/2", mahalanobis, (*SOFT, *DOT, *SAME, "kernel_psd"), "Mahalanobis 1936"),
        Named("kernel_rbf", "log κ, κ = e^(−γ‖q−k‖²)", kernel_rbf, (*SOFT, *DOT, *ROUND, "kernel_psd"), "Nadaraya–Watson"),
        Named("kernel_laplace", "log κ, κ = e^(−γ‖q−k‖)", kernel_laplace, (*SOFT, *ROUND, "kernel_psd"), "Nadaraya–Watson"),
        Named("kernel_polynomial", "log (q·k/√d + c)^2p", kernel_polynomial, (*SOFT, *ROUND, "kernel_psd"), "Nadaraya–Watson"),
        Named("relation", "⟨φ(q), ψ(k)⟩/√d", relation, (*SOFT, *DOT), "arXiv:2402.08856"),
        Named("symmetric_relation", "⟨φ(q), φ(k)⟩/√d", symmetric_relation, (*SOFT, *DOT, *SAME, "gram_psd"), "arXiv:2402.08856"),
        Named("metric_map", "−‖φ(q)−φ(k)‖²", metric_map, (*SOFT, *DOT, *SAME, "kernel_psd"), "arXiv:2412.18288"),
        Named("softmax_sink", "eˢ/(e^sink + Σeˢ)", softmax_sink, (*ANY, *DOT, "in_unit_interval", "sink_identity"), "softmax-1"),
        Named("sigmoid", "σ(s + b)", sigmoid, (*ANY, *DOT, "in_unit_interval"), "arXiv:2409.04431"),
        Named("relu", "max(s, 0)/n", relu, (*ANY, *DOT), "arXiv:2309.08586"),
        Named("sparsemax", "argmin ‖p − s‖²", sparsemax, (*SOFT, *DOT, "sparse", "bisection"), "arXiv:1602.02068"),
        Named("entmax15", "[s/2 − τ]²₊", entmax15, (*SOFT, *DOT, "sparse", "bisection"), "arXiv:1905.05702"),
        Named("entmax", "[(α−1)s − τ]₊^(1/(α−1))", entmax, (*SOFT, *DOT, "sparse", "bisection"), "arXiv:1905.05702"),
        Named("sinkhorn", "rows and columns sum to 1", sinkhorn, (*UNMASKED, *DOT, "doubly_stochastic"), "arXiv:2110.11773"),
        Named("hard", "the best key", hard, (*SOFT, *DOT, "limit_of_softmax"), "temperature → 0"),
        Named("linear", "φ(q)·φ(k)/Σ", linear, (*MEAN, *DOT, *SAME, "gram_psd"), "arXiv:2006.16236"),
        Named("shaped", "αI + βA − γC", shaped, (*ANY, *DOT, "shift_invariant", "shaped_identity"), "arXiv:2306.17759"),
    )
}
# fmt: on


def mechanism(name: str, **options: Any) -> Mechanism:
    """A mechanism by name, ready to call on (batch, heads, tokens, dim) tensors.

    **Answers** "what would attention be if relevance were a distance, a kernel, a sparse choice, …?"

    **Formula** o_i = sum_j nu(f(q_i, k_j) + b_ij) g(v_j); the row of each name in `mechanisms()` states its f and nu.

    **Options** are those of its maker (`sigma` of the metric, `tau` of the cosine, `scale` of dot products, …). A
    mechanism with learned maps takes `dim=` (the width of q) and starts them from `seed`; where the score maps both sides
    (`additive`, `bilinear`, `relation`) keys may have a width of their own, `key_dim=`.

    **Siblings** `mechanisms()` lists the names; `nn.Attention` trains one; `Mechanism` composes a new one.

    >>> import torch, rheoscope as rs
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4).unbind(0)
    >>> rs.mechanism("metric", sigma=1.0)(q, k, v, mask="causal").shape
    torch.Size([1, 2, 5, 4])
    """
    if not isinstance(name, str) or name not in ZOO:
        raise RheoscopeError(f"unknown mechanism {name!r}; type one of {', '.join(ZOO)}")
    return ZOO[name](**options)


def mechanisms() -> dict[str, Named]:
    """Every named mechanism with its formula, domain, declared laws and source.

    **Siblings** `mechanism(name)` makes one; `rheoscope attention` prints the table and checks the laws live.

    >>> import rheoscope as rs
    >>> rs.mechanisms()["metric"].formula
    '−‖q−k‖²/2σ²'
    """
    return dict(ZOO)

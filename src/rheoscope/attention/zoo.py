"""The registry of named mechanisms: formula, factory, declared laws and source of each.

A new mechanism needs only one entry here. The law tests, the gradient and lowering checks, the table of
`rheoscope attention` and `attn_implementation="rheoscope:<name>"` then include it automatically.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Generator, Tensor

from rheoscope.attention.additive import Additive
from rheoscope.attention.feature_maps import EluPlusOne, Linear, Residual, Tanh, UnitNorm
from rheoscope.attention.kernel_score import Laplace, Polynomial
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.domain import Domain
from rheoscope.attention.normaliser.entmax import Entmax
from rheoscope.attention.normaliser.hard import Hardmax
from rheoscope.attention.normaliser.linear import DivideBySum as DivideBySum
from rheoscope.attention.normaliser.relu import ReLU
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.sigmoid import Sigmoid
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.option_checks import _check_count, _check_dim, _check_finite, _check_matrix, _check_positive
from rheoscope.attention.score import Distance, Gram, Relation
from rheoscope.messages.advice import Advice
from rheoscope.messages.closest_name import closest_name
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

OptionalScale = float | None


@dataclass(frozen=True)
class ZooEntry:
    """One named mechanism: formula, factory, declared laws, source. Its domain is that of the mechanism it creates."""

    name: str
    formula: str
    factory: Callable[..., Mechanism]
    laws: tuple[str, ...]
    source: str

    @property
    def needs_dim(self) -> bool:
        return "dim" in signature(self.factory).parameters

    @property
    def domain(self) -> Domain:
        return self(**({"dim": 4} if self.needs_dim else {})).domain

    def __call__(self, **options: Any) -> Mechanism:
        parameters = signature(self.factory).parameters
        for option in options:
            if option not in parameters:
                raise self._unknown_option_error(option, list(parameters))
        return self.factory(**options)

    def _unknown_option_error(self, option: str, option_names: list[str]) -> RheoscopeError:
        if not option_names:
            return RheoscopeError(
                Message(
                    "mechanism {mechanism!r} has no options, got {received!r}", mechanism=self.name, received=option
                ),
                Advice(f"rs.mechanism({self.name!r})"),
            )
        return RheoscopeError(
            Message(
                "mechanism {mechanism!r} has no option {received!r}; its options are {known}",
                mechanism=self.name,
                received=option,
                known=", ".join(option_names),
            )
        )


def _check_scale(scale: OptionalScale) -> OptionalScale:
    return None if scale is None else _check_finite("scale", scale)


def _random_matrix(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(_check_count("seed", seed, 0, 0))) * shape[-2] ** -0.5


def _tensor_or_initial(
    name: str, tensor: Tensor | None, dim: int | None, make_initial: Callable[[int], Tensor]
) -> Tensor:
    if tensor is None and dim is None:
        raise RheoscopeError(
            Message("this mechanism learns the tensor {name}: pass dim (the width of q) or {name}", name=name),
            Advice("dim=q.shape[-1]"),
        )
    return make_initial(_check_dim(dim)) if tensor is None else _check_matrix(name, tensor)


def _random_tanh_map(seed: int, dim: int, hidden: int, n_features: int) -> Tanh:
    _check_count("hidden", hidden, 1, 32)
    _check_count("features", n_features, 1, 32)
    return Tanh(_random_matrix(seed, dim, hidden), torch.zeros(1, hidden), _random_matrix(seed + 1, hidden, n_features))


def _key_dim_or_dim(key_dim: int | None, dim: int) -> int:
    return dim if key_dim is None else _check_count("key_dim", key_dim, 1, dim)


def scaled_dot(scale: OptionalScale = None) -> Mechanism:
    return Mechanism(Gram(scale=_check_scale(scale)))


def bilinear(
    dim: int | None = None, B: Tensor | None = None, scale: OptionalScale = None, key_dim: int | None = None
) -> Mechanism:
    initial_B = _tensor_or_initial("B", B, dim, lambda d: torch.eye(d, _key_dim_or_dim(key_dim, d)))
    return Mechanism(Relation(Linear(initial_B), scale=_check_scale(scale)))


def additive(dim: int | None = None, hidden: int = 32, seed: int = 0, key_dim: int | None = None) -> Mechanism:
    d, hidden = _check_dim(dim), _check_count("hidden", hidden, 1, 32)
    W, key_width = _random_matrix(seed, d, hidden), _key_dim_or_dim(key_dim, d)
    return Mechanism(Additive(W, _random_matrix(seed + 1, key_width, hidden), _random_matrix(seed + 2, hidden, 1)))


def cosine(tau: float = 10.0) -> Mechanism:
    return Mechanism(Gram(UnitNorm(), scale=_check_positive("tau", tau)))


def metric(sigma: float = 1.0) -> Mechanism:
    return Mechanism(Distance(scale=0.5 / _check_positive("sigma", sigma) ** 2))


def mahalanobis(dim: int | None = None, P: Tensor | None = None, root: Tensor | None = None) -> Mechanism:
    if P is not None:
        root = psd_root(P)
    return Mechanism(Distance(Linear(_tensor_or_initial("root", root, dim, torch.eye)), scale=0.5))


def kernel_rbf(gamma: float = 0.5) -> Mechanism:
    return Mechanism(Distance(scale=_check_positive("gamma", gamma)))


def kernel_laplace(gamma: float = 1.0) -> Mechanism:
    return Mechanism(Laplace(_check_positive("gamma", gamma)))


def kernel_polynomial(degree: int = 2, scale: OptionalScale = None, offset: float = 1.0) -> Mechanism:
    if not isinstance(degree, int) or degree < 2 or degree % 2:
        raise RheoscopeError(
            Message(
                "degree must be even and at least 2 (an odd power can be negative), got {received!r}", received=degree
            ),
            Advice("degree=2"),
        )
    return Mechanism(Polynomial(degree, _check_scale(scale), _check_finite("offset", offset)))


def relation(
    dim: int | None = None, features: int = 32, hidden: int = 32, seed: int = 0, key_dim: int | None = None
) -> Mechanism:
    d = _check_dim(dim)
    phi, key_width = _random_tanh_map(seed, d, hidden, features), _key_dim_or_dim(key_dim, d)
    return Mechanism(Relation(phi, _random_tanh_map(seed + 2, key_width, hidden, features)))


def symmetric_relation(dim: int | None = None, features: int = 32, hidden: int = 32, seed: int = 0) -> Mechanism:
    return Mechanism(Gram(_random_tanh_map(seed, _check_dim(dim), hidden, features)))


def metric_map(dim: int | None = None, hidden: int = 32, seed: int = 0) -> Mechanism:
    d = _check_dim(dim)
    return Mechanism(Distance(Residual(_random_tanh_map(seed, d, hidden, d)), scale=1.0))


def softmax_sink(sink: Tensor | float = 0.0, scale: OptionalScale = None) -> Mechanism:
    return Mechanism(
        Gram(scale=_check_scale(scale)),
        normaliser=Sink(sink if isinstance(sink, Tensor) else _check_finite("sink", sink)),
    )


def sigmoid(bias: float = 0.0, scale: OptionalScale = None) -> Mechanism:
    return Mechanism(Gram(scale=_check_scale(scale)), normaliser=Sigmoid(_check_finite("bias", bias)))


def relu(scale: OptionalScale = None) -> Mechanism:
    return Mechanism(Gram(scale=_check_scale(scale)), normaliser=ReLU())


def sparsemax(scale: OptionalScale = None) -> Mechanism:
    return Mechanism(Gram(scale=_check_scale(scale)), normaliser=Entmax(2.0))


def entmax15(scale: OptionalScale = None) -> Mechanism:
    return Mechanism(Gram(scale=_check_scale(scale)), normaliser=Entmax(1.5))


def entmax(alpha: float = 1.25, scale: OptionalScale = None) -> Mechanism:
    return Mechanism(Gram(scale=_check_scale(scale)), normaliser=Entmax(alpha))


def sinkhorn(rounds: int = 10, scale: OptionalScale = None) -> Mechanism:
    return Mechanism(Gram(scale=_check_scale(scale)), normaliser=Sinkhorn(_check_count("rounds", rounds, 0, 10)))


def hard(scale: OptionalScale = None) -> Mechanism:
    return Mechanism(Gram(scale=_check_scale(scale)), normaliser=Hardmax())


def linear() -> Mechanism:
    return Mechanism(Gram(EluPlusOne(), scale=1.0), normaliser=DivideBySum())


def shaped(
    alpha: float = 1.0,
    beta: float = 1.0,
    gamma: float = 1.0,
    scale: OptionalScale = None,
    tau0: float | None = None,
    width: int | None = None,
    head_width: int | None = None,
) -> Mechanism:
    coefficients = _check_finite("alpha", alpha), _check_finite("beta", beta), _check_finite("gamma", gamma)
    if tau0 is not None:
        if width is None or head_width is None or scale is not None:
            raise RheoscopeError(
                Message(
                    "tau0 sets the scale 1/(tau0 √(width · head_width)), so it needs width and head_width and excludes scale"
                ),
                Advice("tau0=1.0, width=64, head_width=16"),
            )
        sizes = _check_count("width", width, 1, 64), _check_count("head_width", head_width, 1, 16)
        scale = 1 / (_check_positive("tau0", tau0) * (sizes[0] * sizes[1]) ** 0.5)
    return Mechanism(Gram(scale=_check_scale(scale)), normaliser=Shaped(*coefficients))


def psd_root(P: Tensor) -> Tensor:
    """L with L L^T = P; raises if P is not symmetric positive semi-definite."""
    if _check_matrix("P", P).ndim < 2 or P.shape[-1] != P.shape[-2] or not torch.allclose(P, P.mT):
        raise RheoscopeError(
            Message("P must be a symmetric matrix (d, d), got shape {shape}", shape=str(tuple(P.shape))),
            Advice("P=(P + P.mT) / 2"),
        )
    eigenvalues, eigenvectors = torch.linalg.eigh(P)
    if float(eigenvalues.min()) < -1e-6 * float(eigenvalues.abs().max()):
        raise RheoscopeError(
            Message(
                "P must be positive semi-definite, got the eigenvalue {eigenvalue:.3g}",
                eigenvalue=float(eigenvalues.min()),
            ),
            Advice("P=A @ A.mT"),
        )
    return eigenvectors * eigenvalues.clamp(min=0).sqrt()[..., None, :]


COMMON_LAWS = ("linear_in_values", "permutation", "masked_is_zero")
AVERAGING_LAWS = (*COMMON_LAWS, "rows_sum_to_one", "in_unit_interval")
SOFTMAX_LAWS = (*AVERAGING_LAWS, "shift_invariant")
UNMASKED_LAWS = tuple(law for law in SOFTMAX_LAWS if law != "masked_is_zero")
DOT_LAWS = ("dot_form",)
SYMMETRY_LAWS = ("symmetric_score",)
ROTATION_LAWS = (*SYMMETRY_LAWS, "rotation")

ZOO = {
    entry.name: entry
    for entry in (
        ZooEntry(
            "scaled_dot",
            "q·k/√d",
            scaled_dot,
            (*SOFTMAX_LAWS, *DOT_LAWS, *ROTATION_LAWS, "gram_psd"),
            "arXiv:1706.03762",
        ),
        ZooEntry("bilinear", "q B kᵀ/√d", bilinear, (*SOFTMAX_LAWS, *DOT_LAWS), "arXiv:1508.04025"),
        ZooEntry("additive", "wᵀtanh(qW + kU)", additive, SOFTMAX_LAWS, "arXiv:1409.0473"),
        ZooEntry(
            "cosine", "τ cos(q, k)", cosine, (*SOFTMAX_LAWS, *DOT_LAWS, *ROTATION_LAWS, "gram_psd"), "arXiv:2111.09883"
        ),
        ZooEntry(
            "metric",
            "−‖q−k‖²/2σ²",
            metric,
            (*SOFTMAX_LAWS, *DOT_LAWS, *ROTATION_LAWS, "kernel_psd"),
            "arXiv:2412.18288",
        ),
        ZooEntry(
            "mahalanobis",
            "−(q−k)P(q−k)ᵀ/2",
            mahalanobis,
            (*SOFTMAX_LAWS, *DOT_LAWS, *SYMMETRY_LAWS, "kernel_psd"),
            "Mahalanobis 1936",
        ),
        ZooEntry(
            "kernel_rbf",
            "log κ, κ = e^(−γ‖q−k‖²)",
            kernel_rbf,
            (*SOFTMAX_LAWS, *DOT_LAWS, *ROTATION_LAWS, "kernel_psd"),
            "Nadaraya–Watson",
        ),
        ZooEntry(
            "kernel_laplace",
            "log κ, κ = e^(−γ‖q−k‖)",
            kernel_laplace,
            (*SOFTMAX_LAWS, *ROTATION_LAWS, "kernel_psd"),
            "Nadaraya–Watson",
        ),
        ZooEntry(
            "kernel_polynomial",
            "log (q·k/√d + c)^2p",
            kernel_polynomial,
            (*SOFTMAX_LAWS, *ROTATION_LAWS, "kernel_psd"),
            "Nadaraya–Watson",
        ),
        ZooEntry("relation", "⟨φ(q), ψ(k)⟩/√d", relation, (*SOFTMAX_LAWS, *DOT_LAWS), "arXiv:2402.08856"),
        ZooEntry(
            "symmetric_relation",
            "⟨φ(q), φ(k)⟩/√d",
            symmetric_relation,
            (*SOFTMAX_LAWS, *DOT_LAWS, *SYMMETRY_LAWS, "gram_psd"),
            "arXiv:2402.08856",
        ),
        ZooEntry(
            "metric_map",
            "−‖φ(q)−φ(k)‖²",
            metric_map,
            (*SOFTMAX_LAWS, *DOT_LAWS, *SYMMETRY_LAWS, "kernel_psd"),
            "arXiv:2412.18288",
        ),
        ZooEntry(
            "softmax_sink",
            "eˢ/(e^sink + Σeˢ)",
            softmax_sink,
            (*COMMON_LAWS, *DOT_LAWS, "in_unit_interval", "sink_identity"),
            "softmax-1",
        ),
        ZooEntry("sigmoid", "σ(s + b)", sigmoid, (*COMMON_LAWS, *DOT_LAWS, "in_unit_interval"), "arXiv:2409.04431"),
        ZooEntry("relu", "max(s, 0)/n", relu, (*COMMON_LAWS, *DOT_LAWS), "arXiv:2309.08586"),
        ZooEntry(
            "sparsemax",
            "argmin ‖p − s‖²",
            sparsemax,
            (*SOFTMAX_LAWS, *DOT_LAWS, "sparse", "bisection"),
            "arXiv:1602.02068",
        ),
        ZooEntry(
            "entmax15", "[s/2 − τ]²₊", entmax15, (*SOFTMAX_LAWS, *DOT_LAWS, "sparse", "bisection"), "arXiv:1905.05702"
        ),
        ZooEntry(
            "entmax",
            "[(α−1)s − τ]₊^(1/(α−1))",
            entmax,
            (*SOFTMAX_LAWS, *DOT_LAWS, "sparse", "bisection"),
            "arXiv:1905.05702",
        ),
        ZooEntry(
            "sinkhorn",
            Message("rows and columns sum to 1"),
            sinkhorn,
            (*UNMASKED_LAWS, *DOT_LAWS, "doubly_stochastic"),
            "arXiv:2110.11773",
        ),
        ZooEntry(
            "hard", Message("the best key"), hard, (*SOFTMAX_LAWS, *DOT_LAWS, "limit_of_softmax"), "temperature → 0"
        ),
        ZooEntry(
            "linear",
            "φ(q)·φ(k)/Σ",
            linear,
            (*AVERAGING_LAWS, *DOT_LAWS, *SYMMETRY_LAWS, "gram_psd"),
            "arXiv:2006.16236",
        ),
        ZooEntry(
            "shaped",
            "αI + βA − γC",
            shaped,
            (*COMMON_LAWS, *DOT_LAWS, "shift_invariant", "shaped_identity"),
            "arXiv:2306.17759",
        ),
    )
}


def mechanism(name: str, **options: Any) -> Mechanism:
    """A mechanism by name, ready to call on (batch, heads, tokens, dim) tensors.

    **Question** How does attention change if relevance is a distance, a kernel or a sparse choice?

    **Formula** o_i = sum_j nu(f(q_i, k_j) + b_ij) g(v_j); `mechanisms()` lists f and nu for each name.

    **Settings** Each mechanism has its own options, such as `sigma` (metric), `tau` (cosine) and `scale` (dot products).
    A mechanism with learned maps needs `dim` (the width of q) and initialises the maps from `seed`. If the score maps
    both sides (`additive`, `bilinear`, `relation`), `key_dim` sets the width of the keys.

    **See also** `mechanisms()` lists the names, `nn.Attention` trains a mechanism, `Mechanism` composes a new one.

    >>> import torch, rheoscope as rs
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4).unbind(0)
    >>> rs.mechanism("metric", sigma=1.0)(q, k, v, mask="causal").shape
    torch.Size([1, 2, 5, 4])
    """
    if not isinstance(name, str) or name not in ZOO:
        closest = closest_name(str(name), ZOO)
        if closest is None:
            advice = Advice("rs.mechanisms()", "rheoscope attention")
        else:
            advice = Advice(f'rs.mechanism("{closest}")', f"--set mechanism={closest}")
        raise RheoscopeError(Message("unknown mechanism {name!r}", name=name), advice)
    return ZOO[name](**options)


def mechanisms() -> dict[str, ZooEntry]:
    """Every named mechanism with its formula, domain, declared laws and source.

    **See also** `mechanism(name)` creates one; `rheoscope attention` prints the table and checks the laws live.

    >>> import rheoscope as rs
    >>> rs.mechanisms()["metric"].formula
    '−‖q−k‖²/2σ²'
    """
    return dict(ZOO)

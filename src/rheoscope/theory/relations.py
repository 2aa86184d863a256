"""An inner product of two learned maps is any relation between tokens; of one map it is a similarity and nothing else."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.attention.feature_maps import Linear
from rheoscope.attention.score import Gram, Relation
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

N, RANKS, SHOWN_RANK = 32, (1, 2, 4, 8, 16, 32), 8
MAX_ITERATIONS = 60
DEFINITIONS = {
    "error": "share of the relation's square that the fitted scores miss, ‖R − S‖²/‖R‖²",
    "error_best": "the same of the best scores there are, in closed form",
    "relation": "the relation itself, what it gives for every pair of points",
    "fitted": "scores of the fitted maps at the rank that is told",
}
Relations = Float[Tensor, "r n n"]
Features = Float[Tensor, "r n k"]


def relations(seed: int = 0) -> "xarray.Dataset":
    """Three relations among 32 points are fitted by scores ⟨φ(x_i), ψ(x_j)⟩ with features of growing number, φ = ψ (tied, as
    symmetric attention has it) or not (untied, as attention has it).

    **Formula** A map of finitely many points is a table, so S = ΦΨᵀ or ΦΦᵀ is any matrix of rank k, or any positive
    semi-definite one. Untied, the best is the truncated singular value decomposition: the share missed is
    Σ_{i>k} σ_i² / ‖R‖². Tied, the antisymmetric part ½(R − Rᵀ) is at right angles to every S and all of it is missed; of the
    symmetric part the k largest positive eigenvalues can be had: 1 − Σ_{i≤k} (λ_i⁺)² / ‖R‖². The order R_ij = sign(i − j)
    has singular values cot((2m − 1)π/2n), each twice, so that two features carry 2 cot²(π/2n)/(n(n − 1)) → 8/π² of it.

    **Numbers** the share missed by maps fitted by descent with 8 features, for a symmetric, an antisymmetric (an order) and a
    random relation, untied and tied; of the order with two features; and with as many features as points, tied: half of a
    random symmetric relation, all of an order, three quarters of a random one, as n → ∞.

    **Source** Altabaa and Lafferty 2024 (arXiv:2402.08856); Eckart and Young 1936.
    """
    relation_by_name = sample_relations(seed)
    R = torch.stack(list(relation_by_name.values()))
    scores = torch.stack([torch.stack([fit(R, k, seed) for k in RANKS]) for fit in FIT_FUNCTIONS.values()])
    errors = missed_fraction(R, scores).permute(2, 0, 1)
    best_errors = torch.stack(
        [torch.stack([best_error(R, k) for k in RANKS], -1) for best_error in BEST_ERRORS.values()], 1
    )
    shown, last = RANKS.index(SHOWN_RANK), len(RANKS) - 1
    comparisons = [
        Comparison(
            f"{name}, {maps}, {SHOWN_RANK} features",
            float(errors[r, m, shown]),
            float(best_errors[r, m, shown]),
            REASONS[maps],
        )
        for r, name in enumerate(relation_by_name)
        for m, maps in enumerate(FIT_FUNCTIONS)
    ]
    expected_two = 1 - 2 / float(torch.tan(torch.tensor(torch.pi / (2 * N), dtype=torch.float64))) ** 2 / (N * (N - 1))
    comparisons.append(
        Comparison("order, untied, 2 features", float(errors[1, 0, 1]), expected_two, "singular values of an order")
    )
    comparisons += [
        Comparison(
            f"{name}, tied, {N} features", float(errors[r, 1, last]), float(best_errors[r, 1, last]), REASONS["tied"]
        )
        for r, name in enumerate(relation_by_name)
    ]
    curves = {
        "error": (("name", "maps", "rank"), errors),
        "error_best": (("name", "maps", "rank"), best_errors),
        "relation": (("name", "i", "j"), R),
        "fitted": (("maps", "name", "i", "j"), scores[:, shown]),
    }
    contrasts = {
        f"{name}, untied, {N} features": max(0.0, float(errors[r, 0, last])) for r, name in enumerate(relation_by_name)
    }
    coords = {"name": list(relation_by_name), "maps": list(FIT_FUNCTIONS), "rank": list(RANKS)}
    return as_dataset(comparisons, curves, DEFINITIONS, coords, {"n": N, "shown": SHOWN_RANK}, contrasts)


def sample_relations(seed: int) -> dict[str, Float[Tensor, "n n"]]:
    """A symmetric relation, an antisymmetric one (who comes before whom) and one of no kind."""
    G = torch.randn(2, N, N, generator=Generator().manual_seed(seed), dtype=torch.float64)
    position = torch.arange(N, dtype=torch.float64)
    return {"symmetric": (G[0] + G[0].mT) / 2**0.5, "order": (position[:, None] - position).sign(), "random": G[1]}


def missed_fraction(R: Relations, S: Float[Tensor, "*ks r n n"]) -> Float[Tensor, "*ks r"]:
    return (R - S).square().sum((-2, -1)) / R.square().sum((-2, -1))


def fit_untied(R: Relations, k: int, seed: int) -> Relations:
    """Scores of attention with maps φ and ψ of k features, fitted by descent."""
    return fit_by_descent(
        lambda phi, psi: Relation(Linear(phi), Linear(psi), scale=1.0)(*one_hot_points(R)), R, k, 2, seed
    )


def fit_tied(R: Relations, k: int, seed: int) -> Relations:
    """The same with one map φ for both sides."""
    return fit_by_descent(lambda phi: Gram(Linear(phi), scale=1.0)(*one_hot_points(R)), R, k, 1, seed)


def one_hot_points(R: Relations) -> tuple[Tensor, Tensor]:
    """Every point as a coordinate of its own, one head for each relation: x Φ is row x of the table Φ."""
    x = torch.eye(N, dtype=R.dtype).expand(1, len(R), N, N)
    return x, x


def fit_by_descent(scores: Callable[..., Tensor], R: Relations, k: int, n_maps: int, seed: int) -> Relations:
    """The scores of tables (r, n, k) that L-BFGS finds from small random ones."""
    generator = Generator().manual_seed(seed + k)
    tables = [0.3 * torch.randn(len(R), N, k, generator=generator, dtype=R.dtype) for _ in range(n_maps)]
    tables = [table.requires_grad_() for table in tables]
    optimiser = torch.optim.LBFGS(tables, max_iter=MAX_ITERATIONS, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        total_error = missed_fraction(R, scores(*tables)[0]).sum()
        total_error.backward()
        return total_error

    with torch.enable_grad():
        optimiser.step(loss)
    return scores(*(table.detach() for table in tables))[0]


def best_untied(R: Relations, k: int) -> Float[Tensor, " r"]:
    squares = torch.linalg.svdvals(R).square()
    return squares[:, k:].sum(-1) / squares.sum(-1)


def best_tied(R: Relations, k: int) -> Float[Tensor, " r"]:
    """eigvalsh gives the least first."""
    captured = torch.linalg.eigvalsh((R + R.mT) / 2).clamp(min=0).square()[:, -k:].sum(-1)
    return 1 - captured / R.square().sum((-2, -1))


FIT_FUNCTIONS = {"untied": fit_untied, "tied": fit_tied}
BEST_ERRORS = {"untied": best_untied, "tied": best_tied}
REASONS = {"untied": "truncated singular values", "tied": "positive part of ½(R + Rᵀ), truncated"}

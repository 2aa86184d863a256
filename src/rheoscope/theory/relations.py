"""Relations as inner products: two feature maps fit any relation, one map only a similarity."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.attention.feature_maps import Linear
from rheoscope.attention.score import Gram, Relation
from rheoscope.messages.message import Message
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

N, RANKS, SHOWN_RANK = 32, (1, 2, 4, 8, 16, 32), 8
MAX_ITERATIONS = 60
DEFINITIONS = {
    "error": Message("share of the relation that the fitted scores miss, ‖R − S‖²/‖R‖²"),
    "error_best": Message("smallest possible error, in closed form"),
    "relation": Message("value of the relation for every pair of points"),
    "fitted": Message("scores of the fitted maps with 8 features"),
}
Relations = Float[Tensor, "r n n"]
Features = Float[Tensor, "r n k"]


def relations(seed: int = 0) -> "xarray.Dataset":
    """Fit three relations among 32 points by scores ⟨φ(x_i), ψ(x_j)⟩ with a growing number of features.

    The maps are tied (φ = ψ, as in symmetric attention) or untied (as in attention).

    **Formula** A map of finitely many points is a table, so S = ΦΨᵀ is any matrix of rank k, and S = ΦΦᵀ any positive semidefinite
    one. Untied, the best S is the truncated singular value decomposition, which misses Σ_{i>k} σ_i² / ‖R‖². Tied, the antisymmetric
    part ½(R − Rᵀ) is orthogonal to every S and is missed entirely. Of the symmetric part the k largest positive eigenvalues can be
    fitted, so the error is 1 − Σ_{i≤k} (λ_i⁺)² / ‖R‖². The order R_ij = sign(i − j) has singular values cot((2m − 1)π/2n), each twice,
    so two features capture 2 cot²(π/2n)/(n(n − 1)) → 8/π² of it.

    **Returns** the error of fitted maps with 8 features for a symmetric, an antisymmetric (order) and a random relation, untied and
    tied; the error of the order with two features; and the tied error with as many features as points. As n → ∞ the latter is one half
    for the symmetric relation, 1 for the order and three quarters for the random relation.

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
    return as_dataset(comparisons, curves, DEFINITIONS, coords, {"n": N, "shown_rank": SHOWN_RANK}, contrasts)


def sample_relations(seed: int) -> dict[str, Float[Tensor, "n n"]]:
    """A symmetric relation, an antisymmetric one (an order) and a random one."""
    G = torch.randn(2, N, N, generator=Generator().manual_seed(seed), dtype=torch.float64)
    position = torch.arange(N, dtype=torch.float64)
    return {"symmetric": (G[0] + G[0].mT) / 2**0.5, "order": (position[:, None] - position).sign(), "random": G[1]}


def missed_fraction(R: Relations, S: Float[Tensor, "*ks r n n"]) -> Float[Tensor, "*ks r"]:
    return (R - S).square().sum((-2, -1)) / R.square().sum((-2, -1))


def fit_untied(R: Relations, k: int, seed: int) -> Relations:
    """Scores with two maps φ and ψ of k features, fitted by gradient descent."""
    return fit_by_descent(
        lambda phi, psi: Relation(Linear(phi), Linear(psi), scale=1.0)(*one_hot_points(R)), R, k, 2, seed
    )


def fit_tied(R: Relations, k: int, seed: int) -> Relations:
    """Scores with one map φ of k features, fitted by gradient descent."""
    return fit_by_descent(lambda phi: Gram(Linear(phi), scale=1.0)(*one_hot_points(R)), R, k, 1, seed)


def one_hot_points(R: Relations) -> tuple[Tensor, Tensor]:
    """One-hot points, one head per relation, so that x Φ is row x of the table Φ."""
    x = torch.eye(N, dtype=R.dtype).expand(1, len(R), N, N)
    return x, x


def fit_by_descent(scores: Callable[..., Tensor], R: Relations, k: int, n_maps: int, seed: int) -> Relations:
    """The scores of tables (r, n, k), optimised by L-BFGS from small random tables."""
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
    """The smallest error with tied maps. `eigvalsh` sorts in increasing order."""
    captured = torch.linalg.eigvalsh((R + R.mT) / 2).clamp(min=0).square()[:, -k:].sum(-1)
    return 1 - captured / R.square().sum((-2, -1))


FIT_FUNCTIONS = {"untied": fit_untied, "tied": fit_tied}
BEST_ERRORS = {"untied": best_untied, "tied": best_tied}
REASONS = {"untied": "truncated singular values", "tied": "positive part of ½(R + Rᵀ), truncated"}

"""An inner product of two learned maps is any relation between tokens; of one map it is a similarity and nothing else."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.attention.feature_maps import Linear
from rheoscope.attention.score import Gram, Relation
from rheoscope.theory.predictions import Number, as_dataset

if TYPE_CHECKING:
    import xarray

N, RANKS, SHOWN = 32, (1, 2, 4, 8, 16, 32), 8
STEPS = 60
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
    named = drawn(seed)
    R = torch.stack(list(named.values()))
    scores = torch.stack([torch.stack([fit(R, k, seed) for k in RANKS]) for fit in FITS.values()])
    seen = missed(R, scores).permute(2, 0, 1)
    due = torch.stack([torch.stack([best(R, k) for k in RANKS], -1) for best in BEST.values()], 1)
    at, last = RANKS.index(SHOWN), len(RANKS) - 1
    numbers = [
        Number(f"{name}, {maps}, {SHOWN} features", float(seen[r, m, at]), float(due[r, m, at]), WHY[maps])
        for r, name in enumerate(named)
        for m, maps in enumerate(FITS)
    ]
    two = 1 - 2 / float(torch.tan(torch.tensor(torch.pi / (2 * N), dtype=torch.float64))) ** 2 / (N * (N - 1))
    numbers.append(Number("order, untied, 2 features", float(seen[1, 0, 1]), two, "singular values of an order"))
    numbers += [
        Number(f"{name}, tied, {N} features", float(seen[r, 1, last]), float(due[r, 1, last]), WHY["tied"])
        for r, name in enumerate(named)
    ]
    curves = {
        "error": (("name", "maps", "rank"), seen),
        "error_best": (("name", "maps", "rank"), due),
        "relation": (("name", "i", "j"), R),
        "fitted": (("maps", "name", "i", "j"), scores[:, at]),
    }
    contrasts = {f"{name}, untied, {N} features": max(0.0, float(seen[r, 0, last])) for r, name in enumerate(named)}
    coords = {"name": list(named), "maps": list(FITS), "rank": list(RANKS)}
    return as_dataset(numbers, curves, DEFINITIONS, coords, {"n": N, "shown": SHOWN}, contrasts)


def drawn(seed: int) -> dict[str, Float[Tensor, "n n"]]:
    """A symmetric relation, an antisymmetric one (who comes before whom) and one of no kind."""
    G = torch.randn(2, N, N, generator=Generator().manual_seed(seed), dtype=torch.float64)
    place = torch.arange(N, dtype=torch.float64)
    return {"symmetric": (G[0] + G[0].mT) / 2**0.5, "order": (place[:, None] - place).sign(), "random": G[1]}


def missed(R: Relations, S: Float[Tensor, "*ks r n n"]) -> Float[Tensor, "*ks r"]:
    return (R - S).square().sum((-2, -1)) / R.square().sum((-2, -1))


def untied(R: Relations, k: int, seed: int) -> Relations:
    """Scores of attention with maps φ and ψ of k features, fitted by descent."""
    return descended(lambda phi, psi: Relation(Linear(phi), Linear(psi), scale=1.0)(*points(R)), R, k, 2, seed)


def tied(R: Relations, k: int, seed: int) -> Relations:
    """The same with one map φ for both sides."""
    return descended(lambda phi: Gram(Linear(phi), scale=1.0)(*points(R)), R, k, 1, seed)


def points(R: Relations) -> tuple[Tensor, Tensor]:
    """Every point as a coordinate of its own, one head for each relation: x Φ is row x of the table Φ."""
    x = torch.eye(N, dtype=R.dtype).expand(1, len(R), N, N)
    return x, x


def descended(scores: Callable[..., Tensor], R: Relations, k: int, maps: int, seed: int) -> Relations:
    """The scores of tables (r, n, k) that L-BFGS finds from small random ones."""
    start = Generator().manual_seed(seed + k)
    tables = [0.3 * torch.randn(len(R), N, k, generator=start, dtype=R.dtype) for _ in range(maps)]
    tables = [table.requires_grad_() for table in tables]
    descent = torch.optim.LBFGS(tables, max_iter=STEPS, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        descent.zero_grad()
        found = missed(R, scores(*tables)[0]).sum()
        found.backward()
        return found

    with torch.enable_grad():
        descent.step(loss)
    return scores(*(table.detach() for table in tables))[0]


def best_untied(R: Relations, k: int) -> Float[Tensor, " r"]:
    squares = torch.linalg.svdvals(R).square()
    return squares[:, k:].sum(-1) / squares.sum(-1)


def best_tied(R: Relations, k: int) -> Float[Tensor, " r"]:
    """eigvalsh gives the least first."""
    had = torch.linalg.eigvalsh((R + R.mT) / 2).clamp(min=0).square()[:, -k:].sum(-1)
    return 1 - had / R.square().sum((-2, -1))


FITS = {"untied": untied, "tied": tied}
BEST = {"untied": best_untied, "tied": best_tied}
WHY = {"untied": "truncated singular values", "tied": "positive part of ½(R + Rᵀ), truncated"}

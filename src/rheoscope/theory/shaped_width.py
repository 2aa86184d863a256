"""Shaped attention at finite width: the angles are random and follow a stochastic differential equation."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.messages.message import Message
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

WIDTH, N_RUNS, END_TIME, BRANCH_FRACTION, TAU0 = 64, 20_000, 0.375, 0.2, 0.6
"""BRANCH_FRACTION is γ² of the attention branch, with λ² = 1 − γ² for the skip. END_TIME is depth / width."""
MAX_VARIANCE = 4.0
"""A run stops when a variance exceeds this. The drift grows as V³, and the theorem holds only up to such a time."""
INITIAL_COVARIANCE = ((1.0, 0.5, -0.2), (0.5, 1.0, 0.2), (-0.2, 0.2, 1.0))
OBSERVABLES = ("correlation of tokens 1 and 2", "norm of token 1", "norm of token 3")
DEFINITIONS = {
    "mean": Message("mean of the observable over random networks of finite width, after every layer"),
    "mean_sde": Message("mean of the observable by the stochastic equation"),
    "sd": Message("standard deviation of the observable over random networks"),
    "sd_sde": Message("standard deviation of the observable by the stochastic equation"),
}
Covariances = Float[Tensor, "runs m m"]


def shaped_width(seed: int = 0) -> "xarray.Dataset":
    """Three tokens pass through X ← λX + γ A X W, A = I + softmax(q·k/τ) − 1/m, of width n. How are their angles distributed?

    **Formula** W, W_Q and W_K have entries N(0, 1/n), and τ = τ₀√(n n_k). Scores are then of order 1/√n. Each layer changes the
    covariance V = XXᵀ/n by a random amount of order 1/√n. At t = layer/n, with λ² + γ² = 1,

        dV = b dt + γ√(2−γ²) L dH Lᵀ + γ²(dD V + V dDᵀ),    b = (γ²/τ₀²)(V tr(PVPV)/m² + B V + V Bᵀ)

    Here LLᵀ = V, P = I − 11ᵀ/m and dD = L dN Lᵀ P/(mτ₀). N has independent Brownian entries, and H = (N' + N'ᵀ)/√2 symmetric ones.
    B_ij = V_ii (c_j − mean c)/2m, with c the diagonal of PVP, is the second order of softmax. The noise has covariance
    γ²(2−γ²)(V_ik V_jl + V_il V_jk) plus a term γ⁴/τ₀² from attention. The equation is derived by expanding softmax to second order.
    Tests compare its moments with sums, and a layer with fully sampled weights.

    Networks are sampled exactly in distribution at a cost that does not depend on n. Given V, XW is L times Gaussian rows, and only their
    products with each other and with X matter (a Wishart distribution). Runs stop when a variance exceeds 4, because the theorem is
    local.

    **Returns** the means of a correlation and of two norms, and the standard deviation of the correlation, over random networks compared
    with the equation, all at t = ⅜. Both sides are random. The reason states the Monte Carlo error (one sd) of their difference.

    **Source** Noci et al. 2023 (arXiv:2306.17759) for the temperature, the limit and its local nature.
    """
    steps = round(END_TIME * WIDTH)
    simulated, predicted = simulate_networks(steps, seed), simulate_equation(steps, seed + 1)
    comparisons = []
    for observable, x, y in zip(OBSERVABLES, simulated[-1], predicted[-1], strict=True):
        error = float((x.var() + y.var()).div(N_RUNS).sqrt())
        comparisons.append(
            Comparison(f"mean {observable}", float(x.mean()), float(y.mean()), f"equation, ± {error:.1g}")
        )
    x, y = simulated[-1, 0], predicted[-1, 0]
    comparisons.append(
        Comparison(
            f"sd of the {OBSERVABLES[0]}",
            float(x.std()),
            float(y.std()),
            f"equation, ± {float(x.std()) / N_RUNS**0.5:.1g}",
        )
    )
    dims = ("layer", "observable")
    curves = {"mean": (dims, simulated.mean(-1)), "sd": (dims, simulated.std(-1))}
    curves |= {"mean_sde": (dims, predicted.mean(-1)), "sd_sde": (dims, predicted.std(-1))}
    coords = {"time": ("layer", np.arange(steps + 1) / WIDTH), "observable": list(OBSERVABLES)}
    settings = {"width": WIDTH, "runs": N_RUNS, "tau0": TAU0, "branch": BRANCH_FRACTION, "seed": seed}
    return as_dataset(comparisons, curves, DEFINITIONS, coords, settings)


def simulate_networks(steps: int, seed: int) -> Float[Tensor, "layer observable runs"]:
    """The observables after every layer of networks with random weights."""
    rng, V = np.random.default_rng(seed), initial_covariances()
    observed = [observables(V)]
    for _ in range(steps):
        V = freeze_diverged(V, network_layer(V, WIDTH, rng))
        observed.append(observables(V))
    return torch.stack(observed)


def simulate_equation(steps: int, seed: int) -> Float[Tensor, "layer observable runs"]:
    """The observables along the stochastic equation, with steps of 1/width."""
    rng, V = np.random.default_rng(seed), initial_covariances()
    observed = [observables(V)]
    for _ in range(steps):
        V = freeze_diverged(V, equation_step(V, 1 / WIDTH, rng))
        observed.append(observables(V))
    return torch.stack(observed)


def initial_covariances() -> Covariances:
    return torch.tensor(INITIAL_COVARIANCE, dtype=torch.float64).repeat(N_RUNS, 1, 1)


def freeze_diverged(before: Covariances, after: Covariances) -> Covariances:
    """The new covariances, except for runs that exceeded the bound before."""
    return torch.where((before.diagonal(dim1=-2, dim2=-1).amax(-1) > MAX_VARIANCE)[:, None, None], before, after)


def observables(V: Covariances) -> Float[Tensor, "observable runs"]:
    """The observables of every run."""
    first, second, third = V.diagonal(dim1=-2, dim2=-1).sqrt().unbind(-1)
    return torch.stack([V[:, 0, 1] / (first * second), first, third])


def network_layer(V: Covariances, width: int, rng: np.random.Generator) -> Covariances:
    """V after one layer with n = n_k = width. XW = L(ZU + …) with the directions U of X, so only Z and a Wishart matrix matter."""
    runs, m = V.shape[:2]
    L, Z, orthogonal_root = cholesky_root(V), standard_normal(rng, runs, m), wishart_root(rng, runs, m, width - m)
    raw_scores = wishart_root(rng, runs, m, width) @ standard_normal(rng, runs, m) / width**0.5
    A = Shaped()((L @ raw_scores @ L.mT / (TAU0 * width**0.5))[None])[0]
    attended = A @ L
    cross = (BRANCH_FRACTION * (1 - BRANCH_FRACTION) / width) ** 0.5 * attended @ Z @ L.mT
    return (
        (1 - BRANCH_FRACTION) * V
        + cross
        + cross.mT
        + BRANCH_FRACTION / width * attended @ (Z @ Z.mT + orthogonal_root @ orthogonal_root.mT) @ attended.mT
    )


def equation_step(V: Covariances, dt: float, rng: np.random.Generator) -> Covariances:
    """V after time dt by the equation, as KL(I + …)²LᵀKᵀ, which stays positive. The means of the squares are subtracted."""
    runs, m = V.shape[:2]
    L, N, PVP = cholesky_root(V), standard_normal(rng, runs, m), centre_rows(centre_rows(V).mT)
    c, variance = PVP.diagonal(dim1=-2, dim2=-1), V.diagonal(dim1=-2, dim2=-1)
    B = variance[..., None] * centre_rows(c[..., None, :]) / (2 * m)
    D = centre_rows(L @ standard_normal(rng, runs, m) @ L.mT) / (m * TAU0)
    eye = torch.eye(m, dtype=V.dtype)
    K = eye + BRANCH_FRACTION * (D * dt**0.5 + B * dt / TAU0**2)
    noise_variance = BRANCH_FRACTION * (2 - BRANCH_FRACTION) * dt / 4
    noise_root = eye + (noise_variance / 2) ** 0.5 * (N + N.mT)
    growth = BRANCH_FRACTION * (1 - BRANCH_FRACTION) * dt / TAU0**2 * (PVP * V).sum((-1, -2))[..., None, None] / m**2
    drifted_root = K @ L
    return drifted_root @ (noise_root @ noise_root - noise_variance * (m + 1) * eye) @ drifted_root.mT + growth * V


def cholesky_root(V: Covariances) -> Covariances:
    """L with LLᵀ = V. A relative variance of 1e-9 is added, because tokens can become collinear up to rounding."""
    return torch.linalg.cholesky(V + 1e-9 * torch.diag_embed(V.diagonal(dim1=-2, dim2=-1)))


def centre_rows(x: Float[Tensor, "runs a m"]) -> Float[Tensor, "runs a m"]:
    """xP, the rows minus their mean."""
    return x - x.mean(-1, keepdim=True)


def standard_normal(rng: np.random.Generator, runs: int, m: int) -> Covariances:
    return torch.from_numpy(rng.standard_normal((runs, m, m)))


def wishart_root(rng: np.random.Generator, runs: int, m: int, width: int) -> Covariances:
    """A triangular R such that RRᵀ is distributed as NNᵀ, where N has m × width standard normal entries (Bartlett 1933)."""
    lengths = np.sqrt(rng.chisquare(width - np.arange(m), (runs, m)))
    return standard_normal(rng, runs, m).tril(-1) + torch.diag_embed(torch.from_numpy(lengths))

"""Shaped attention of finite width: after as many layers as it is wide, angles are random, and an equation gives their law."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.theory.predictions import Number, as_dataset

if TYPE_CHECKING:
    import xarray

WIDTH, RUNS, TIME, BRANCH, TAU0 = 64, 20_000, 0.375, 0.2, 0.6
"""BRANCH is the share γ² of the attention branch beside the skip's λ² = 1 − γ²; TIME the depth over the width."""
BOUND = 4.0
"""A run stops where a variance passes it: the drift grows as V³, and the theorem holds up to such a time."""
START = ((1.0, 0.5, -0.2), (0.5, 1.0, 0.2), (-0.2, 0.2, 1.0))
SEEN = ("correlation of tokens 1 and 2", "length of token 1", "length of token 3")
DEFINITIONS = {
    "mean": "mean of a correlation or of a length (root mean square) over drawn networks of finite width, after every layer",
    "mean_sde": "the same by the stochastic equation",
    "sd": "its spread over drawn networks",
    "sd_sde": "the same by the stochastic equation",
}
Tables = Float[Tensor, "runs m m"]


def shaped_width(seed: int = 0) -> "xarray.Dataset":
    """Three tokens pass through X ← λX + γ A X W, A = I + softmax(q·k/τ) − 1/m, of width n: what is the law of their angles?

    **Formula** W, W_Q, W_K have entries N(0, 1/n) and τ = τ₀√(n n_k): scores are then of order 1/√n, each layer moves the
    covariance V = XXᵀ/n by a random amount of order 1/√n, and at t = layer/n, with λ² + γ² = 1,

        dV = b dt + γ√(2−γ²) L dH Lᵀ + γ²(dD V + V dDᵀ),    b = (γ²/τ₀²)(V tr(PVPV)/m² + B V + V Bᵀ)

    LLᵀ = V, P = I − 11ᵀ/m, dD = L dN Lᵀ P/(mτ₀), N of independent and H of symmetric Brownian motions (H = (N' + N'ᵀ)/√2), and
    B_ij = V_ii (c_j − mean c)/2m, c the diagonal of PVP: the second order of softmax. The covariance of the noise is
    γ²(2−γ²)(V_ik V_jl + V_il V_jk) and the term γ⁴/τ₀² of attention. Derived here by
    expanding softmax twice; tests hold its moments against sums and a layer against weights drawn in full.
    The networks are drawn exactly in law at a cost that does not grow with n: given V,
    XW is L times Gaussian rows, of which only their products with each other and with X count, a Wishart law.

    Runs stop where a variance passes 4: the drift grows as V³, some paths would leave every bound, and the theorem is local.

    **Numbers** means over drawn networks of a correlation and of two lengths, and the spread of the correlation, against the equation in
    small steps, all at t = ⅜; both sides are random: the reason names the Monte Carlo error (one sd) of their difference.

    **Source** Noci et al. 2023 (arXiv:2306.17759) for the temperature, the limit and its local nature.
    """
    steps = round(TIME * WIDTH)
    drawn, solved = networks(steps, seed), equation(steps, seed + 1)
    numbers = []
    for what, x, y in zip(SEEN, drawn[-1], solved[-1], strict=True):
        error = float((x.var() + y.var()).div(RUNS).sqrt())
        numbers.append(Number(f"mean {what}", float(x.mean()), float(y.mean()), f"equation, ± {error:.1g}"))
    x, y = drawn[-1, 0], solved[-1, 0]
    numbers.append(
        Number(
            f"spread of the {SEEN[0]}", float(x.std()), float(y.std()), f"equation, ± {float(x.std()) / RUNS**0.5:.1g}"
        )
    )
    dims = ("layer", "seen")
    curves = {"mean": (dims, drawn.mean(-1)), "sd": (dims, drawn.std(-1))}
    curves |= {"mean_sde": (dims, solved.mean(-1)), "sd_sde": (dims, solved.std(-1))}
    along = {"time": ("layer", np.arange(steps + 1) / WIDTH), "seen": list(SEEN)}
    settings = {"width": WIDTH, "runs": RUNS, "tau0": TAU0, "branch": BRANCH, "seed": seed}
    return as_dataset(numbers, curves, DEFINITIONS, along, settings)


def networks(steps: int, seed: int) -> Float[Tensor, "layer seen runs"]:
    """What is looked at after every layer of networks whose weights are drawn anew."""
    draw, V = np.random.default_rng(seed), start()
    seen = [looked_at(V)]
    for _ in range(steps):
        V = stopped(V, layer(V, WIDTH, draw))
        seen.append(looked_at(V))
    return torch.stack(seen)


def equation(steps: int, seed: int) -> Float[Tensor, "layer seen runs"]:
    """The same along the stochastic equation, a step of 1/width."""
    draw, V = np.random.default_rng(seed), start()
    seen = [looked_at(V)]
    for _ in range(steps):
        V = stopped(V, step(V, 1 / WIDTH, draw))
        seen.append(looked_at(V))
    return torch.stack(seen)


def start() -> Tables:
    return torch.tensor(START, dtype=torch.float64).repeat(RUNS, 1, 1)


def stopped(before: Tables, after: Tables) -> Tables:
    """What comes after, but for runs that passed the bound before."""
    return torch.where((before.diagonal(dim1=-2, dim2=-1).amax(-1) > BOUND)[:, None, None], before, after)


def looked_at(V: Tables) -> Float[Tensor, "seen runs"]:
    """What is compared, of every run."""
    first, second, third = V.diagonal(dim1=-2, dim2=-1).sqrt().unbind(-1)
    return torch.stack([V[:, 0, 1] / (first * second), first, third])


def layer(V: Tables, width: int, draw: np.random.Generator) -> Tables:
    """V after one layer of n = n_k = width: XW = L(ZU + …) with U the directions of X, so that only Z and a Wishart table count."""
    runs, m = V.shape[:2]
    L, Z, rest = root(V), normal(draw, runs, m), wishart_root(draw, runs, m, width - m)
    asked = wishart_root(draw, runs, m, width) @ normal(draw, runs, m) / width**0.5
    A = Shaped()((L @ asked @ L.mT / (TAU0 * width**0.5))[None])[0]
    read = A @ L
    cross = (BRANCH * (1 - BRANCH) / width) ** 0.5 * read @ Z @ L.mT
    return (1 - BRANCH) * V + cross + cross.mT + BRANCH / width * read @ (Z @ Z.mT + rest @ rest.mT) @ read.mT


def step(V: Tables, dt: float, draw: np.random.Generator) -> Tables:
    """V after the time dt by the equation, as KL(I + …)²LᵀKᵀ, which stays positive; means of the squares are taken off again."""
    runs, m = V.shape[:2]
    L, N, PVP = root(V), normal(draw, runs, m), centred(centred(V).mT)
    c, variance = PVP.diagonal(dim1=-2, dim2=-1), V.diagonal(dim1=-2, dim2=-1)
    B = variance[..., None] * centred(c[..., None, :]) / (2 * m)
    D = centred(L @ normal(draw, runs, m) @ L.mT) / (m * TAU0)
    eye = torch.eye(m, dtype=V.dtype)
    K = eye + BRANCH * (D * dt**0.5 + B * dt / TAU0**2)
    size = BRANCH * (2 - BRANCH) * dt / 4
    half = eye + (size / 2) ** 0.5 * (N + N.mT)
    gained = BRANCH * (1 - BRANCH) * dt / TAU0**2 * (PVP * V).sum((-1, -2))[..., None, None] / m**2
    moved = K @ L
    return moved @ (half @ half - size * (m + 1) * eye) @ moved.mT + gained * V


def root(V: Tables) -> Tables:
    """L with LLᵀ = V, with a billionth more of variance: tokens may come to lie on one line, to rounding."""
    return torch.linalg.cholesky(V + 1e-9 * torch.diag_embed(V.diagonal(dim1=-2, dim2=-1)))


def centred(x: Float[Tensor, "runs a m"]) -> Float[Tensor, "runs a m"]:
    """xP: rows less their mean."""
    return x - x.mean(-1, keepdim=True)


def normal(draw: np.random.Generator, runs: int, m: int) -> Tables:
    return torch.from_numpy(draw.standard_normal((runs, m, m)))


def wishart_root(draw: np.random.Generator, runs: int, m: int, width: int) -> Tables:
    """A triangular R with RRᵀ of the law of NNᵀ, N of m × width independent normal entries (Bartlett 1933)."""
    lengths = np.sqrt(draw.chisquare(width - np.arange(m), (runs, m)))
    return normal(draw, runs, m).tril(-1) + torch.diag_embed(torch.from_numpy(lengths))

"""Attention alone collapses a cloud to one point, cubically fast; the skip keeps it."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.theory.particles import Particles, dot, drawn, unit, weights
from rheoscope.theory.predictions import Number, as_dataset

if TYPE_CHECKING:
    import xarray

N, D, BETA, DEPTH, SPREAD = 16, 8, 4.0, 4, 0.6
DEFINITIONS = {
    "residual": "‖X − 1x̄‖ after every layer of attention alone",
    "residual_skip": "the same where every layer adds its output to what it read",
    "ratio": "decrement of the log residual over the one before",
}


def rank_collapse(seed: int = 0) -> "xarray.Dataset":
    """X ← softmax(βXXᵀ)X without a skip: how fast does the distance of the cloud from its mean vanish?

    **Formula** With x_i = x̄ + r_i, softmax sees βx̄·r_j + βr_i·r_j; only the second differs between rows, so that
    r_i' = βr_i C + higher orders, C = (1/n) Σ r_jᵀr_j: every singular value σ of r becomes βσ³/n. Hence log‖r‖ + const is
    tripled by every layer, and so is its decrement. (The mean is carried apart, so that rounding is relative to r.)

    **Numbers** the last ratio of log decrements, 3; the last residual over βr³/n of the one before, 1 (by then one singular
    value is left).

    **Source** Dong, Cordonnier and Loukas 2021 (arXiv:2103.03404), who bound the residual by a cube and name the skip as what
    prevents the collapse.
    """
    start = drawn(seed, N, D)
    start = start - start.mean(0)
    start = SPREAD * (N / BETA) ** 0.5 * start / torch.linalg.svdvals(start)[0]  # √(β/n) σ = SPREAD: at 1 nothing falls
    mean = unit(drawn(seed + 1, 1, D))
    alone = norms(start, mean, skip=False)
    skip = norms(start, mean, skip=True)
    steps = -alone.log().diff()
    ratio = steps[1:] / steps[:-1]
    cubed = BETA / N * alone[-2] ** 3
    numbers = [
        Number(f"last ratio of log decrements, layer {DEPTH}", float(ratio[-1]), 3.0, "σ → βσ³/n"),
        Number(
            f"residual after layer {DEPTH} over βr³/n of the one before", float(alone[-1] / cubed), 1.0, "σ → βσ³/n"
        ),
    ]
    curves = {"residual": (("layer",), alone), "residual_skip": (("layer",), skip), "ratio": (("pair",), ratio)}
    contrasts = {
        f"residual kept after {DEPTH} layers, no skip": float(alone[-1] / alone[0]),
        f"residual kept after {DEPTH} layers, with skip": float(skip[-1] / skip[0]),
    }
    return as_dataset(numbers, curves, DEFINITIONS, {}, {"n": N, "d": D, "beta": BETA, "seed": seed}, contrasts)


def norms(r: Particles, mean: Float[Tensor, "1 d"], skip: bool) -> Float[Tensor, " layer"]:
    """‖r‖ after 0, 1, …, DEPTH layers."""
    seen = [r.norm()]
    for _ in range(DEPTH):
        moved = weights(dot(BETA), mean + r) @ r
        if skip:
            moved, mean = r + moved, 2 * mean
        mean, r = mean + moved.mean(0), moved - moved.mean(0)
        seen.append(r.norm())
    return torch.stack(seen)

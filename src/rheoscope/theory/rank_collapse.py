"""Attention alone collapses a cloud to one point, cubically fast; the skip keeps it."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.theory.particles import Particles, attention_weights, dot_product_attention, normalise, standard_normal
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

N, D, BETA, DEPTH, INITIAL_SCALE = 16, 8, 4.0, 4, 0.6
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
    start = standard_normal(seed, N, D)
    start = start - start.mean(0)
    start = (
        INITIAL_SCALE * (N / BETA) ** 0.5 * start / torch.linalg.svdvals(start)[0]
    )  # √(β/n) σ = SPREAD: at 1 nothing falls
    mean = normalise(standard_normal(seed + 1, 1, D))
    residual_no_skip = residual_norms(start, mean, skip=False)
    residual_skip = residual_norms(start, mean, skip=True)
    log_decrements = -residual_no_skip.log().diff()
    ratio = log_decrements[1:] / log_decrements[:-1]
    predicted = BETA / N * residual_no_skip[-2] ** 3
    comparisons = [
        Comparison(f"last ratio of log decrements, layer {DEPTH}", float(ratio[-1]), 3.0, "σ → βσ³/n"),
        Comparison(
            f"residual after layer {DEPTH} over βr³/n of the one before",
            float(residual_no_skip[-1] / predicted),
            1.0,
            "σ → βσ³/n",
        ),
    ]
    curves = {
        "residual": (("layer",), residual_no_skip),
        "residual_skip": (("layer",), residual_skip),
        "ratio": (("pair",), ratio),
    }
    contrasts = {
        f"residual kept after {DEPTH} layers, no skip": float(residual_no_skip[-1] / residual_no_skip[0]),
        f"residual kept after {DEPTH} layers, with skip": float(residual_skip[-1] / residual_skip[0]),
    }
    return as_dataset(comparisons, curves, DEFINITIONS, {}, {"n": N, "d": D, "beta": BETA, "seed": seed}, contrasts)


def residual_norms(r: Particles, mean: Float[Tensor, "1 d"], skip: bool) -> Float[Tensor, " layer"]:
    """‖r‖ after 0, 1, …, DEPTH layers."""
    norms = [r.norm()]
    for _ in range(DEPTH):
        output = attention_weights(dot_product_attention(BETA), mean + r) @ r
        if skip:
            output, mean = r + output, 2 * mean
        mean, r = mean + output.mean(0), output - output.mean(0)
        norms.append(r.norm())
    return torch.stack(norms)

"""Rank collapse: attention alone contracts a cloud cubically; a skip connection prevents it."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.theory.particles import Particles, attention_weights, dot_product_attention, normalise, standard_normal
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

N, D, BETA, DEPTH, INITIAL_SCALE = 16, 8, 4.0, 4, 0.6
DEFINITIONS = {
    "residual": Message("‖X − 1x̄‖ after every layer of attention alone"),
    "residual_skip": Message("‖X − 1x̄‖ after every layer with a skip connection"),
    "ratio": Message("ratio of consecutive decrements of the log residual"),
}


def rank_collapse(seed: int = 0) -> "xarray.Dataset":
    """X ← softmax(βXXᵀ)X without a skip connection: how fast does the distance of the cloud from its mean vanish?

    **Formula** With x_i = x̄ + r_i, softmax sees βx̄·r_j + βr_i·r_j. Only the second term differs between rows, so
    r_i' = βr_i C + higher orders with C = (1/n) Σ r_jᵀr_j. Every singular value σ of r becomes βσ³/n. Hence each layer triples
    log‖r‖ + const, and also its decrement. The mean is stored separately, so that rounding is relative to r.

    **Returns** the last ratio of log decrements (expected 3), and the last residual divided by βr³/n of the previous one (expected 1,
    since only one singular value remains).

    **Source** Dong, Cordonnier and Loukas 2021 (arXiv:2103.03404), who bound the residual by a cube and show that the skip connection
    prevents the collapse.
    """
    start = standard_normal(seed, N, D)
    start = start - start.mean(0)
    # √(β/n) σ = INITIAL_SCALE; at 1 nothing would contract
    start = INITIAL_SCALE * (N / BETA) ** 0.5 * start / torch.linalg.svdvals(start)[0]
    mean = normalise(standard_normal(seed + 1, 1, D))
    residual_no_skip = residual_norms(start, mean, skip=False)
    residual_skip = residual_norms(start, mean, skip=True)
    log_decrements = -residual_no_skip.log().diff()
    ratio = log_decrements[1:] / log_decrements[:-1]
    predicted = BETA / N * residual_no_skip[-2] ** 3
    comparisons = [
        Comparison(f"last ratio of log decrements, layer {DEPTH}", float(ratio[-1]), 3.0, "σ → βσ³/n"),
        Comparison(
            f"residual after layer {DEPTH} / (βr³/n of the previous layer)",
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
        f"remaining residual after {DEPTH} layers, no skip": float(residual_no_skip[-1] / residual_no_skip[0]),
        f"remaining residual after {DEPTH} layers, with skip": float(residual_skip[-1] / residual_skip[0]),
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

"""At what depth the flows of two models diverge: distances of the points of every token, and of the shapes of the clouds."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.space.pair_distances import centred_inner_products, distances, upper_triangle
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import unit_ranks

MIN_TOKENS = 4
"""Clouds of fewer tokens have too few distances to compare."""


def token_divergence(first: Trace, second: Trace) -> Float[Tensor, "step n"]:
    """‖y − x‖ / √((‖x‖² + ‖y‖²)/2) of every token after every step, between 0 and 2."""
    rows = []
    for x, y in zip(first.points, second.points, strict=True):
        x, y = at_least_float32(x).double().cpu(), at_least_float32(y).double().cpu()
        size = (x.square().sum(-1) + y.square().sum(-1)) / 2
        rows.append(safe_divide((y - x).norm(dim=-1), size.sqrt()))
    return torch.stack(rows)


def first_step_beyond(divergence: Float[Tensor, "step *n"], threshold: float) -> Int[Tensor, "*n"]:
    """The first step whose divergence exceeds the threshold; −1 if none does.

    >>> first_step_beyond(torch.tensor([[0.0, 0.0], [0.2, 0.0], [0.1, 0.0]]), 0.1).tolist()
    [1, -1]
    """
    is_beyond = divergence > threshold
    return torch.where(is_beyond.any(0), is_beyond.int().argmax(0), -1)


def common_positions(first: Trace, second: Trace, max_tokens: int) -> list[int]:
    """The tokens that are massive in neither model: at most `max_tokens`, at equal distances."""
    massive = {*first.massive_tokens(), *second.massive_tokens()}
    positions = [position for position in range(len(first)) if position not in massive]
    if len(positions) <= max_tokens:
        return positions
    return [positions[index * len(positions) // max_tokens] for index in range(max_tokens)]


def rank_vectors(clouds: Float[Tensor, "c n d"]) -> Float[Tensor, "c pairs"]:
    """The ranks of all pairwise distances of each cloud, centred and of length 1: their inner products are RSA."""
    return unit_ranks(upper_triangle(distances(centred_inner_products(clouds.double().cpu()))))


def step_ranks(trace: Trace, positions: list[int]) -> Float[Tensor, "step pairs"]:
    """The rank vectors of the clouds after every step."""
    return torch.cat([rank_vectors(at_least_float32(x[positions])[None]) for x in trace.points])


def shape_change(first_ranks: Float[Tensor, "step p"], second_ranks: Float[Tensor, "step p"]) -> Float[Tensor, " step"]:
    """1 − RSA of the clouds after the same step, as ½‖u − v‖², which is exactly 0 for equal clouds."""
    return (first_ranks - second_ranks).square().sum(-1) / 2

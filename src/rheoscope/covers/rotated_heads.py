"""The null of randomly rotated heads with the same singular values: moments in closed form, and draws.

symmetry_null, mean_null_draws    from the weights: singular values and r x r matrices
mismatch_null                     from the rank of two spaces
random_head_rotations             for a cloud, which is rotated instead of the heads
"""

import math
from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn.functional import embedding

from rheoscope.attention.lower.block_size import cache_block_numel
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.statistics.nulls import random_rotation_corners, random_rotations, random_signs

MAX_POOLED_COLUMNS = 2**13
"""The largest number of columns in the pool of corners. Beyond it, corners are reused with permuted, sign-flipped columns."""
NULL_CENTRES = {"copying": 0.0, "alignment": 0.0, "positive_share": 0.5}
"""The centre of symmetry of each null, because −M and −F are as likely as M and F."""


def symmetry_null(S: Float[Tensor, "*h r"], width: int) -> tuple[Float[Tensor, "*h"], Float[Tensor, "*h"]]:
    """Mean and standard deviation of tr(M'M')/‖M‖² for M' = Q M Q'ᵀ, from the singular values of M, and 0 for M = 0.

    **Formula** R = Q'ᵀQ is uniform, so the moments of its entries are known (Weingarten calculus):
    E tr(MRMR) = ‖M‖²/d and E tr(MRMR)² = (3(d + 1)‖M‖⁴ − 6 Σs⁴) / (d(d − 1)(d + 2)).

    >>> [round(float(x), 4) for x in symmetry_null(torch.ones(64), 576)]  # 1/d and about √2/d
    [0.0017, 0.0025]
    """
    squares = S.square()
    concentration = safe_divide(squares.square().sum(-1), squares.sum(-1).square())
    mean = (squares.sum(-1) > 0) / width
    if width == 1:
        return mean, torch.zeros_like(mean)
    second_moment = (3 * (width + 1) - 6 * concentration) / (width * (width - 1) * (width + 2))
    return mean, torch.where(mean > 0, (second_moment - 1 / width**2).clamp(min=0).sqrt(), 0)


def mean_null_draws(
    values: Mapping[str, Float[Tensor, "layer h *r"]], width: int, draws: int, seed: int
) -> dict[str, Float[Tensor, " draw"]]:
    """Null draws of the mean over all heads of symmetry, copying, alignment and positive share.

    For symmetry every head is rotated at random. The other three flip around their centre, each head on its own, because −I is a
    rotation.
    """
    generator = Generator().manual_seed(seed)
    S = values["singular_values_M"].double().flatten(0, 1)
    null_samples = {"symmetry": torch.stack(list(symmetry_null_draws(S, width, draws, generator))).mean(-1).cpu()}
    for name, centre in NULL_CENTRES.items():
        deviations = values[name].double().cpu().flatten() - centre
        null_samples[name] = centre + (random_signs(len(deviations), draws, generator) * deviations).mean(-1)
    return {f"mean_{name}_null_draws": x for name, x in null_samples.items()}


def symmetry_null_draws(
    S: Float[Tensor, "h r"], width: int, draws: int, generator: Generator
) -> Iterator[Float[Tensor, " h"]]:
    """tr(SWSW)/tr(S²), draw by draw. For M = U S Vᵀ only the corner W = VᵀRU of a random rotation R matters."""
    S = S[:, :width]
    S = (S / S.square().sum(-1, keepdim=True).sqrt().clamp(min=torch.finfo(S.dtype).tiny)).float()
    n_heads, rank = S.shape
    pool = random_rotation_corners(
        min(draws * n_heads, math.ceil(MAX_POOLED_COLUMNS / rank)), rank, width, generator
    ).to(S.device)
    columns = pool.mT.flatten(0, 1)  # of all corners, each contiguous; the trace of a transposed corner is the same
    draws_at_once = max(1, cache_block_numel(S.device) // (n_heads * rank**2))
    for draw_indices in torch.arange(draws).split(draws_at_once):
        if len(pool) == draws * n_heads:
            yield from _corner_traces(pool.unflatten(0, (draws, n_heads))[draw_indices.to(S.device)], S)
        else:
            resampled_corners = [_resample_corners(len(pool), n_heads, rank, generator) for _ in draw_indices]
            corner_indices, order_keys, column_signs = (
                torch.stack(head_values).to(S.device) for head_values in zip(*resampled_corners, strict=True)
            )
            column_indices = corner_indices[..., None] * rank + order_keys.argsort(-1)
            yield from _corner_traces(embedding(column_indices, columns), S * column_signs)


def _resample_corners(pool_size: int, n_heads: int, rank: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """For every head: the index of its corner, the sort keys of its columns and their signs."""
    corner_indices = torch.randint(pool_size, (n_heads,), generator=generator)
    return corner_indices, torch.rand(n_heads, rank, generator=generator), random_signs(rank, n_heads, generator)


def _corner_traces(W: Float[Tensor, "draw h r r"], S: Float[Tensor, "*#draw h r"]) -> Float[Tensor, "draw h"]:
    """tr(S W S W) of every head. S may include the signs of the columns of W."""
    scaled_corners = W * S[..., None]
    return (scaled_corners * scaled_corners.mT).sum((-2, -1)).double()


# Two spaces


def mismatch_null(rank: Float[Tensor, "*h"], width: int) -> tuple[Float[Tensor, "*h"], Float[Tensor, "*h"]]:
    """Mean and standard deviation of the mean sin² of the principal angles between two random spaces of a rank.

    >>> [round(float(x), 4) for x in mismatch_null(torch.tensor(64.0), 576)]
    [0.8889, 0.0022]
    """
    mean = (1 - rank / width).clamp(min=0)
    return mean, mean * math.sqrt(2 / max(1, (width - 1) * (width + 2)))


# A cloud


def random_head_rotations(width: int, draws: int, seed: int, device: torch.device) -> Float[Tensor, "draw d d"]:
    """Random rotations Q of E, shared by all heads and layers. A head applied to x̂Q is the rotated head QM applied to x̂.

    Heads with a shared key still share it after a common rotation, so the mean over heads has the right variance.
    """
    return random_rotations(draws, width, Generator().manual_seed(seed), device=device)

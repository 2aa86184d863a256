"""The diagonal blocks of a causal Jacobian, one per token, and the largest |eigenvalue| among them."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.fixed_point.layer_map import Cloud, Map
from rheoscope.covers.fixed_point.row_probes import probe_pullback

Blocks = Float[Tensor, "n d d"]
ROUNDING = 1e-6
"""Relative error of products with a Jacobian. Models compute norms and rotations in float32 whatever their dtype."""
MAX_BLOCK_WORK = 2e9
"""The largest (tokens · width³) for which the blocks are computed: 119 tokens of width 256. More takes over 10 s per layer."""
FIRST_EIGENVALUES, MAX_SQUARINGS = 3, 8
"""Eigenvalues are computed from the power 2³ of the blocks on, and bounds up to the power 2⁸."""


def token_blocks(own: Map, x: Cloud, project: Map) -> Blocks:
    """∂T(x)_i/∂x_i of every token i, between the directions that `project` leaves.

    The derivative of `own` is block diagonal, so one pullback with the same unit vector at every token gives one row of every
    block.
    """
    unit_vectors = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)[:, None].expand(-1, len(x), -1)
    rows = [project(chunk).double() for chunk in probe_pullback(own, x)(project(unit_vectors))]
    return torch.cat(rows).transpose(0, 1)


def largest_block_radius(
    own: Map, x: Cloud, project: Map, tolerance: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest |eigenvalue| over all blocks, and its error.

    ‖B^k‖^(1/k) is at least the radius of a block B and tends to it (Gelfand). The powers k = 2, 4, 8, … are squares of each other.
    After each, the eigenvalues of the block with the largest bound are computed. Blocks whose bound exceeds the largest
    |eigenvalue| so far by at most the tolerance are left out, and the error covers them.
    """
    blocks = token_blocks(own, x, project)
    powers, log_scales = blocks, blocks.new_zeros(len(blocks))
    remaining, best, left_out = list(range(len(blocks))), blocks.new_zeros(()), blocks.new_zeros(())
    for exponent in range(1, MAX_SQUARINGS + 1):
        scales = powers.flatten(1).norm(dim=-1).clamp(min=1e-300)
        scaled_powers = powers / scales[:, None, None]
        powers = scaled_powers @ scaled_powers
        log_scales = 2 * (log_scales + scales.log())
        bounds = ((log_scales + powers.flatten(1).norm(dim=-1).clamp(min=1e-300).log()) / 2**exponent).exp()
        if exponent < FIRST_EIGENVALUES:
            continue
        top = int(bounds.argmax())
        best = torch.maximum(best, block_radius(blocks[remaining[top]]))
        is_open = bounds > (1 + tolerance) * best
        left_out = torch.cat([left_out[None], bounds[~is_open]]).max()
        is_open[top] = False
        remaining = [token for token, is_token_open in zip(remaining, is_open.tolist(), strict=True) if is_token_open]
        powers, log_scales = powers[is_open], log_scales[is_open]
        if not remaining:
            break
    for token in remaining:  # bounds too close to tell apart
        best = torch.maximum(best, block_radius(blocks[token]))
    return best, (left_out - best).clamp(min=0) + ROUNDING * best


def block_radius(block: Float[Tensor, "d d"]) -> Float[Tensor, ""]:
    """The largest |eigenvalue| of one block."""
    return torch.linalg.eigvals(block.cpu()).abs().amax().to(block)

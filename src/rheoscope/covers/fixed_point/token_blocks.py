"""The diagonal blocks of a causal Jacobian, one per token, and the largest |eigenvalue| among them."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.fixed_point.layer_map import Cloud, Map
from rheoscope.covers.fixed_point.row_probes import probe_pullback
from rheoscope.space.cpu_cores import map_on_cores

Blocks = Float[Tensor, "n d d"]
ROUNDING = 1e-6
"""Relative error of products with a Jacobian. Models compute norms and rotations in float32 whatever their dtype."""
MAX_BLOCK_WORK = 2e9
"""The largest (tokens · width³) for which the blocks are computed: 119 tokens of width 256. More takes over 10 s per layer."""
SQUARINGS = 8
"""The upper bound of a radius uses the power 2^SQUARINGS of its block."""


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

    Eigenvalues are computed from the block with the largest upper bound downwards. Blocks whose bound exceeds the largest
    |eigenvalue| so far by less than the tolerance are left out, and the error covers them.
    """
    blocks = token_blocks(own, x, project)
    bounds = radius_bounds(blocks)
    order = bounds.argsort(descending=True).tolist()
    best, left_out = blocks.new_zeros(()), blocks.new_zeros(())
    for index, token in enumerate(order):
        if float(bounds[token]) <= (1 + tolerance) * float(best):
            left_out = bounds[order[index:]].max()
            break
        best = torch.maximum(best, torch.linalg.eigvals(blocks[token].cpu()).abs().amax().to(best))
    return best, (left_out - best).clamp(min=0) + ROUNDING * best


def radius_bounds(blocks: Blocks) -> Float[Tensor, " n"]:
    """‖B^k‖^(1/k) with k = 2^SQUARINGS, which is at least the radius and tends to it (Gelfand)."""

    def bound(block: Float[Tensor, "d d"]) -> Float[Tensor, ""]:
        log_scale = block.new_zeros(())
        for _ in range(SQUARINGS):
            scale = block.norm().clamp(min=1e-300)
            block = (block / scale) @ (block / scale)
            log_scale = 2 * (log_scale + scale.log())
        return ((log_scale + block.norm().clamp(min=1e-300).log()) / 2**SQUARINGS).exp()

    return torch.stack(list(map_on_cores(bound, list(blocks))))

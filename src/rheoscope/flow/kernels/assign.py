"""A Triton kernel for optimal assignments: one program solves one table by shortest augmenting paths.

    minimise Σ_i C_iσ(i)      reduced cost r_ij = C_ij − u_i − v_j ≥ 0, and 0 for assigned pairs

Row by row, Dijkstra's algorithm finds the cheapest path of reduced costs from the new row to a free column (Jonker and
Volgenant 1987). The arithmetic is in float64. Everything but the table is indexed by columns and stays in registers: the
assigned row, its u, v, the distance and the previous column of the path.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor


@triton.jit
@no_type_check
def assignment_kernel(COST, COLUMNS, n, BLOCK: tl.constexpr):
    table = COST + tl.program_id(0).to(tl.int64) * n * n
    j = tl.arange(0, BLOCK)
    infinity = float("inf")
    row_of = tl.full((BLOCK,), -1, tl.int32)
    u, v = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for new_row in range(n):
        distance, previous = tl.full((BLOCK,), infinity, tl.float64), tl.full((BLOCK,), -1, tl.int32)
        is_open = j < n
        row, row_u, column, shortest = new_row, tl.sum(tl.zeros((BLOCK,), tl.float64), 0), -1, 0.0
        shortest = row_u
        while row >= 0:
            reduced = shortest + tl.load(table + row * n + j, mask=j < n, other=0.0) - row_u - v
            is_shorter = is_open & (reduced < distance)
            distance, previous = tl.where(is_shorter, reduced, distance), tl.where(is_shorter, column, previous)
            open_distance = tl.where(is_open, distance, infinity)
            shortest = tl.min(open_distance, 0)
            column = tl.min(tl.where(open_distance == shortest, j, BLOCK), 0)
            is_open = is_open & (j != column)
            row, row_u = tl.sum(tl.where(j == column, row_of, 0), 0), tl.sum(tl.where(j == column, u, 0.0), 0)
        surplus = tl.where(is_open | (j >= n), 0.0, shortest - distance)
        u, v = u + surplus, v - surplus
        before = tl.sum(tl.where(j == column, previous, 0), 0)
        while before >= 0:
            row_of = tl.where(j == column, tl.sum(tl.where(j == before, row_of, 0), 0), row_of)
            u = tl.where(j == column, tl.sum(tl.where(j == before, u, 0.0), 0), u)
            column = before
            before = tl.sum(tl.where(j == column, previous, 0), 0)
        row_of, u = tl.where(j == column, new_row, row_of), tl.where(j == column, shortest, u)
    tl.store(COLUMNS + tl.program_id(0).to(tl.int64) * n + row_of, j.to(tl.int64), mask=j < n)


def assign(cost: Float[Tensor, "p n n"]) -> Int[Tensor, "p n"]:
    """The column of every row in an optimal assignment of every table."""
    p, n, _ = cost.shape
    columns = torch.empty(p, n, dtype=torch.int64, device=cost.device)
    block = max(32, triton.next_power_of_2(n))
    with torch.cuda.device_of(cost):
        assignment_kernel[p,](
            cost.double().contiguous(), columns, n, BLOCK=block, num_warps=max(1, min(8, block // 256))
        )
    return columns

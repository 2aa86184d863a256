"""Sums of float32 numbers without rounding, as exact integers: no order and no split changes a bit.

A float32 is m · 2ᵉ with |m| < 2²⁴. Numbers with one exponent are summed as integers, which float64 represents exactly below
2⁵³. The sums of all 254 exponents form one Python integer.
"""

from fractions import Fraction
from math import sqrt

import numpy as np

UNIT_BITS = 149
UNIT = Fraction(1, 2**UNIT_BITS)
"""The smallest float32: the unit of sums. Its square is the unit of sums of squares."""
N_EXPONENTS = 256
LIMB_BITS = 24
LIMB_MASK = 2**LIMB_BITS - 1


def exact_sums(x: np.ndarray, cell_index: np.ndarray, n_cells: int) -> tuple[list[int], list[int]]:
    """Σx and Σx² per cell, in units of the smallest float32 and of its square.

    `x` holds finite float32 numbers, fewer than 2²⁹ per call; `cell_index` is the cell of each.

    >>> total, squares = exact_sums(np.float32([1e20, 1, -1e20]), np.zeros(3, int), 1)
    >>> float(total[0] * UNIT)
    1.0
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    exponent = ((bits >> 23) & 255).astype(np.int64)
    mantissa = ((bits & 0x7FFFFF) | ((exponent > 0).astype(np.uint32) << 23)).astype(np.int64)
    sign = np.where(bits >> 31, -1, 1)
    key, shift = cell_index * N_EXPONENTS + exponent, np.maximum(np.arange(N_EXPONENTS) - 1, 0)
    square = mantissa * mantissa
    totals = _sum_by_cell([(sign * mantissa, 0)], key, n_cells, shift)
    squares = _sum_by_cell([(square >> LIMB_BITS, LIMB_BITS), (square & LIMB_MASK, 0)], key, n_cells, 2 * shift)
    return totals, squares


def _sum_by_cell(parts: list[tuple[np.ndarray, int]], key: np.ndarray, n_cells: int, shift: np.ndarray) -> list[int]:
    """Σ number · 2^(shift + extra_shift) per cell: summed by exponent, then in 24-bit limbs, then as one integer."""
    limbs = np.zeros((int(shift[-1] + 24) // LIMB_BITS + 4, n_cells), np.int64)
    for number, extra_shift in parts:
        sums = np.bincount(key, number, n_cells * N_EXPONENTS).reshape(n_cells, N_EXPONENTS)
        for exponent in np.flatnonzero(sums.any(0)).tolist():
            limb_index, bit_shift = divmod(int(shift[exponent]) + extra_shift, LIMB_BITS)
            exponent_sums = sums[:, exponent].astype(np.int64)
            for limb_offset, limb in enumerate(
                (exponent_sums & LIMB_MASK, (exponent_sums >> LIMB_BITS) & LIMB_MASK, exponent_sums >> 2 * LIMB_BITS)
            ):
                limbs[limb_index + limb_offset] += limb << bit_shift
    total = [0] * n_cells
    for limb_row in np.flatnonzero(limbs.any(1)).tolist():
        total = [
            partial + (limb << LIMB_BITS * limb_row)
            for partial, limb in zip(total, limbs[limb_row].tolist(), strict=True)
        ]
    return total


def mean_and_sd(total: int, squares: int, count: int) -> tuple[float, float]:
    """The mean and the standard deviation, each a quotient of integers rounded once; NaN if undefined.

    >>> mean_and_sd(*(sums[0] for sums in exact_sums(np.float32([1, 2, 3]), np.zeros(3, int), 1)), 3)
    (2.0, 1.0)
    """
    if not count:
        return float("nan"), float("nan")
    mean = total / (count << UNIT_BITS)
    if count == 1:
        return mean, float("nan")
    return mean, sqrt((squares * count - total * total) / (count * (count - 1) << 2 * UNIT_BITS))

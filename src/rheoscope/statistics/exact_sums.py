"""Sums of float32 numbers without rounding: whole numbers of the smallest float32, so that no order and no split changes a bit.

A float32 is m · 2ᵉ with |m| < 2²⁴. Numbers of one exponent are summed as whole numbers, which float64 holds exactly below 2⁵³,
and what comes of 254 exponents is one whole number of Python.
"""

from fractions import Fraction
from math import sqrt

import numpy as np

UNIT_BITS = 149
UNIT = Fraction(1, 2**UNIT_BITS)
"""The smallest float32: sums are counted in it, sums of squares in its square."""
EXPONENTS = 256
LIMB = 24
MASK = 2**LIMB - 1


def exact_sums(x: np.ndarray, cell: np.ndarray, cells: int) -> tuple[list[int], list[int]]:
    """Σx and Σx² of the numbers of every cell, in units of the smallest float32 and of its square.

    `x` are finite float32 numbers, `cell` says which cell each belongs to; fewer than 2²⁹ at a time.

    >>> total, squares = exact_sums(np.float32([1e20, 1, -1e20]), np.zeros(3, int), 1)
    >>> float(total[0] * UNIT)
    1.0
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    exponent = ((bits >> 23) & 255).astype(np.int64)
    m = ((bits & 0x7FFFFF) | ((exponent > 0).astype(np.uint32) << 23)).astype(np.int64)
    sign = np.where(bits >> 31, -1, 1)
    key, shift = cell * EXPONENTS + exponent, np.maximum(np.arange(EXPONENTS) - 1, 0)
    square = m * m
    whole = _gathered([(sign * m, 0)], key, cells, shift)
    squares = _gathered([(square >> LIMB, LIMB), (square & MASK, 0)], key, cells, 2 * shift)
    return whole, squares


def _gathered(parts: list[tuple[np.ndarray, int]], key: np.ndarray, cells: int, shift: np.ndarray) -> list[int]:
    """Σ number · 2^(shift + up) of every cell: summed by exponent, then in limbs of 24 bits, then as one whole number."""
    limbs = np.zeros((int(shift[-1] + 24) // LIMB + 4, cells), np.int64)
    for number, up in parts:
        found = np.bincount(key, number, cells * EXPONENTS).reshape(cells, EXPONENTS)
        for exponent in np.flatnonzero(found.any(0)).tolist():
            at, within = divmod(int(shift[exponent]) + up, LIMB)
            some = found[:, exponent].astype(np.int64)
            for up_by, limb in enumerate((some & MASK, (some >> LIMB) & MASK, some >> 2 * LIMB)):
                limbs[at + up_by] += limb << within
    total = [0] * cells
    for place in np.flatnonzero(limbs.any(1)).tolist():
        total = [one + (limb << LIMB * place) for one, limb in zip(total, limbs[place].tolist(), strict=True)]
    return total


def mean_and_sd(total: int, squares: int, count: int) -> tuple[float, float]:
    """The mean and the standard deviation (a quotient of whole numbers is rounded once); NaN where there is none.

    >>> mean_and_sd(*(one[0] for one in exact_sums(np.float32([1, 2, 3]), np.zeros(3, int), 1)), 3)
    (2.0, 1.0)
    """
    if not count:
        return float("nan"), float("nan")
    mean = total / (count << UNIT_BITS)
    if count == 1:
        return mean, float("nan")
    return mean, sqrt((squares * count - total * total) / (count * (count - 1) << 2 * UNIT_BITS))

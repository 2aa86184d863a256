"""Positions have their defining properties, and their derivatives match autograd."""

import math

import pytest
import torch

from rheoscope.attention.position import (
    CombinedPosition,
    LearnedPosition,
    Position,
    Rotary,
    Sinusoidal,
    sinusoidal_table,
)
from rheoscope.attention.position_bias import ALiBi, Bias, Buckets, alibi_slopes
from tests.attention.cases import POSITIONS, gap, gradients, random

ROTARIES = [Rotary(), Rotary(pairs="neighbours"), Rotary(width=4, base=50.0), Rotary(pairs="neighbours", width=2)]


@pytest.mark.parametrize("rotary", ROTARIES, ids=str)
def test_rotary_scores_depend_only_on_offsets(rotary: Rotary) -> None:
    q, k = random(1, 1, 1, 1, 6).expand(1, 1, 5, 6), random(2, 1, 1, 1, 6).expand(1, 1, 5, 6)
    i, j = torch.arange(3, 8), torch.arange(5)
    s = rotary.encode(q, i) @ rotary.encode(k, j).mT
    assert gap(rotary.encode(q, i + 11) @ rotary.encode(k, j + 11).mT, s) < 1e-12
    assert gap(s[..., 1:, 1:], s[..., :-1, :-1]) < 1e-12
    assert gap(s[..., :-1, 1:], s[..., :-1, :-1]) > 0.1


@pytest.mark.parametrize("rotary", ROTARIES, ids=str)
def test_rotary_rotates_pairs_of_coordinates(rotary: Rotary) -> None:
    """In complex numbers, pair c of the first `width` coordinates rotates by p base^(-2c/width); the rest is unchanged."""
    x, positions = random(3, 1, 1, 4, 6), torch.tensor([0, 1, 7, -2])
    width = rotary.width or 6
    half, c = width // 2, torch.arange(width // 2)
    first, second = (c, c + half) if rotary.pairs == "halves" else (2 * c, 2 * c + 1)
    phase = torch.polar(torch.ones(4, half).double(), positions[:, None] * rotary.base ** (-2 * c.double() / width))
    rotated = torch.complex(x[..., first], x[..., second]) * phase
    expected = x.clone()
    expected[..., first], expected[..., second] = rotated.real, rotated.imag
    assert gap(rotary.encode(x, positions), expected) < 1e-12


def test_sinusoidal_table_contains_sines_and_cosines() -> None:
    """This includes odd widths, where the last sine has no cosine."""
    for width in (1, 4, 5):
        table = sinusoidal_table(torch.tensor([0, 3, 90]), width)
        for row, p in enumerate((0, 3, 90)):
            for c in range(width):
                wave = (math.sin, math.cos)[c % 2](p / 10000 ** (2 * (c // 2) / width))
                assert float(table[row, c]) == pytest.approx(wave, abs=1e-12)


def test_additive_positions_are_added_to_tokens() -> None:
    x, positions = random(4, 2, 3, 4, 6), torch.tensor([5, 6, 7, 8])
    table = random(5, 9, 6)
    assert torch.equal(LearnedPosition(table).encode(x, positions), x + table[5:9])
    assert gap(Sinusoidal(50.0).encode(x, positions), x + sinusoidal_table(positions, 6, 50.0)) < 1e-15


def test_alibi_bias_is_slope_times_distance() -> None:
    slopes = torch.tensor([0.5, 0.25])
    bias = ALiBi(slopes).bias(torch.tensor([2, 3]), torch.arange(4))
    assert bias[0].tolist() == [[-1.0, -0.5, -0.0, -0.5], [-1.5, -1.0, -0.5, -0.0]]
    assert torch.equal(bias[1], bias[0] / 2)


def test_alibi_slopes_for_any_number_of_heads() -> None:
    """A power of two has a geometric series; other counts append every other slope of the next power of two."""
    assert alibi_slopes(8).tolist() == [2.0**-c for c in range(1, 9)]
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert alibi_slopes(6).tolist() == pytest.approx([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])
    assert len(alibi_slopes(12)) == 12


def test_bucket_index_is_exact_then_logarithmic() -> None:
    """8 bidirectional buckets: exact for offsets 0 and 1, then logarithmic; future offsets start at bucket 4."""
    buckets = Buckets(torch.zeros(8, 1), max_distance=16)
    assert buckets.bucket_index(torch.tensor([[0, -1, -2, -5, -6, -15, -16, -999]])).tolist() == [
        [0, 1, 2, 2, 3, 3, 3, 3]
    ]
    assert buckets.bucket_index(torch.tensor([[1, 2, 5, 6, 999]])).tolist() == [[5, 6, 6, 7, 7]]
    causal_buckets = Buckets(torch.zeros(8, 1), max_distance=16, bidirectional=False)
    assert causal_buckets.bucket_index(torch.tensor([[7, 1, 0, -1, -3, -4, -999]])).tolist() == [[0, 0, 0, 1, 3, 4, 7]]


def test_bias_table_rows_are_the_queries_of_the_call() -> None:
    """Rows of a table are the queries of the call at any positions; columns are the keys."""
    table = random(6, 4, 2, 5)
    assert torch.equal(Bias(table).bias(torch.tensor([3, 4]), torch.arange(5)), table)
    assert torch.equal(Bias(table).bias(torch.tensor([4]), torch.arange(1, 4)), table[:, 1:, 1:4])


def test_combined_position_encodes_in_order_and_adds_biases() -> None:
    a, b = ALiBi(alibi_slopes(4)), Bias(random(7, 4, 3, 3))
    i = torch.arange(3)
    x = random(8, 1, 4, 3, 6)
    assert gap(CombinedPosition(a, b).bias(i, i), a.bias(i, i) + b.bias(i, i)) < 1e-12
    assert CombinedPosition(Rotary(), Sinusoidal()).bias(i, i) is None
    encoded = CombinedPosition(Sinusoidal(), Rotary()).encode(x, i)
    assert gap(encoded, Rotary().encode(Sinusoidal().encode(x, i), i)) < 1e-12
    assert gap(encoded, Sinusoidal().encode(Rotary().encode(x, i), i)) > 0.1


@pytest.mark.parametrize("name", POSITIONS)
def test_pullbacks_match_autograd(name: str) -> None:
    position, positions, n = POSITIONS[name](3, 5), torch.arange(2, 5), torch.arange(5)
    x, dy, r = random(9, 2, 4, 3, 6), random(10, 2, 4, 3, 6), random(11, 2, 4, 3, 5)

    def encoding_and_bias(position: Position, x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        bias = position.bias(positions, n)
        return (position.encode(x, positions) * dy).sum() + (0 if bias is None else (bias * r).sum())

    expected = gradients(encoding_and_bias, position, (x, x, x), torch.ones(()))  # type: ignore[arg-type]
    dx, tensor_grads = position.pullback(positions, dy)
    computed = {"q": dx} | tensor_grads | position.pullback_bias(positions, n, r)
    assert set(computed) == set(expected) - {"k", "v"}
    assert max(gap(computed[path], expected[path]) for path in computed) < 1e-12


def test_only_no_position_is_trivial() -> None:
    assert {name for name in POSITIONS if POSITIONS[name](3, 3).is_trivial} == {"none"}

"""Positions by their defining properties, and their derivatives against autograd."""

import math

import pytest
import torch

from rheoscope.attention.position import (
    ALiBi,
    Bias,
    Buckets,
    Learned,
    Position,
    Rotary,
    Sinusoidal,
    Together,
    alibi_slopes,
    sinusoidal_table,
)
from tests.attention.cases import POSITIONS, gap, gradients, random

ROTARIES = [Rotary(), Rotary(pairs="neighbours"), Rotary(width=4, base=50.0), Rotary(pairs="neighbours", width=2)]


@pytest.mark.parametrize("rotary", ROTARIES, ids=str)
def test_rotary_scores_see_offsets_alone(rotary: Rotary) -> None:
    q, k = random(1, 1, 1, 1, 6).expand(1, 1, 5, 6), random(2, 1, 1, 1, 6).expand(1, 1, 5, 6)
    i, j = torch.arange(3, 8), torch.arange(5)
    s = rotary.place(q, i) @ rotary.place(k, j).mT
    assert gap(rotary.place(q, i + 11) @ rotary.place(k, j + 11).mT, s) < 1e-12
    assert gap(s[..., 1:, 1:], s[..., :-1, :-1]) < 1e-12
    assert gap(s[..., :-1, 1:], s[..., :-1, :-1]) > 0.1


@pytest.mark.parametrize("rotary", ROTARIES, ids=str)
def test_rotary_turns_pairs(rotary: Rotary) -> None:
    """By complex numbers: pair c of the first `width` coordinates turns by p base^(-2c/width), the rest stays."""
    x, at = random(3, 1, 1, 4, 6), torch.tensor([0, 1, 7, -2])
    width = rotary.width or 6
    half, c = width // 2, torch.arange(width // 2)
    first, second = (c, c + half) if rotary.pairs == "halves" else (2 * c, 2 * c + 1)
    turn = torch.polar(torch.ones(4, half).double(), at[:, None] * rotary.base ** (-2 * c.double() / width))
    turned = torch.complex(x[..., first], x[..., second]) * turn
    expected = x.clone()
    expected[..., first], expected[..., second] = turned.real, turned.imag
    assert gap(rotary.place(x, at), expected) < 1e-12


def test_sinusoidal_table() -> None:
    """Odd widths too: the last sine has no cosine."""
    for width in (1, 4, 5):
        table = sinusoidal_table(torch.tensor([0, 3, 90]), width)
        for row, p in enumerate((0, 3, 90)):
            for c in range(width):
                wave = (math.sin, math.cos)[c % 2](p / 10000 ** (2 * (c // 2) / width))
                assert float(table[row, c]) == pytest.approx(wave, abs=1e-12)


def test_places_are_added() -> None:
    x, at = random(4, 2, 3, 4, 6), torch.tensor([5, 6, 7, 8])
    table = random(5, 9, 6)
    assert torch.equal(Learned(table).place(x, at), x + table[5:9])
    assert gap(Sinusoidal(50.0).place(x, at), x + sinusoidal_table(at, 6, 50.0)) < 1e-15


def test_alibi() -> None:
    slopes = torch.tensor([0.5, 0.25])
    bias = ALiBi(slopes).bias(torch.tensor([2, 3]), torch.arange(4))
    assert bias[0].tolist() == [[-1.0, -0.5, -0.0, -0.5], [-1.5, -1.0, -0.5, -0.0]]
    assert torch.equal(bias[1], bias[0] / 2)


def test_alibi_slopes_of_other_head_counts() -> None:
    """Powers of two: a geometric series; else the nearest smaller one, then every other slope of the next larger."""
    assert alibi_slopes(8).tolist() == [2.0**-c for c in range(1, 9)]
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert alibi_slopes(6).tolist() == pytest.approx([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])
    assert len(alibi_slopes(12)) == 12


def test_buckets() -> None:
    """8 buckets both ways: exact offsets 0, 1; then logarithmic up to the largest distance; the future above 4."""
    buckets = Buckets(torch.zeros(8, 1), max_distance=16)
    assert buckets.bucket(torch.tensor([[0, -1, -2, -5, -6, -15, -16, -999]])).tolist() == [[0, 1, 2, 2, 3, 3, 3, 3]]
    assert buckets.bucket(torch.tensor([[1, 2, 5, 6, 999]])).tolist() == [[5, 6, 6, 7, 7]]
    back = Buckets(torch.zeros(8, 1), max_distance=16, bidirectional=False)
    assert back.bucket(torch.tensor([[7, 1, 0, -1, -3, -4, -999]])).tolist() == [[0, 0, 0, 1, 3, 4, 7]]


def test_a_bias_table_belongs_to_the_last_queries() -> None:
    """Rows of a table are the queries of the call, whatever their positions; columns are the keys."""
    table = random(6, 4, 2, 5)
    assert torch.equal(Bias(table).bias(torch.tensor([3, 4]), torch.arange(5)), table)
    assert torch.equal(Bias(table).bias(torch.tensor([4]), torch.arange(1, 4)), table[:, 1:, 1:4])


def test_together() -> None:
    a, b = ALiBi(alibi_slopes(4)), Bias(random(7, 4, 3, 3))
    i = torch.arange(3)
    x = random(8, 1, 4, 3, 6)
    assert gap(Together(a, b).bias(i, i), a.bias(i, i) + b.bias(i, i)) < 1e-12
    assert Together(Rotary(), Sinusoidal()).bias(i, i) is None
    moved = Together(Sinusoidal(), Rotary()).place(x, i)
    assert gap(moved, Rotary().place(Sinusoidal().place(x, i), i)) < 1e-12
    assert gap(moved, Sinusoidal().place(Rotary().place(x, i), i)) > 0.1


@pytest.mark.parametrize("name", POSITIONS)
def test_pulls_are_the_derivatives(name: str) -> None:
    position, at, n = POSITIONS[name](3, 5), torch.arange(2, 5), torch.arange(5)
    x, dy, r = random(9, 2, 4, 3, 6), random(10, 2, 4, 3, 6), random(11, 2, 4, 3, 5)

    def both(position: Position, x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        bias = position.bias(at, n)
        return (position.place(x, at) * dy).sum() + (0 if bias is None else (bias * r).sum())

    auto = gradients(both, position, (x, x, x), torch.ones(()))  # type: ignore[arg-type]
    dx, own = position.pull(at, dy)
    found = {"q": dx} | own | position.pull_bias(at, n, r)
    assert set(found) == set(auto) - {"k", "v"}
    assert max(gap(found[at], auto[at]) for at in found) < 1e-12


def test_only_no_position_is_nowhere() -> None:
    assert {name for name in POSITIONS if POSITIONS[name](3, 3).nowhere} == {"none"}

"""Chance: rotations are orthogonal and even, p-values uniform, q-values scipy's, intervals those of a slow twin."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr
from scipy.stats import false_discovery_control
from torch import Generator, Tensor

from rheoscope.statistics.nulls import (
    CHUNK,
    RESAMPLES,
    bootstrap,
    bootstrap_means,
    p_values,
    pooled_p,
    q_values,
    rotations,
    student,
    successors,
    unit_name,
    units,
    z_scores,
)

F64 = torch.float64


def test_rotations_are_orthogonal_and_even() -> None:
    Q = rotations(600, 5, torch.Generator().manual_seed(0))
    assert torch.allclose(Q @ Q.mT, torch.eye(5).expand_as(Q), atol=1e-5)
    assert float(Q.mean(0).abs().max()) < 0.1
    assert torch.allclose(Q.square().mean(0), torch.full((5, 5), 0.2), atol=0.05)


@given(seed=st.integers(0, 1000), n=st.integers(1, 30))
def test_q_values_are_scipys(seed: int, n: int) -> None:
    p = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    assert np.allclose(q_values(p), false_discovery_control(p.numpy()))
    holed = torch.cat([p, torch.tensor([float("nan")], dtype=F64)])
    assert np.allclose(q_values(holed)[:-1], q_values(p))
    assert bool(q_values(holed)[-1].isnan())


def test_the_interval_is_that_of_units_drawn_one_by_one() -> None:
    sizes = [3, 5, 2, 9, 4, 6]
    sums = torch.randn(2, 3, 6, generator=Generator().manual_seed(1), dtype=F64) * torch.tensor(sizes)
    low, high = bootstrap(sums, sizes, Generator().manual_seed(7))
    drawn = torch.randint(6, (RESAMPLES, 6), generator=Generator().manual_seed(7))
    means = np.array([[float(sums[1, 2, u].sum()) / sum(sizes[at] for at in u) for u in drawn]])
    assert [float(low[1, 2]), float(high[1, 2])] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=1e-12)


def test_rows_are_drawn_together() -> None:
    sums = torch.randn(8, generator=Generator().manual_seed(1), dtype=F64)
    found = bootstrap_means(torch.stack([sums, 2 * sums]), [1] * 8, Generator().manual_seed(0))
    assert torch.allclose(2 * found[0], found[1])


def test_units_are_texts_or_chunks_of_them() -> None:
    assert units([70, 3, 5, 9, 8]) == [70, 3, 5, 9, 8]
    assert unit_name([70, 3, 5, 9, 8]) == "texts"
    assert units([2 * CHUNK + 6, 3]) == [CHUNK, CHUNK, 6, 3]
    assert "chunks" in unit_name([70, 3])
    sums = torch.arange(8.0, dtype=F64).reshape(2, 4)
    low, high = bootstrap(sums, units([70, 3]), Generator())
    assert low.isnan().all()
    assert high.isnan().all()


def test_a_law_of_known_spread() -> None:
    """The interval of a mean of normal numbers, and that 95 % of intervals hold the truth."""
    generator, held = Generator().manual_seed(0), 0
    for _ in range(200):
        low, high = bootstrap(torch.randn(1, 60, generator=generator, dtype=F64), [1] * 60, generator)
        held += bool(low[0] <= 0 <= high[0])
    assert 0.88 <= held / 200 <= 0.99


@given(st.integers(3, 12), st.integers(1, 5), st.integers(0, 999))
def test_every_draw_is_measured_against_the_others_of_its_head(draws: int, heads: int, seed: int) -> None:
    own, *drawn = torch.randn(1 + draws, heads, generator=Generator().manual_seed(seed), dtype=torch.float64)
    drawn = torch.stack(drawn)

    def t(one: Tensor, rest: Tensor) -> Tensor:
        return ((one - rest.mean(0)) / (rest.std(0) * math.sqrt(1 + 1 / len(rest)))).abs()

    others = torch.cat([t(drawn[at], torch.cat([drawn[:at], drawn[at + 1 :]])) for at in range(draws)])
    slow = torch.stack([(1 + (others >= far).sum()) / (len(others) + 1) for far in t(own, drawn)])
    assert torch.allclose(pooled_p(own, drawn), slow.double())


def test_p_values_of_chance_are_uniform_and_keep_their_floor() -> None:
    drawn = torch.randn(21, 4000, generator=Generator().manual_seed(3), dtype=torch.float64)
    for p, floor in ((p_values(drawn[0], drawn[1:]), 1 / 21), (pooled_p(drawn[0], drawn[1:]), 1 / 80001)):
        assert abs(float((p <= 0.05).double().mean()) - 0.05) < 0.012
        assert float(p.min()) >= floor


def test_draws_without_spread_give_no_p() -> None:
    own, drawn = torch.tensor([1.0, 1.0]), torch.stack([torch.zeros(9), torch.randn(9)], 1)
    assert pooled_p(own, drawn).isnan().tolist() == [True, False]


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_a_text_in_another_order_keeps_its_ends_and_follows_no_place_by_itself(n: int) -> None:
    for follows in successors(n, 20, seed=n).tolist():
        way = [0]
        while way[-1] != n - 1:
            way.append(follows[way[-1]])
        assert sorted(way) == list(range(n))
    assert successors(n, 0, seed=0).shape == (0, n - 1)
    drawn = successors(9, 300, seed=0)[:, 3].tolist()
    assert set(drawn) == {1, 2, 4, 5, 6, 7, 8}


def test_no_spread_and_no_null_give_no_z() -> None:
    z = z_scores(torch.tensor([3.0, 3.0, 1.0]), torch.ones(3), torch.tensor([0.5, 0.0, math.nan]))
    assert z[0] == 4
    assert z[1:].isnan().all()


@given(st.floats(-30, 30), st.integers(1, 200))
def test_students_law_is_scipys(t: float, freedom: int) -> None:
    exact = 2 * stdtr(freedom, -abs(t))
    assert float(student(torch.tensor(t, dtype=torch.float64), freedom)) == pytest.approx(exact, rel=1e-7, abs=0)


def test_what_is_all_but_impossible_is_not_impossible() -> None:
    t = torch.tensor([80.0, -1e6, math.inf, math.nan, 0.0], dtype=torch.float64)
    found = student(t, 11)
    assert found[:2].tolist() == pytest.approx([2 * stdtr(11, -80.0), 2 * stdtr(11, -1e6)], rel=1e-9)
    assert found[1] > 0
    assert found[3].isnan()
    assert (float(found[2]), float(found[4])) == (pytest.approx(0, abs=1e-150), 1)

"""Kept geometry: 1 against itself, blind to turns, shifts and scales, equal to scipy's Spearman and slow neighbours."""

from dataclasses import replace
from functools import cache
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr
from torch import Tensor

import rheoscope as rs
from rheoscope.flow.geometry_kept.analysis import distances_and_neighbours, mantel_null_sd, nearest_neighbours
from rheoscope.flow.geometry_kept.token_pairs import all_pairs, sample_pairs
from rheoscope.running.runner import RunnableModel
from rheoscope.space.components import components
from rheoscope.space.pair_distances import centred_inner_products, distances
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import unit_ranks
from tests.cases import EVERY, POST_NORM, double, random, traced

F64 = torch.float64


@cache
def default() -> RunnableModel:
    return rs.load(dtype="float64")


def cloudy(n: int = 12, seed: int = 0) -> Trace:
    """A Trace with random points: nothing massive, nothing tied."""
    trace = default().trace(list(range(1, n + 1)))
    return replace(trace, points=random(seed, *trace.points.shape))


def test_it_equals_scipy_and_a_slow_search() -> None:
    trace = cloudy()
    found = rs.geometry_kept(trace, strides=(1,), nearest=3, keep_massive=True)
    layers = [*trace.input_steps, len(trace.steps) - 1]
    a, b = (trace.points[at].numpy() for at in (layers[2], layers[1]))
    start = trace.points[0].numpy()
    assert float(found.rsa[2, 1]) == pytest.approx(spearmanr(pdist(a), pdist(b)).statistic)
    assert float(found.rsa[2, 0]) == pytest.approx(spearmanr(pdist(a), pdist(start)).statistic)

    def near(x: np.ndarray, i: int) -> set[int]:
        return set(sorted((j for j in range(len(x)) if j != i), key=lambda j: np.linalg.norm(x[i] - x[j]))[:3])

    slow = np.mean([len(near(a, i) & near(b, i)) / 3 for i in range(len(a))])
    assert float(found.neighbours[2, 1]) == pytest.approx(slow)
    assert float(found.neighbours_null) == pytest.approx(3 / 11)


def test_ties_share_their_rank() -> None:
    trace = cloudy()
    points = trace.points.clone()
    points[:, 3] = points[:, 7]
    found = rs.geometry_kept(replace(trace, points=points), keep_massive=True)
    layers = [*trace.input_steps, len(trace.steps) - 1]
    a, b = (points[at].numpy() for at in (layers[1], layers[0]))
    assert float(found.rsa[1, 0]) == pytest.approx(spearmanr(pdist(a), pdist(b)).statistic, abs=1e-7)


def test_turns_shifts_and_scales_keep_everything() -> None:
    trace = cloudy()
    Q = torch.linalg.qr(random(3, 256, 256))[0]
    moved = torch.stack([(1 + at) * trace.points[0] @ Q + at for at in range(len(trace.steps))])
    found = rs.geometry_kept(replace(trace, points=moved), keep_massive=True)
    assert float(abs(found.rsa.sel(reference="embed") - 1).max()) <= 1e-6
    assert float(abs(found.neighbours.sel(reference="embed") - 1).max()) == 0


def test_the_null_is_about_nothing_and_random_clouds_lie_in_it() -> None:
    found = rs.geometry_kept(cloudy(40), keep_massive=True)
    assert float(abs(found.rsa_null.sel(reference="-1")[1:]).max()) == 0
    assert float(abs(found.rsa / found.rsa_null_sd).sel(reference="-1")[1:].max()) < 3.5
    assert bool(np.isnan(found.rsa.sel(point="embed", reference="-1")))


def test_the_spread_of_the_null_is_that_of_all_permutations() -> None:
    a, b = (distances(centred_inner_products(random(seed, 6, 2))) for seed in (0, 1))

    def ranked(table: Tensor) -> Tensor:
        return unit_ranks(table[*torch.triu_indices(6, 6, 1)])

    every = [float(ranked(a) @ ranked(b[list(order)][:, list(order)])) for order in permutations(range(6))]
    assert np.mean(every) == pytest.approx(0, abs=1e-12)
    pairs = all_pairs(torch.stack([a, b]), None)
    one, other = pairs.mantel_moments(pairs.distance_ranks(pairs.take_from(torch.stack([a, b]))[None]), 6)[0].split(1)
    assert float(mantel_null_sd(one, other, pairs.n_tokens[:1])) == pytest.approx(np.std(every))


def test_pairs_drawn_at_random_tell_the_same_within_their_error() -> None:
    """RSA, and the spread of its null, over many seeds: no bias, and as spread as it says."""
    trace = traced("gpt2", torch.float64, n=40)
    whole = rs.geometry_kept(trace)
    drawn = [rs.geometry_kept(trace, pairs=300, seed=seed) for seed in range(30)]
    rsa, null, error = (
        np.stack([one[name].sel(reference="-1").values[1:] for one in drawn])
        for name in ("rsa", "rsa_null_sd", "rsa_error")
    )
    wanted, spread = (whole[name].sel(reference="-1").values[1:] for name in ("rsa", "rsa_null_sd"))
    assert (abs(rsa.mean(0) - wanted) < 4 * error.mean(0) / 30**0.5).all()
    assert (abs(rsa.std(0) / error.mean(0) - 1) < 0.6).all()
    assert (abs(null.mean(0) / spread - 1) < 0.2).all()
    assert "rsa_error" not in whole


def test_pairs_drawn_at_random_are_of_tokens_that_count() -> None:
    there = torch.tensor([[True, False, True, True], [True, True, True, True]])
    found = sample_pairs(torch.zeros(2, 4, 4), there, 200, 0)
    assert not (found.i == found.j).any()
    assert {tuple(sorted(pair)) for pair in zip(found.i[0].tolist(), found.j[0].tolist(), strict=True)} == {
        (0, 2),
        (0, 3),
        (2, 3),
    }
    assert len(set(zip(found.i[1].tolist(), found.j[1].tolist(), strict=True))) == 12


@pytest.mark.parametrize("seed", range(5))
def test_of_equally_near_tokens_the_earlier_is_nearer(seed: int) -> None:
    """Points of a grid: many ties, at the border of the nearest too."""
    x = torch.randint(0, 3, (15, 2), generator=torch.Generator().manual_seed(seed)).double()
    far = torch.cdist(x, x)
    for k in (1, 3, 6):
        found = nearest_neighbours(far, k)
        for i in range(15):
            wanted = sorted((j for j in range(15) if j != i), key=lambda j: (round(float(far[i, j]), 9), j))[:k]
            assert set(found[i].tolist()) == set(wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("n", [15, 300])
def test_on_a_gpu_pairs_and_nearest_are_those_on_a_cpu(n: int, gaps: bool) -> None:
    """Points of a grid: inner products are whole numbers, and many distances are equal."""
    x = torch.randint(0, 3 if n == 15 else 99, (2, n, 2), generator=torch.Generator().manual_seed(n)).float()
    table, there = x @ x.mT, (torch.arange(2 * n).reshape(2, n) % 5 > 0) if gaps else None
    pairs = sample_pairs(table, there, 50, 0)
    due = distances_and_neighbours(table, pairs, 5, there)
    own = distances_and_neighbours(
        table.cuda(), replace(pairs, i=pairs.i.cuda(), j=pairs.j.cuda()), 5, None if there is None else there.cuda()
    )
    rows = torch.ones(2, n, dtype=torch.bool) if there is None else there
    assert torch.allclose(own[0].cpu(), due[0])
    assert torch.equal(own[1].cpu().sort(-1).values[rows], due[1].sort(-1).values[rows])


def test_distances_of_pairs_need_no_table() -> None:
    table = centred_inner_products(random(0, 2, 9, 3))
    for pairs in (all_pairs(table, None), sample_pairs(table, None, 30, 0)):
        assert torch.equal(pairs.distances_from_inner(table), pairs.take_from(distances(table)))


def test_what_it_cannot_do_is_told() -> None:
    with pytest.raises(rs.RheoscopeError, match="at least 4 tokens"):
        rs.geometry_kept(double("gpt2").trace([1, 2]))
    with pytest.raises(rs.RheoscopeError, match="the nearest are from 1 to 16, got nearest=100; type nearest=5"):
        rs.geometry_kept(traced("gpt2", F64), nearest=100)


# Erasure


@pytest.mark.parametrize("name", EVERY)
def test_erasure_is_the_projection_of_what_is_written_later(name: str) -> None:
    trace = traced(name, F64)
    found = rs.geometry_kept(trace, keep_massive=True)
    last, made = trace.points[-1], components(trace)
    for layer in range(trace.view.layers):
        after = trace.points[trace.mid_steps[layer]]
        for head in (0, 3):
            moved = made.parts[made.names.index(f"L{layer}.H{head}")]
            top = sum(float(a @ b) for a, b in zip(moved, last - after, strict=True))
            slow = top / sum(float(a @ a) for a in moved)
            assert float(found.erasure[layer, head]) == pytest.approx(slow, abs=1e-9)
        moved = made.parts[made.names.index(f"L{layer}.mlp")]
        step = f"L{layer}.mlp_sum" if name in POST_NORM else f"L{layer}.resid_post"
        slow = float((moved * (last - trace.points_at(step))).sum() / moved.square().sum())
        assert float(found.erasure_mlp[layer]) == pytest.approx(slow, abs=1e-9)
    if name not in POST_NORM:
        assert float(found.erasure_mlp[-1]) == 0  # nothing comes after


def test_what_is_taken_back_is_minus_one() -> None:
    """Plant a stream whose second layer undoes what the MLP of the first one wrote, or writes it again."""
    trace = traced("gpt2", F64)
    for share in (-1.0, 0.0, 1.0):
        points = trace.points.clone()
        points[3] = points[2] + share * (points[2] - points[1])
        points[4] = points[3]
        found = rs.geometry_kept(replace(trace, points=points), keep_massive=True)
        assert float(found.erasure_mlp[0]) == pytest.approx(share, abs=1e-12)
        assert float(found.erasure_mlp[1]) == 0

"""Tests of geometry_kept against scipy, a slow neighbour search, permutations and planted updates."""

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
def default_model() -> RunnableModel:
    return rs.load(dtype="float64")


def random_trace(n: int = 12, seed: int = 0) -> Trace:
    """A Trace with random points, without massive tokens and ties."""
    trace = default_model().trace(list(range(1, n + 1)))
    return replace(trace, points=random(seed, *trace.points.shape))


def test_rsa_and_neighbours_equal_scipy_and_a_slow_search() -> None:
    trace = random_trace()
    result = rs.geometry_kept(trace, strides=(1,), n_neighbours=3, keep_massive=True)
    layers = [*trace.input_steps, len(trace.steps) - 1]
    a, b = (trace.points[index].numpy() for index in (layers[2], layers[1]))
    start = trace.points[0].numpy()
    assert float(result.rsa[2, 1]) == pytest.approx(spearmanr(pdist(a), pdist(b)).statistic)
    assert float(result.rsa[2, 0]) == pytest.approx(spearmanr(pdist(a), pdist(start)).statistic)

    def nearest_set(x: np.ndarray, i: int) -> set[int]:
        return set(sorted((j for j in range(len(x)) if j != i), key=lambda j: np.linalg.norm(x[i] - x[j]))[:3])

    expected = np.mean([len(nearest_set(a, i) & nearest_set(b, i)) / 3 for i in range(len(a))])
    assert float(result.neighbours[2, 1]) == pytest.approx(expected)
    assert float(result.neighbours_null) == pytest.approx(3 / 11)


def test_tied_distances_share_their_rank() -> None:
    trace = random_trace()
    points = trace.points.clone()
    points[:, 3] = points[:, 7]
    result = rs.geometry_kept(replace(trace, points=points), keep_massive=True)
    layers = [*trace.input_steps, len(trace.steps) - 1]
    a, b = (points[index].numpy() for index in (layers[1], layers[0]))
    assert float(result.rsa[1, 0]) == pytest.approx(spearmanr(pdist(a), pdist(b)).statistic, abs=1e-7)


def test_rotations_shifts_and_scales_preserve_the_geometry() -> None:
    trace = random_trace()
    Q = torch.linalg.qr(random(3, 256, 256))[0]
    transformed = torch.stack([(1 + index) * trace.points[0] @ Q + index for index in range(len(trace.steps))])
    result = rs.geometry_kept(replace(trace, points=transformed), keep_massive=True)
    assert float(abs(result.rsa.sel(reference="embed") - 1).max()) <= 1e-6
    assert float(abs(result.neighbours.sel(reference="embed") - 1).max()) == 0


def test_null_has_mean_0_and_random_clouds_lie_within_it() -> None:
    result = rs.geometry_kept(random_trace(40), keep_massive=True)
    assert float(abs(result.rsa_null.sel(reference="-1")[1:]).max()) == 0
    assert float(abs(result.rsa / result.rsa_null_sd).sel(reference="-1")[1:].max()) < 3.5
    assert bool(np.isnan(result.rsa.sel(point="embed", reference="-1")))


def test_null_sd_equals_that_of_all_permutations() -> None:
    a, b = (distances(centred_inner_products(random(seed, 5, 2))) for seed in (0, 1))

    def pair_ranks(table: Tensor) -> Tensor:
        return unit_ranks(table[*torch.triu_indices(5, 5, 1)])

    values = [float(pair_ranks(a) @ pair_ranks(b[list(order)][:, list(order)])) for order in permutations(range(5))]
    assert np.mean(values) == pytest.approx(0, abs=1e-12)
    pairs = all_pairs(torch.stack([a, b]), None)
    first, second = pairs.mantel_moments(pairs.distance_ranks(pairs.take_from(torch.stack([a, b]))[None]), 5)[0].split(
        1
    )
    assert float(mantel_null_sd(first, second, pairs.n_tokens[:1])) == pytest.approx(np.std(values))


def test_sampled_pairs_agree_within_their_standard_error() -> None:
    """Over many seeds RSA and the sd of its null are unbiased, and their spread equals the reported error."""
    trace = traced("gpt2", torch.float64, n=40)
    exact = rs.geometry_kept(trace)
    sampled = [rs.geometry_kept(trace, max_pairs=300, seed=seed) for seed in range(30)]
    rsa, null, error = (
        np.stack([first[name].sel(reference="-1").values[1:] for first in sampled])
        for name in ("rsa", "rsa_null_sd", "rsa_error")
    )
    expected_rsa, expected_sd = (exact[name].sel(reference="-1").values[1:] for name in ("rsa", "rsa_null_sd"))
    assert (abs(rsa.mean(0) - expected_rsa) < 4 * error.mean(0) / 30**0.5).all()
    assert (abs(rsa.std(0) / error.mean(0) - 1) < 0.6).all()
    assert (abs(null.mean(0) / expected_sd - 1) < 0.2).all()
    assert "rsa_error" not in exact


def test_sampled_pairs_contain_only_valid_tokens() -> None:
    valid = torch.tensor([[True, False, True, True], [True, True, True, True]])
    result = sample_pairs(torch.zeros(2, 4, 4), valid, 200, 0)
    assert not (result.i == result.j).any()
    assert {tuple(sorted(pair)) for pair in zip(result.i[0].tolist(), result.j[0].tolist(), strict=True)} == {
        (0, 2),
        (0, 3),
        (2, 3),
    }
    assert len(set(zip(result.i[1].tolist(), result.j[1].tolist(), strict=True))) == 12


@pytest.mark.parametrize("seed", range(5))
def test_ties_between_neighbours_are_resolved_by_position(seed: int) -> None:
    """Points of a grid have many ties, also at the border of the neighbourhood."""
    x = torch.randint(0, 3, (15, 2), generator=torch.Generator().manual_seed(seed)).double()
    distance = torch.cdist(x, x)
    for k in (1, 3, 6):
        result = nearest_neighbours(distance, k)
        for i in range(15):
            expected_rsa = sorted((j for j in range(15) if j != i), key=lambda j: (round(float(distance[i, j]), 9), j))[
                :k
            ]
            assert set(result[i].tolist()) == set(expected_rsa)


@pytest.mark.gpu
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("n", [15, 300])
def test_pairs_and_neighbours_on_a_gpu_equal_those_on_the_cpu(n: int, gaps: bool) -> None:
    """Points of a grid have integer inner products and many equal distances."""
    x = torch.randint(0, 3 if n == 15 else 99, (2, n, 2), generator=torch.Generator().manual_seed(n)).float()
    table, valid = x @ x.mT, (torch.arange(2 * n).reshape(2, n) % 5 > 0) if gaps else None
    pairs = sample_pairs(table, valid, 50, 0)
    on_cpu = distances_and_neighbours(table, pairs, 5, valid)
    on_gpu = distances_and_neighbours(
        table.cuda(), replace(pairs, i=pairs.i.cuda(), j=pairs.j.cuda()), 5, None if valid is None else valid.cuda()
    )
    rows = torch.ones(2, n, dtype=torch.bool) if valid is None else valid
    assert torch.allclose(on_gpu[0].cpu(), on_cpu[0])
    assert torch.equal(on_gpu[1].cpu().sort(-1).values[rows], on_cpu[1].sort(-1).values[rows])


def test_pair_distances_from_inner_products_equal_those_of_the_table() -> None:
    table = centred_inner_products(random(0, 2, 9, 3))
    for pairs in (all_pairs(table, None), sample_pairs(table, None, 30, 0)):
        assert torch.equal(pairs.distances_from_inner(table), pairs.take_from(distances(table)))


def test_invalid_settings_raise_an_error() -> None:
    with pytest.raises(rs.RheoscopeError, match="at least 4 tokens"):
        rs.geometry_kept(double("gpt2").trace([1, 2]))
    with pytest.raises(
        rs.RheoscopeError, match="with 18 tokens, n_neighbours must lie between 1 and 16, got 100; type n_neighbours=5"
    ):
        rs.geometry_kept(traced("gpt2", F64), n_neighbours=100)
    with pytest.raises(rs.RheoscopeError, match="max_pairs must be at least 4, got 3; type max_pairs=100000"):
        rs.geometry_kept(traced("gpt2", F64), max_pairs=3)


# Erasure


@pytest.mark.parametrize("name", EVERY)
def test_erasure_is_the_projection_on_later_updates(name: str) -> None:
    trace = traced(name, F64)
    result = rs.geometry_kept(trace, keep_massive=True)
    last, residual_parts = trace.points[-1], components(trace)
    for layer in range(trace.view.layers):
        after = trace.points[trace.mid_steps[layer]]
        for head in (0, 3):
            update = residual_parts.parts[residual_parts.names.index(f"L{layer}.H{head}")]
            numerator = sum(float(a @ b) for a, b in zip(update, last - after, strict=True))
            expected = numerator / sum(float(a @ a) for a in update)
            assert float(result.erasure[layer, head]) == pytest.approx(expected, abs=1e-9)
        update = residual_parts.parts[residual_parts.names.index(f"L{layer}.mlp")]
        step = f"L{layer}.mlp_sum" if name in POST_NORM else f"L{layer}.resid_post"
        expected = float((update * (last - trace.points_at(step))).sum() / update.square().sum())
        assert float(result.erasure_mlp[layer]) == pytest.approx(expected, abs=1e-9)
    if name not in POST_NORM:
        assert float(result.erasure_mlp[-1]) == 0  # there is no later update


def test_removed_updates_have_erasure_minus_one() -> None:
    """In the planted stream the second layer removes or repeats the update of the first MLP."""
    trace = traced("gpt2", F64)
    for fraction in (-1.0, 0.0, 1.0):
        points = trace.points.clone()
        points[3] = points[2] + fraction * (points[2] - points[1])
        points[4] = points[3]
        result = rs.geometry_kept(replace(trace, points=points), keep_massive=True)
        assert float(result.erasure_mlp[0]) == pytest.approx(fraction, abs=1e-12)
        assert float(result.erasure_mlp[1]) == 0

"""Tests of transport against scipy and POT, planted swaps, laws of κ and W₂, nulls, and direction of movement."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import rheoscope as rs
from rheoscope.flow.transport import next_token, optimal_assignment
from rheoscope.flow.transport.analysis import EXACT_NULL, MAX_EXPENSIVE_DRAWS
from rheoscope.flow.transport.next_token import cosine_with_next_token, is_tied, next_type_share
from rheoscope.flow.transport.optimal_assignment import (
    assignment,
    assignments,
    direction_coupling,
    fraction_in_place,
    kappa,
    null_from_clouds,
    null_from_tables,
    squared_distances,
    transport_all_pairs,
    transport_costs,
    transport_pair,
)
from rheoscope.space.pair_distances import centred_inner_products, distances
from rheoscope.space.trace import Trace
from rheoscope.statistics.nulls import p_values, random_permutations, random_successors
from tests.cases import BIDIRECTIONAL, double
from tests.pretrained.cases import random, text, traced

F64 = torch.float64


def trace_through(*clouds: torch.Tensor) -> Trace:
    """A Trace with these clouds at the ends of its layers."""
    trace = rs.load().trace(list(range(1, len(clouds[0]) + 1)))
    wide = torch.zeros(len(trace.steps), len(clouds[0]), 256, dtype=F64)
    layers = [*trace.input_steps, len(trace.steps) - 1]
    for index, layer in enumerate(layers):
        cloud = clouds[min(index, len(clouds) - 1)]
        wide[layer, :, : cloud.shape[-1]] = cloud
    return replace(trace, points=wide)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 30), st.integers(0, 10**6), st.sampled_from([0.0, 0.05, 1.0, 30.0]))
def test_assignment_equals_scipy_and_pot(n: int, seed: int, size: float) -> None:
    x = random(seed, n, 3)
    y = x + size * random(seed + 1, n, 3)
    cost = squared_distances(x, y)
    sigma = assignment(cost)
    assert sorted(sigma.tolist()) == list(range(n))
    rows, columns = linear_sum_assignment(cost.numpy())
    best = float(cost.numpy()[rows, columns].sum())
    assert float(cost[torch.arange(n), sigma].sum()) == pytest.approx(best, rel=1e-9, abs=1e-9)
    identity, _, least, _ = transport_costs(x, y)
    uniform = np.full(n, 1 / n)
    assert least == pytest.approx(float(ot.emd2(uniform, uniform, cost.numpy())), rel=1e-6, abs=1e-9)
    assert least <= identity + 1e-12


def test_costs_equal_those_of_all_permutations_and_pairs() -> None:
    x, y = random(0, 6, 2), random(1, 6, 2)
    minimum = min(float((y[list(order)] - x).square().sum(-1).mean()) for order in permutations(range(6)))
    assert transport_costs(x, y)[2] == pytest.approx(minimum)
    mean = np.mean([float((y[j] - x[i]).square().sum()) for i in range(6) for j in range(6)])
    assert transport_costs(x, y)[1] == pytest.approx(mean)


def test_a_planted_swap_gives_the_known_coupling_and_kappa() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 5.0], [9.0, 1.0]], dtype=F64)
    y = x[[1, 0, 2, 3]]
    result = rs.transport(trace_through(x, y), draws=2, keep_massive=True)
    assert result.coupling.values[0].tolist() == [1, 0, 2, 3]
    assert float(result.w2_squared[0]) == pytest.approx(0, abs=1e-12)
    assert float(result.identity_cost[0]) == pytest.approx(0.5)
    random_cost = float(torch.cdist(x, y).square().mean())
    assert float(result.kappa[0]) == pytest.approx((random_cost - 0.5) / random_cost)
    assert float(result.identity_share[0]) == 0.5
    assert result.coupling.values[1].tolist() == [0, 1, 2, 3]
    assert float(result.kappa[1]) == 1


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_kappa_and_w2_satisfy_their_laws_and_rotations_change_nothing(name: str) -> None:
    trace = traced(name, F64)
    result = rs.transport(trace, draws=5, keep_massive=True)
    assert float(result.kappa_strided.max()) <= 1 + 1e-9
    assert bool((result.w2_squared <= result.identity_cost + 1e-12).all())
    assert 0 <= float(result.geodesic_straightness) <= 1 + 1e-9
    Q = torch.linalg.qr(random(3, 32, 32))[0]
    rotated = rs.transport(replace(trace, points=trace.points @ Q + 1), draws=5, keep_massive=True)
    # token vectors are not rotated with the points
    predictions = ("toward", "next_token_accuracy", "next_type_share_mispredicted")
    for field in (name for name in result.data_vars if not str(name).startswith(predictions)):
        assert np.allclose(result[field], rotated[field], atol=1e-7, equal_nan=True), field
    assert np.array_equal(result.kappa.values, result.kappa_strided.sel(stride=1).values)


def test_strides_are_nan_beyond_the_last_layer() -> None:
    result = rs.transport(trace_through(*(random(index, 8, 3) for index in range(7))), draws=2, keep_massive=True)
    assert result.stride.values.tolist() == [1, 2, 4, 6]
    assert int(np.isfinite(result.kappa_strided.sel(stride=4)).sum()) == 3
    assert bool(np.isnan(result.kappa_strided.sel(stride=6))[:-1].all())


def test_null_permutes_the_displacements() -> None:
    """Equal displacements equal their null. A shuffled cloud has κ and identity share near 0."""
    x = random(0, 40, 4)
    same_displacement = transport_pair(x, x + 0.3, draws=3, seed=0).statistics
    assert same_displacement["kappa"] == same_displacement["kappa_null"] == 1
    assert same_displacement["identity_share"] == same_displacement["identity_share_null"] == 1
    shuffled = transport_pair(
        x, x[torch.randperm(40, generator=torch.Generator().manual_seed(1))], draws=20, seed=0
    ).statistics
    assert abs(shuffled["kappa"]) < 0.3
    assert shuffled["identity_share"] < 0.3
    assert fraction_in_place(direction_coupling(x, 2 * x + 5), x) == 1


def walks(kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A cloud and displacements that do not depend on it. With `repeated`, tokens share points."""
    x, displacement = random(seed, 30, 6), 2 * random(seed + 500, 30, 6)
    generator = torch.Generator().manual_seed(seed)
    return (x if kind == "distinct" else x[torch.randint(0, 9, (30,), generator=generator)]), displacement


@pytest.mark.parametrize("kind", ["distinct", "repeated"])
def test_independent_displacements_lie_within_both_nulls(kind: str) -> None:
    p = {"kappa": [], "identity_share": []}
    for seed in range(40):
        x, displacement = walks(kind, seed)
        result = transport_pair(x, x + displacement, draws=19, seed=seed)
        for name, all_p in p.items():
            samples = torch.tensor(result.null_draws[name], dtype=F64)
            all_p.append(float(p_values(torch.tensor(result.statistics[name], dtype=F64), samples)))
    assert all(np.mean(np.array(values) <= 0.1) <= 0.2 for values in p.values()), p
    assert all(np.mean(np.array(values) <= 0.5) >= 0.3 for values in p.values()), p


def test_null_of_the_identity_share_permutes_before_normalising() -> None:
    x, displacement = walks("distinct", 0)
    result, orders = transport_pair(x, x + displacement, draws=2, seed=5), random_permutations(30, 2, 5)

    def unit(cloud: torch.Tensor) -> torch.Tensor:
        return (cloud - cloud.mean(0)) / (cloud - cloud.mean(0)).norm(dim=-1, keepdim=True)

    for index, order in enumerate(orders):
        rows, columns = linear_sum_assignment(torch.cdist(unit(x), unit(x + displacement[order])).square().numpy())
        assert result.null_draws["identity_share"][index] == pytest.approx(np.mean(rows == columns))


@pytest.mark.parametrize("kind", ["distinct", "repeated"])
def test_draws_from_tables_equal_those_from_clouds(kind: str) -> None:
    x, displacement = walks(kind, 3)
    orders = random_permutations(30, 4, 1)
    for actual, expected_result in zip(
        null_from_tables(x, x + displacement + 5, orders),
        null_from_clouds(x, x + displacement + 5, orders),
        strict=True,
    ):
        assert actual == pytest.approx(expected_result, abs=1e-9)


def test_tokens_at_one_point_count_as_one_type() -> None:
    """Exchanging tokens at the same point does not count as a swap."""
    x = random(0, 12, 5)[torch.arange(12) // 3]
    shuffled = x[torch.tensor([2, 0, 1, *range(3, 12)])] + 1e-9 * random(1, 12, 5)
    assert transport_pair(x, shuffled, draws=0, seed=0).statistics["identity_share"] == 1
    moved_types = transport_pair(x, x[torch.tensor([*range(3, 12), 0, 1, 2])], draws=0, seed=0)
    assert moved_types.statistics["identity_share"] == 0


CLOUDS = {
    "distinct": lambda: random(0, 40, 6),
    "repeated": lambda: random(0, 40, 6)[torch.arange(40) % 7],
    "all equal": lambda: random(0, 1, 6).expand(9, 6),
    "rounded": lambda: random(0, 40, 6)[torch.arange(40) // 4] + 1e-8 * random(1, 40, 6),
    "nearly equal": lambda: random(0, 40, 6)[torch.arange(40) // 2] + 1e-4 * random(1, 40, 6),
    "equal distances": lambda: torch.cat([torch.zeros(1, 6), torch.eye(6), torch.eye(6)]).double(),
    "single token": lambda: random(0, 1, 6),
}


@pytest.mark.parametrize("kind", CLOUDS)
def test_fraction_in_place_equals_a_table_of_all_distances(kind: str) -> None:
    x = CLOUDS[kind]()
    same_point = distances(centred_inner_products(x)) <= 1e-6 * x.norm(dim=-1).amax()
    for partner in random_permutations(len(x), 5, 0):
        assert float(fraction_in_place(partner, x)) == float(same_point[torch.arange(len(x)), partner].double().mean())
    assert bool(same_point.triu(1).any()) == (kind not in ("distinct", "nearly equal", "single token"))


@pytest.mark.parametrize("draws", [[3, 0, 1], [0, 0, 0]])
def test_pairs_of_many_texts_equal_single_pairs(draws: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The result depends neither on the memory limit nor on the grouping by number of tokens."""
    texts, pairs = [random(index, 4, n, 5) for index, n in enumerate((7, 2, 2, 12, 7, 7))], [(0, 3), (0, 1), (2, 3)]
    expected_results = [
        transport_pair(points[first], points[last], n_draws, seed=2)
        for points in texts
        for (first, last), n_draws in zip(pairs, draws, strict=True)
    ]
    for n_bytes in (1, 16 * 50, 2**27):
        monkeypatch.setattr(optimal_assignment, "COST_BYTES_PER_CORE", n_bytes)
        for actual, expected_result in zip(
            transport_all_pairs(texts, pairs, draws, seed=2), expected_results, strict=True
        ):
            assert actual.statistics == pytest.approx(expected_result.statistics, rel=1e-12, nan_ok=True)
            assert torch.equal(actual.coupling, expected_result.coupling)
            assert torch.equal(actual.partner, expected_result.partner)
            assert actual.null_draws == expected_result.null_draws


def test_gathered_products_equal_the_table_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, vectors, targets = random(0, 30, 5), random(1, 100, 5), random_permutations(30, 3, 0)
    by_table = (x @ vectors.mT)[torch.arange(30), targets].mean(-1)
    for speedup in (1, 100):  # table or gathered products
        monkeypatch.setattr(next_token, "TABLE_SPEEDUP", speedup)
        assert torch.allclose(next_token.mean_cosines(x[None], vectors, targets)[0], by_table, rtol=1e-12)


def test_null_draws_of_the_whole_depth_are_returned() -> None:
    trace = trace_through(*(random(index, 9, 3) for index in range(7)))
    result = rs.transport(trace, strides=[1], draws=30, keep_massive=True)
    all_strides = rs.transport(trace, draws=30, keep_massive=True)
    for name in ("kappa", "identity_share", "next_type_share", "toward_next"):
        assert result[f"{name}_null_draws"].shape == (30,)
        assert np.array_equal(result[f"{name}_null_draws"], all_strides[f"{name}_null_draws"])
    assert float(all_strides.kappa_null_strided[-1, -1]) == pytest.approx(float(all_strides.kappa_null_draws.mean()))
    few_draws = rs.transport(trace, draws=MAX_EXPENSIVE_DRAWS, keep_massive=True)
    assert np.array_equal(few_draws.kappa_null, all_strides.kappa_null)
    without_draws = rs.transport(trace, draws=0, keep_massive=True)
    assert [name for name in without_draws if "null" in name] == [EXACT_NULL]


# Direction of movement


def test_planted_movement_to_the_next_token_is_detected() -> None:
    """Every token ends at the embedding of the next token, so its partner is the token before it."""
    model, ids = rs.load(), torch.randperm(400, generator=torch.Generator().manual_seed(0))[:30] + 300
    trace = model.trace(ids.tolist())
    vectors = model.view.token_embeddings(torch.cat([ids, ids[:1]])).double()
    points = trace.points.double().clone()
    points[:] = vectors[:-1]
    points[-1] = vectors[1:]
    result = rs.transport(replace(trace, points=points), strides=[1], keep_massive=True)
    assert float(result.toward_own[0]) == pytest.approx(1)
    assert float(result.toward_next[-1]) == pytest.approx(1, abs=0.01)
    assert abs(float(result.toward_own[-1])) < 0.2
    assert result.partner.values.tolist() == [29, *range(29)]
    assert float(result.next_type_share) == 1
    assert float(result.next_type_share_null) < 0.15
    assert float(result.identity_share_strided[0, 0]) == 1
    assert float(p_values(torch.tensor(1.0), torch.tensor(result.next_type_share_null_draws.values))) == pytest.approx(
        1 / 101
    )
    assert result.attrs["next_token_source"] == "embedding"


def test_shares_and_cosines_equal_loops_and_skip_the_last_token() -> None:
    trace = traced("llama", F64)
    ids, positions, view = trace.ids, [1, 2, 4, 5, 9, 17], trace.view
    partner = torch.tensor([5, 0, 3, 1, 2, 4])
    fraction, _ = next_type_share(partner, ids, positions, 0, 0)
    hits = [
        int(ids[positions[j] + 1]) == int(ids[positions[i]])
        for i, j in enumerate(partner.tolist())
        if positions[j] != 17
    ]
    assert float(fraction) == pytest.approx(np.mean(hits))
    with torch.no_grad():
        observed, samples = cosine_with_next_token(trace.points[:, positions].double(), view, ids, positions, 3, 7)
    assert not is_tied(view)
    vectors = (view.unembed * view.final_norm.gain[:, None]).mT.detach()
    next_mean = vectors[ids[[position + 1 for position in positions[:-1]]]].mean(0)
    for order, expected in ((None, observed), *zip(random_successors(18, 3, 7), samples.mT, strict=True)):
        for index, x in enumerate(trace.points[:, positions]):
            next_positions = [position + 1 if order is None else int(order[position]) for position in positions[:-1]]
            cosines = [
                torch.cosine_similarity(point - x.mean(0), vectors[ids[to]] - next_mean, dim=0)
                for point, to in zip(x[:-1], next_positions, strict=True)
            ]
            assert float(expected[index]) == pytest.approx(float(torch.stack(cosines).mean()), abs=1e-9)


@pytest.mark.parametrize("name", ["bert", "own_encoder", "gemma3", "gpt2"])
def test_a_bidirectional_model_has_no_next_token_fields(name: str) -> None:
    result = rs.transport(double(name).trace(text()), draws=2, keep_massive=True)
    assert double(name).view.is_bidirectional == (name in BIDIRECTIONAL)
    assert ("toward_next" in result) == ("next_type_share" in result) == (name not in BIDIRECTIONAL)
    assert result.attrs["next_token_source"].startswith("none") == (name in BIDIRECTIONAL)
    assert "toward_own" in result


def test_equal_tokens_have_kappa_1_and_invalid_settings_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    equal_points = torch.ones(5, 3, dtype=F64)
    resting = rs.transport(trace_through(equal_points, equal_points), keep_massive=True)
    assert float(resting.kappa.min()) == 1
    assert float(resting.geodesic_straightness) == 1
    assert kappa(0.0, 0.0, 0.0) == 1
    with pytest.raises(rs.RheoscopeError, match="at least 2 tokens"):
        rs.transport(rs.load().trace([1]))
    with pytest.raises(
        rs.RheoscopeError, match=r"strides must lie between 1 and 6 and include 1, got \[1, 7\]; type strides=\[1, 6\]"
    ):
        rs.transport(trace_through(equal_points, equal_points), strides=[1, 7], keep_massive=True)
    monkeypatch.setattr("rheoscope.flow.transport.analysis.MAX_EXACT_TOKENS", 4)
    monkeypatch.setattr("rheoscope.flow.transport.optimal_assignment.MAX_EXACT_TOKENS", 4)
    resting = rs.transport(
        trace_through(equal_points, equal_points), keep_massive=True
    )  # beyond the exact limit, with equal tokens
    assert resting.attrs["draws"] == MAX_EXPENSIVE_DRAWS
    assert resting.attrs["method"] == "sinkhorn"
    assert float(resting.kappa.min()) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 2, 60, 128, 256, 300])
def test_assignments_on_a_gpu_have_the_lowest_cost(n: int) -> None:
    cost = random(n, 5, 2, n, n).double().cpu()
    columns = assignments(cost.cuda()).cpu()
    best = [[table[linear_sum_assignment(table)].sum() for table in pair] for pair in cost.numpy()]
    assert columns.sort(-1).values.equal(torch.arange(n, device="cpu").expand_as(columns))
    totals = cost.gather(-1, columns[..., None])[..., 0].sum(-1)
    torch.testing.assert_close(totals, torch.from_numpy(np.array(best)), rtol=1e-12, atol=1e-12)

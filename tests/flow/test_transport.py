"""Transport: equal to scipy and POT, planted swaps found, laws of κ and W₂, nulls that are nulls, and where tokens go."""

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
from rheoscope.flow.transport.analysis import MAX_EXPENSIVE_DRAWS
from rheoscope.flow.transport.next_token import cosine_with_next_token, is_tied, next_type_share
from rheoscope.flow.transport.optimal_assignment import (
    assignment,
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
from rheoscope.statistics.nulls import p_values, random_successors
from rheoscope.statistics.nulls import random_permutations as permutations_of
from tests.cases import BIDIRECTIONAL, double
from tests.pretrained.cases import random, text, traced

F64 = torch.float64


def through(*clouds: torch.Tensor) -> Trace:
    """A Trace whose layers end in these clouds."""
    trace = rs.load().trace(list(range(1, len(clouds[0]) + 1)))
    wide = torch.zeros(len(trace.steps), len(clouds[0]), 256, dtype=F64)
    layers = [*trace.input_steps, len(trace.steps) - 1]
    for at, layer in enumerate(layers):
        cloud = clouds[min(at, len(clouds) - 1)]
        wide[layer, :, : cloud.shape[-1]] = cloud
    return replace(trace, points=wide)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 30), st.integers(0, 10**6), st.sampled_from([0.0, 0.05, 1.0, 30.0]))
def test_the_assignment_equals_scipys_and_pots(n: int, seed: int, step: float) -> None:
    x = random(seed, n, 3)
    y = x + step * random(seed + 1, n, 3)
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


def test_the_best_of_all_permutations() -> None:
    x, y = random(0, 6, 2), random(1, 6, 2)
    every = min(float((y[list(order)] - x).square().sum(-1).mean()) for order in permutations(range(6)))
    assert transport_costs(x, y)[2] == pytest.approx(every)
    mean = np.mean([float((y[j] - x[i]).square().sum()) for i in range(6) for j in range(6)])
    assert transport_costs(x, y)[1] == pytest.approx(mean)


def test_a_planted_swap_gives_the_known_coupling_and_kappa() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 5.0], [9.0, 1.0]], dtype=F64)
    y = x[[1, 0, 2, 3]]
    found = rs.transport(through(x, y), draws=2, keep_massive=True)
    assert found.coupling.values[0].tolist() == [1, 0, 2, 3]
    assert float(found.w2_squared[0]) == pytest.approx(0, abs=1e-12)
    assert float(found.identity_cost[0]) == pytest.approx(0.5)
    random_cost = float(torch.cdist(x, y).square().mean())
    assert float(found.kappa[0]) == pytest.approx((random_cost - 0.5) / random_cost)
    assert float(found.identity_share[0]) == 0.5
    assert found.coupling.values[1].tolist() == [0, 1, 2, 3]
    assert float(found.kappa[1]) == 1


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_laws(name: str) -> None:
    trace = traced(name, F64)
    found = rs.transport(trace, draws=5, keep_massive=True)
    assert float(found.kappa_strided.max()) <= 1 + 1e-9
    assert bool((found.w2_squared <= found.identity_cost + 1e-12).all())
    assert 0 <= float(found.geodesic_straightness) <= 1 + 1e-9
    Q = torch.linalg.qr(random(3, 32, 32))[0]
    turned = rs.transport(replace(trace, points=trace.points @ Q + 1), draws=5, keep_massive=True)
    for field in (
        name for name in found.data_vars if not str(name).startswith("toward")
    ):  # words do not turn with the points
        assert np.allclose(found[field], turned[field], atol=1e-7, equal_nan=True), field
    assert np.array_equal(found.kappa.values, found.kappa_strided.sel(stride=1).values)


def test_strides_reach_to_the_end_and_nowhere_beyond() -> None:
    found = rs.transport(through(*(random(at, 8, 3) for at in range(7))), draws=2, keep_massive=True)
    assert found.stride.values.tolist() == [1, 2, 4, 6]
    assert int(np.isfinite(found.kappa_strided.sel(stride=4)).sum()) == 3
    assert bool(np.isnan(found.kappa_strided.sel(stride=6))[:-1].all())


def test_the_null_gives_the_same_displacements_to_other_tokens() -> None:
    """Tokens that all move alike are their own null; a cloud that is shuffled has a null near its own value."""
    x = random(0, 40, 4)
    alike = transport_pair(x, x + 0.3, draws=3, seed=0).statistics
    assert alike["kappa"] == alike["kappa_null"] == 1
    assert alike["identity_share"] == alike["identity_share_null"] == 1
    mixed = transport_pair(
        x, x[torch.randperm(40, generator=torch.Generator().manual_seed(1))], draws=20, seed=0
    ).statistics
    assert abs(mixed["kappa"]) < 0.3
    assert mixed["identity_share"] < 0.3
    assert fraction_in_place(direction_coupling(x, 2 * x + 5), x) == 1


def walks(kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A cloud and where it goes, displacements having nothing to do with places; tokens may share points."""
    x, by = random(seed, 30, 6), 2 * random(seed + 500, 30, 6)
    draw = torch.Generator().manual_seed(seed)
    return (x if kind == "distinct" else x[torch.randint(0, 9, (30,), generator=draw)]), by


@pytest.mark.parametrize("kind", ["distinct", "repeated"])
def test_structureless_walks_lie_within_both_nulls(kind: str) -> None:
    p = {"kappa": [], "identity_share": []}
    for seed in range(40):
        x, by = walks(kind, seed)
        found = transport_pair(x, x + by, draws=19, seed=seed)
        for name, all_p in p.items():
            drawn = torch.tensor(found.null_draws[name], dtype=F64)
            all_p.append(float(p_values(torch.tensor(found.statistics[name], dtype=F64), drawn)))
    assert all(np.mean(np.array(some) <= 0.1) <= 0.2 for some in p.values()), p
    assert all(np.mean(np.array(some) <= 0.5) >= 0.3 for some in p.values()), p


def test_the_null_of_the_identity_share_permutes_the_stream_and_then_takes_directions() -> None:
    x, by = walks("distinct", 0)
    found, orders = transport_pair(x, x + by, draws=2, seed=5), permutations_of(30, 2, 5)

    def unit(cloud: torch.Tensor) -> torch.Tensor:
        return (cloud - cloud.mean(0)) / (cloud - cloud.mean(0)).norm(dim=-1, keepdim=True)

    for at, order in enumerate(orders):
        rows, columns = linear_sum_assignment(torch.cdist(unit(x), unit(x + by[order])).square().numpy())
        assert found.null_draws["identity_share"][at] == pytest.approx(np.mean(rows == columns))


@pytest.mark.parametrize("kind", ["distinct", "repeated"])
def test_draws_from_tables_equal_those_from_clouds(kind: str) -> None:
    x, by = walks(kind, 3)
    orders = permutations_of(30, 4, 1)
    for one, other in zip(
        null_from_tables(x, x + by + 5, orders), null_from_clouds(x, x + by + 5, orders), strict=True
    ):
        assert one == pytest.approx(other, abs=1e-9)


def test_tokens_at_one_point_are_one_type() -> None:
    """Whoever of them takes whose place, none has left it."""
    x = random(0, 12, 5)[torch.arange(12) // 3]
    mixed = x[torch.tensor([2, 0, 1, *range(3, 12)])] + 1e-9 * random(1, 12, 5)
    assert transport_pair(x, mixed, draws=0, seed=0).statistics["identity_share"] == 1
    apart = transport_pair(x, x[torch.tensor([*range(3, 12), 0, 1, 2])], draws=0, seed=0)
    assert apart.statistics["identity_share"] == 0


CLOUDS = {
    "apart": lambda: random(0, 40, 6),
    "repeated": lambda: random(0, 40, 6)[torch.arange(40) % 7],
    "all one": lambda: random(0, 1, 6).expand(9, 6),
    "rounded": lambda: random(0, 40, 6)[torch.arange(40) // 4] + 1e-8 * random(1, 40, 6),
    "nearly": lambda: random(0, 40, 6)[torch.arange(40) // 2] + 1e-4 * random(1, 40, 6),
    "as far from the first": lambda: torch.cat([torch.zeros(1, 6), torch.eye(6), torch.eye(6)]).double(),
    "one": lambda: random(0, 1, 6),
}


@pytest.mark.parametrize("kind", CLOUDS)
def test_a_token_is_in_place_at_any_point_that_the_table_of_all_distances_calls_its_own(kind: str) -> None:
    x = CLOUDS[kind]()
    slow = distances(centred_inner_products(x)) <= 1e-6 * x.norm(dim=-1).amax()
    for partner in permutations_of(len(x), 5, 0):
        assert float(fraction_in_place(partner, x)) == float(slow[torch.arange(len(x)), partner].double().mean())
    assert bool(slow.triu(1).any()) == (kind not in ("apart", "nearly", "one"))


@pytest.mark.parametrize("draws", [[3, 0, 1], [0, 0, 0]])
def test_pairs_of_many_texts_together_are_each_alone(draws: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fits beside each other, and whichever have as many tokens."""
    texts, pairs = [random(at, 4, n, 5) for at, n in enumerate((7, 2, 2, 12, 7, 7))], [(0, 3), (0, 1), (2, 3)]
    alone = [
        transport_pair(points[first], points[last], drawn, seed=2)
        for points in texts
        for (first, last), drawn in zip(pairs, draws, strict=True)
    ]
    for room in (1, 16 * 50, 2**27):
        monkeypatch.setattr(optimal_assignment, "COST_BYTES_PER_CORE", room)
        for one, other in zip(transport_all_pairs(texts, pairs, draws, seed=2), alone, strict=True):
            assert one.statistics == pytest.approx(other.statistics, rel=1e-12, nan_ok=True)
            assert torch.equal(one.coupling, other.coupling)
            assert torch.equal(one.partner, other.partner)
            assert one.null_draws == other.null_draws


def test_of_few_draws_words_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    x, words, after = random(0, 30, 5), random(1, 100, 5), permutations_of(30, 3, 0)
    by_table = (x @ words.mT)[torch.arange(30), after].mean(-1)
    for often in (1, 100):  # both ways
        monkeypatch.setattr(next_token, "TABLE_SPEEDUP", often)
        assert torch.allclose(next_token.mean_cosines(x[None], words, after)[0], by_table, rtol=1e-12)


def test_the_whole_way_is_drawn_often_and_its_draws_are_kept() -> None:
    trace = through(*(random(at, 9, 3) for at in range(7)))
    found = rs.transport(trace, strides=[1], draws=30, keep_massive=True)
    whole = rs.transport(trace, draws=30, keep_massive=True)
    for name in ("kappa", "identity_share", "next_type_share", "toward_next"):
        assert found[f"{name}_null_draws"].shape == (30,)
        assert np.array_equal(found[f"{name}_null_draws"], whole[f"{name}_null_draws"])
    assert float(whole.kappa_null_strided[-1, -1]) == pytest.approx(float(whole.kappa_null_draws.mean()))
    few = rs.transport(trace, draws=MAX_EXPENSIVE_DRAWS, keep_massive=True)
    assert np.array_equal(few.kappa_null, whole.kappa_null)
    assert not [name for name in rs.transport(trace, draws=0, keep_massive=True) if "null" in name or "drawn" in name]


# Where they go


def test_a_planted_step_to_the_next_token_is_seen() -> None:
    """Every token ends where the next token's word is: the partner of a token is the one before it."""
    model, ids = rs.load(), torch.randperm(400, generator=torch.Generator().manual_seed(0))[:30] + 300
    trace = model.trace(ids.tolist())
    words = model.view.token_embeddings(torch.cat([ids, ids[:1]])).double()
    points = trace.points.double().clone()
    points[:] = words[:-1]
    points[-1] = words[1:]
    found = rs.transport(replace(trace, points=points), strides=[1], keep_massive=True)
    assert float(found.toward_own[0]) == pytest.approx(1)
    assert float(found.toward_next[-1]) == pytest.approx(1, abs=0.01)
    assert abs(float(found.toward_own[-1])) < 0.2
    assert found.partner.values.tolist() == [29, *range(29)]
    assert float(found.next_type_share) == 1
    assert float(found.next_type_share_null) < 0.15
    assert float(found.identity_share_strided[0, 0]) == 1
    assert float(p_values(torch.tensor(1.0), torch.tensor(found.next_type_share_null_draws.values))) == pytest.approx(
        1 / 101
    )
    assert found.attrs["next"] == "embedding"


def test_shares_and_cosines_equal_loops_and_skip_what_has_no_next() -> None:
    trace = traced("llama", F64)
    ids, places, view = trace.ids, [1, 2, 4, 5, 9, 17], trace.view
    partner = torch.tensor([5, 0, 3, 1, 2, 4])
    share, _ = next_type_share(partner, ids, places, 0, 0)
    hits = [int(ids[places[j] + 1]) == int(ids[places[i]]) for i, j in enumerate(partner.tolist()) if places[j] != 17]
    assert float(share) == pytest.approx(np.mean(hits))
    with torch.no_grad():
        near, drawn = cosine_with_next_token(trace.points[:, places].double(), view, ids, places, 3, 7)
    assert not is_tied(view)
    words = (view.unembed * view.final_norm.gain[:, None]).mT.detach()
    after = words[ids[[place + 1 for place in places[:-1]]]].mean(0)
    for order, wanted in ((None, near), *zip(random_successors(18, 3, 7), drawn.mT, strict=True)):
        for at, x in enumerate(trace.points[:, places]):
            follows = [place + 1 if order is None else int(order[place]) for place in places[:-1]]
            each = [
                torch.cosine_similarity(one - x.mean(0), words[ids[to]] - after, dim=0)
                for one, to in zip(x[:-1], follows, strict=True)
            ]
            assert float(wanted[at]) == pytest.approx(float(torch.stack(each).mean()), abs=1e-9)


@pytest.mark.parametrize("name", ["bert", "own_encoder", "gemma3", "gpt2"])
def test_a_model_that_reads_what_comes_next_is_not_asked_for_it(name: str) -> None:
    found = rs.transport(double(name).trace(text()), draws=2, keep_massive=True)
    assert double(name).view.is_bidirectional == (name in BIDIRECTIONAL)
    assert ("toward_next" in found) == ("next_type_share" in found) == (name not in BIDIRECTIONAL)
    assert found.attrs["next"].startswith("none") == (name in BIDIRECTIONAL)
    assert "toward_own" in found


def test_what_it_cannot_do_is_told_and_the_rest_is_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    one = torch.ones(5, 3, dtype=F64)
    still = rs.transport(through(one, one), keep_massive=True)
    assert float(still.kappa.min()) == 1
    assert float(still.geodesic_straightness) == 1
    assert kappa(0.0, 0.0, 0.0) == 1
    with pytest.raises(rs.RheoscopeError, match="at least 2 tokens"):
        rs.transport(rs.load().trace([1]))
    with pytest.raises(rs.RheoscopeError, match=r"1 to 6, 1 among them, got 7; type strides=\[1, 6\]"):
        rs.transport(through(one, one), strides=[1, 7], keep_massive=True)
    monkeypatch.setattr("rheoscope.flow.transport.analysis.MAX_EXACT_TOKENS", 4)
    monkeypatch.setattr("rheoscope.flow.transport.optimal_assignment.MAX_EXACT_TOKENS", 4)
    still = rs.transport(through(one, one), keep_massive=True)  # beyond the exact limit, and every token the same
    assert still.attrs["draws"] == MAX_EXPENSIVE_DRAWS
    assert still.attrs["method"] == "sinkhorn"
    assert float(still.kappa.min()) == 1

"""Composition: equal to dense products, 0 at random, a planted induction pair is found, kernels compose associatively."""

import numpy as np
import pytest
import torch

import rheoscope as rs
from tests.cases import double, gap, traced
from tests.covers.cases import bare
from tests.pretrained.cases import random

F64 = torch.float64


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "qwen3", "own_metric", "bert"])
def test_it_equals_dense_products(name: str) -> None:
    view = double(name).view
    found = rs.composition(view, top=3)
    for a, b in ((0, 0), (3, 1), (2, 2)):
        F1, M2, F2 = view.head(0, a).F.dense(), view.head(1, b).M.dense(), view.head(1, b).F.dense()
        at = {"head_from": f"L0.H{a}", "head_to": f"L1.H{b}"}
        for field, A, B in (("q", F1, M2), ("k", F1, M2.mT), ("v", F1, F2)):
            wanted = (A @ B).norm() / A.norm() / B.norm() - view.width**-0.5
            assert float(found[field].sel(at)) == pytest.approx(float(wanted), abs=1e-9)
    q = found.q.values.reshape(view.layers, 4, view.layers, 4)
    for one in range(view.layers):
        for other in range(view.layers):
            assert np.isnan(q[one, :, other]).all() == (one >= other)
    assert float(found.q.min()) >= -(view.width**-0.5)
    assert float(found.v.max()) <= 1 - view.width**-0.5
    best = found.sel(kind="k")
    pairs = found.k.values[best.top_from.values, best.top_to.values]
    assert np.allclose(pairs, best.top_score)
    assert best.top_score[0] == np.nanmax(found.k)


def test_random_heads_compose_at_the_random_level() -> None:
    found = rs.composition(bare(heads=8, depth=2, width=64).view)
    for field in ("q", "k", "v"):
        assert abs(float(found[field].mean())) < 0.01
        assert float(abs(found[field]).max()) < 0.06


@pytest.mark.parametrize(
    ("one", "other", "position"), [(1, 2, "none"), (3, 0, "none"), (0, 0, "rotary"), (2, 3, "rotary")]
)
@torch.no_grad()
def test_a_planted_induction_pair_tops_the_list(one: int, other: int, position: str) -> None:
    """A head of layer 0 writes what it reads into other axes; a head of layer 1 looks for that in its keys."""
    model = bare(heads=4, depth=2, width=48, position=position)
    first, second = model.view.layer_heads
    read, write = torch.linalg.qr(random(one, 48, 24))[0].split(12, -1)
    first.W_V[one].copy_(read)
    first.W_O[one].copy_(write.mT)
    second.W_K[other].copy_(write)
    second.W_Q[other].copy_(read)
    found = rs.composition(model.view)
    best, pair = found.sel(kind="k").isel(place=0), (f"L0.H{one}", f"L1.H{other}")
    assert (found.head_from.values[best.top_from], found.head_to.values[best.top_to]) == pair
    assert float(best.top_score) == pytest.approx(12**-0.5 - 48**-0.5)
    assert float(best.top_score) > 2 * float(found.sel(kind="k").top_score[1])
    assert float(found.q.sel(head_from=pair[0], head_to=pair[1])) < -0.05


def test_where_there_are_fewer_pairs_all_are_listed() -> None:
    found = rs.composition(bare(heads=2, depth=2).view)
    assert found.sizes["place"] == 4
    assert np.allclose(np.sort(found.q.values[:2, 2:].ravel())[::-1], found.top_score.sel(kind="q"))


def test_kernels_compose_associatively_and_stay_kernels() -> None:
    trace = rs.load().trace("The keys to the cabinet are on the table")
    path = [(0, 1), (2, 3), (5, 0)]
    whole = rs.path_weights(trace, path)
    assert gap(whole, trace.weights(5, 0) @ (trace.weights(2, 3) @ trace.weights(0, 1))) <= 1e-6
    assert gap(whole, rs.path_weights(trace, path[1:]) @ rs.path_weights(trace, path[:1])) <= 1e-6
    assert gap(whole.sum(-1), torch.ones(len(trace))) <= 1e-5
    assert not whole.triu(1).any()
    assert gap(rs.path_weights(traced("bert", F64), [(1, 2)]), traced("bert", F64).weights(1, 2)) == 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["gemma3", "mistral", "bert", "own_entmax", "own_sink"])
def test_composed_kernels_of_any_path_are_associative(name: str, seed: int) -> None:
    """Law: (A₃A₂)A₁ = A₃(A₂A₁); kernels that sum to 1 stay so, those that lose mass to a sink lose more; masks are kept."""
    trace, draw = traced(name, F64), np.random.default_rng(seed)
    layers = sorted(draw.choice(trace.view.layers, min(3, trace.view.layers), replace=False).tolist())
    path = [(layer, int(draw.integers(trace.view.heads))) for layer in layers]
    whole = rs.path_weights(trace, path)
    for cut in range(1, len(path)):
        assert gap(whole, rs.path_weights(trace, path[cut:]) @ rs.path_weights(trace, path[:cut])) <= 1e-12
    slow = torch.eye(len(trace), dtype=F64)
    for layer, head in path:
        slow = trace.weights(layer, head) @ slow
    assert gap(whole, slow) <= 1e-12
    total = whole.sum(-1)
    assert bool((total <= 1 + 1e-6).all())
    if name != "own_sink":
        assert gap(total, torch.ones_like(total)) <= 1e-6
    assert float(whole.min()) >= 0


def test_what_it_cannot_do_is_told_in_one_line() -> None:
    with pytest.raises(rs.RheoscopeError, match=r"different layers, this model has one; type a model with more"):
        rs.composition(bare().view)
    with pytest.raises(rs.RheoscopeError, match="top must lie between 1 and 10,000, got 0; type top=1"):
        rs.composition(bare(depth=2).view, top=0)
    trace = traced("gpt2")
    for path in ([], [(1, 0), (0, 0)], [(0, 1), (0, 2)]):
        with pytest.raises(rs.RheoscopeError, match=r"later and later layers, got .*; type \[\(0, 1\), \(2, 3\)\]"):
            rs.path_weights(trace, path)
    with pytest.raises(rs.RheoscopeError, match="no layer 7"):
        rs.path_weights(trace, [(7, 0)])

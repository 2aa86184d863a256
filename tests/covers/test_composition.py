"""Composition equals dense products and is 0 at random; a planted pair tops the list; paths compose."""

import numpy as np
import pytest
import torch

import rheoscope as rs
from tests.cases import double, gap, traced
from tests.covers.cases import random_model
from tests.pretrained.cases import random

F64 = torch.float64


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "qwen3", "own_metric", "bert"])
def test_scores_equal_dense_products(name: str) -> None:
    view = double(name).view
    result = rs.composition(view, top=3)
    for a, b in ((0, 0), (3, 1), (2, 2)):
        F1, M2, F2 = view.head(0, a).F.dense(), view.head(1, b).M.dense(), view.head(1, b).F.dense()
        pair = {"head_from": f"L0.H{a}", "head_to": f"L1.H{b}"}
        for field, A, B in (("q", F1, M2), ("k", F1, M2.mT), ("v", F1, F2)):
            expected = (A @ B).norm() / A.norm() / B.norm() - view.width**-0.5
            assert float(result[field].sel(pair)) == pytest.approx(float(expected), abs=1e-9)
    q = result.q.values.reshape(view.layers, 4, view.layers, 4)
    for layer in range(view.layers):
        for later_layer in range(view.layers):
            assert np.isnan(q[layer, :, later_layer]).all() == (layer >= later_layer)
    assert float(result.q.min()) >= -(view.width**-0.5)
    assert float(result.v.max()) <= 1 - view.width**-0.5
    best = result.sel(kind="k")
    pairs = result.k.values[best.top_from.values, best.top_to.values]
    assert np.allclose(pairs, best.top_score)
    assert best.top_score[0] == np.nanmax(result.k)


def test_random_heads_compose_at_the_random_level() -> None:
    result = rs.composition(random_model(heads=8, depth=2, width=64).view)
    for field in ("q", "k", "v"):
        assert abs(float(result[field].mean())) < 0.01
        assert float(abs(result[field]).max()) < 0.06


@pytest.mark.parametrize(
    ("writer", "reader", "position"), [(1, 2, "none"), (3, 0, "none"), (0, 0, "rotary"), (2, 3, "rotary")]
)
@torch.no_grad()
def test_a_planted_induction_pair_tops_the_list(writer: int, reader: int, position: str) -> None:
    """A head of layer 0 copies a subspace into other axes, which the keys of a head of layer 1 read."""
    model = random_model(heads=4, depth=2, width=48, position=position)
    first, second = model.view.layer_heads
    read, write = torch.linalg.qr(random(writer, 48, 24))[0].split(12, -1)
    first.W_V[writer].copy_(read)
    first.W_O[writer].copy_(write.mT)
    second.W_K[reader].copy_(write)
    second.W_Q[reader].copy_(read)
    result = rs.composition(model.view)
    best, pair = result.sel(kind="k").isel(place=0), (f"L0.H{writer}", f"L1.H{reader}")
    assert (result.head_from.values[best.top_from], result.head_to.values[best.top_to]) == pair
    assert float(best.top_score) == pytest.approx(12**-0.5 - 48**-0.5)
    assert float(best.top_score) > 2 * float(result.sel(kind="k").top_score[1])
    assert float(result.q.sel(head_from=pair[0], head_to=pair[1])) < -0.05


def test_all_pairs_are_listed_if_there_are_fewer_than_top() -> None:
    result = rs.composition(random_model(heads=2, depth=2).view)
    assert result.sizes["place"] == 4
    assert np.allclose(np.sort(result.q.values[:2, 2:].ravel())[::-1], result.top_score.sel(kind="q"))


def test_path_weights_are_associative_and_rows_sum_to_one() -> None:
    trace = rs.load().trace("The keys to the cabinet are on the table")
    path = [(0, 1), (2, 3), (5, 0)]
    weights = rs.path_weights(trace, path)
    assert gap(weights, trace.weights(5, 0) @ (trace.weights(2, 3) @ trace.weights(0, 1))) <= 1e-6
    assert gap(weights, rs.path_weights(trace, path[1:]) @ rs.path_weights(trace, path[:1])) <= 1e-6
    assert gap(weights.sum(-1), torch.ones(len(trace))) <= 1e-5
    assert not weights.triu(1).any()
    assert gap(rs.path_weights(traced("bert", F64), [(1, 2)]), traced("bert", F64).weights(1, 2)) == 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["gemma3", "mistral", "bert", "own_entmax", "own_sink"])
def test_path_weights_of_random_paths_equal_the_product_of_weights(name: str, seed: int) -> None:
    """Rows sum to 1 if those of every head do. Heads with a sink lose weight along the path."""
    trace, generator = traced(name, F64), np.random.default_rng(seed)
    layers = sorted(generator.choice(trace.view.layers, min(3, trace.view.layers), replace=False).tolist())
    path = [(layer, int(generator.integers(trace.view.heads))) for layer in layers]
    weights = rs.path_weights(trace, path)
    for cut in range(1, len(path)):
        assert gap(weights, rs.path_weights(trace, path[cut:]) @ rs.path_weights(trace, path[:cut])) <= 1e-12
    expected = torch.eye(len(trace), dtype=F64)
    for layer, head in path:
        expected = trace.weights(layer, head) @ expected
    assert gap(weights, expected) <= 1e-12
    total = weights.sum(-1)
    assert bool((total <= 1 + 1e-6).all())
    if name != "own_sink":
        assert gap(total, torch.ones_like(total)) <= 1e-6
    assert float(weights.min()) >= 0


def test_invalid_models_settings_and_paths_are_refused() -> None:
    with pytest.raises(rs.RheoscopeError, match=r"a model with at least 2 layers, got 1; type rs.composition"):
        rs.composition(random_model().view)
    with pytest.raises(rs.RheoscopeError, match="top must lie between 1 and 10,000, got 0; type top=1"):
        rs.composition(random_model(depth=2).view, top=0)
    trace = traced("gpt2")
    for path in ([], [(1, 0), (0, 0)], [(0, 1), (0, 2)]):
        with pytest.raises(
            rs.RheoscopeError,
            match=r"layers of a path must increase, got .*; type rs.path_weights\(trace, \[\(0, 1\), \(2, 3\)\]\)",
        ):
            rs.path_weights(trace, path)
    with pytest.raises(rs.RheoscopeError, match="no layer 7"):
        rs.path_weights(trace, [(7, 0)])

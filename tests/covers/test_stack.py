"""Stack: isometric covers recover everything, greedy is a greedy search, overlaps and ranks are those of the spaces."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

import rheoscope as rs
from rheoscope.covers.rotated_heads import random_head_rotations
from rheoscope.covers.stack.analysis import union_ranks
from tests.cases import double, text, traced
from tests.covers.cases import bare, on
from tests.pretrained.cases import random

F64 = torch.float64


@torch.no_grad()
def halves() -> Any:
    """Four heads, each an isometry of a quarter of the axes; the third reads the quarter of the first."""
    model = bare(heads=4, width=16)
    eye, heads = torch.eye(16, dtype=F64), model.view.layer_heads[0]
    for head, quarter in enumerate((0, 1, 0, 2)):
        for W in (heads.W_Q, heads.W_K):
            W[head].copy_(eye[:, 4 * quarter : 4 * quarter + 4])
    return model


def test_the_planted_spaces_are_found() -> None:
    model = halves()
    x = random(0, 20, 16)
    found = rs.stack(on(model, x), keep_massive=True, draws=2)
    assert sorted(found.joint_rank_share.values[0].tolist()) == [0.25, 0.5, 0.75, 0.75]
    wanted = np.array([[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]])
    assert np.allclose(found.overlap[0], wanted)
    assert found.overlap_null.item() == pytest.approx(0.25)
    assert found.rank_ratio.item() == pytest.approx(16 / 12)
    assert sorted(found.head_order.values[0].tolist()) == [0, 1, 2, 3]
    assert {0, 2} & set(found.head_order.values[0, -1:].tolist())  # what was seen already comes last


def test_a_full_cover_recovers_everything_and_a_part_does_not() -> None:
    model = bare(heads=2, width=12, head_width=6)
    eye, heads = torch.eye(12, dtype=F64), model.view.layer_heads[0]
    with torch.no_grad():
        for head in range(2):
            for W in (heads.W_Q, heads.W_K):
                W[head].copy_(eye[:, 6 * head : 6 * head + 6])
    found = rs.stack(on(model, random(0, 20, 12)), keep_massive=True, draws=2)
    assert found.recovered_orthonormal[0, 1].item() == pytest.approx(1)
    assert found.joint_rank_share.values[0].tolist() == [0.5, 1]
    assert found.recovered[0, 1].item() == pytest.approx(1)
    assert found.recovered_cka[0, 1].item() == pytest.approx(1)
    assert 0 < found.recovered[0, 0].item() < 0.95


def test_a_head_that_stretches_one_direction_drowns_the_others() -> None:
    """The span is full and orthonormal reads recover everything, and yet a head added lowers what is recovered."""
    model = bare(heads=2, width=12, head_width=6)
    eye, heads = torch.eye(12, dtype=F64), model.view.layer_heads[0]
    with torch.no_grad():
        for head in range(2):
            for W in (heads.W_Q, heads.W_K):
                W[head].copy_(eye[:, 6 * head : 6 * head + 6])
        heads.W_Q[1, :, 0] *= 1000
    found = rs.stack(on(model, random(0, 20, 12)), keep_massive=True, draws=0)
    assert found.head_order.values[0].tolist() == [0, 1]
    assert found.recovered[0, 1].item() < found.recovered[0, 0].item() - 0.1
    assert found.recovered_orthonormal[0, 1].item() == pytest.approx(1)
    assert found.joint_rank_share[0, 1].item() == 1


@torch.no_grad()
def test_the_null_is_the_heads_turned_and_ordered_by_themselves() -> None:
    """Slow: the same search on dense operators behind a rotation, one draw after the other."""
    trace = traced("llama", F64)
    found = rs.stack(trace, keep_massive=True, draws=2, seed=3)
    x = trace.view.layer_heads[1].norm.normalise(trace.layer_input(1))
    drawn = []
    for Q in random_head_rotations(trace.view.width, 2, 3, torch.device("cpu")).double():
        images = [(x @ Q @ trace.view.head(1, head).M.dense()).numpy() for head in range(4)]
        drawn.append(searched(images, x.numpy())[1])
    assert np.allclose(found.recovered_null[1], np.mean(drawn, 0), atol=1e-6)
    assert np.allclose(found.mean_recovered_null_draws.mean("draw"), found.recovered_null[:, -1].mean())
    assert float(found.mean_recovered) == pytest.approx(float(found.recovered[:, -1].mean()))
    assert found.mean_recovered_orthonormal_null_draws.dims == ("draw",)


@settings(max_examples=8)
@given(seed=st.integers(0, 1000), ranks=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_ranks_of_unions_are_those_of_the_columns_side_by_side(seed: int, ranks: list[int]) -> None:
    basis = torch.zeros(len(ranks), 9, 5, dtype=F64)
    for at, rank in enumerate(ranks):
        basis[at, :, :rank] = torch.linalg.qr(random(seed + at, 9, rank))[0]
    basis[-1, :, :1] = basis[0, :, :1]  # the last reads something that the first reads
    wanted = [int(torch.linalg.matrix_rank(torch.cat(list(basis[: at + 1]), -1))) for at in range(len(ranks))]
    assert union_ranks(basis).tolist() == wanted


def searched(images: list[np.ndarray], x: np.ndarray) -> tuple[list[int], list[float]]:
    """Heads best first, and what they recover, by SciPy."""
    order: list[int] = []
    kept: list[float] = []
    while len(order) < len(images):
        tried = {
            head: spearmanr(pdist(np.concatenate([images[h] for h in (*order, head)], -1)), pdist(x)).statistic
            for head in range(len(images))
            if head not in order
        }
        order.append(max(tried, key=lambda head: tried[head]))
        kept.append(tried[order[-1]])
    return order, kept


def test_it_equals_a_slow_search() -> None:
    trace = traced("gpt2", F64)
    found = rs.stack(trace, image="content", keep_massive=True, draws=0)
    heads = trace.view.layer_heads[1]
    x = heads.norm.normalise(trace.layer_input(1)).detach()
    images = [(x @ trace.view.head(1, head).F.dense().detach()).numpy() for head in range(4)]
    order, kept = searched(images, x.numpy())
    assert np.allclose(found.recovered[1], kept, atol=1e-9)
    assert found.head_order.values[1].tolist() == order
    below = np.concatenate([
        (trace.view.layer_heads[layer].norm.normalise(trace.layer_input(layer)) @ trace.view.head(layer, head).F.dense()).detach().numpy()
        for layer in range(2) for head in range(4)
    ], -1)  # fmt: skip
    wanted = spearmanr(pdist(below), pdist(trace.points[0].numpy())).statistic
    assert float(found.recovered_layers[1]) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_laws(name: str) -> None:
    trace = traced(name, F64)
    found = rs.stack(trace, draws=5)
    assert np.allclose(found.recovered[:, -1], found.recovered_random[:, -1])
    assert np.allclose(found.overlap, found.overlap.transpose("layer", "other", "head"))
    assert np.allclose(np.diagonal(found.overlap, axis1=1, axis2=2), 1)
    assert float(found.rank_ratio.min()) >= 1
    assert bool((found.recovered[:, 0] >= found.recovered_random[:, 0] - 1e-12).all())
    assert bool((found.recovered_projection.diff("heads_used") > -0.05).all())
    assert bool((found.joint_rank_share.diff("heads_used") >= 0).all())
    assert float(found.joint_rank_share.max()) <= 1


def test_without_draws_nothing_random_is_told() -> None:
    trace = traced("llama", F64)
    found, beside = rs.stack(trace, draws=0), rs.stack(trace, draws=2)
    means = {f"mean_{name}_null_draws" for name in ("recovered", "recovered_orthonormal")}
    nulls = {f"{name}_null" for name in ("recovered", "recovered_orthonormal", "recovered_cka")}
    assert set(beside.data_vars) - set(found.data_vars) == {"recovered_random", "recovered_projection"} | nulls | means
    for field in found.data_vars:
        assert np.array_equal(found[field], beside[field]), field


def test_what_it_cannot_do_is_told_in_one_line() -> None:
    model = double("llama")
    with pytest.raises(
        rs.RheoscopeError, match="image must be one of query, key, content, got 'value'; type image='query'"
    ):
        rs.stack(model.trace(text()), image="value")
    with pytest.raises(rs.RheoscopeError, match="at least 4 tokens"):
        rs.stack(model.trace([3, 4, 5]), keep_massive=True)

"""Tests of `stack`: planted subspaces, a slow greedy search, the null, joint ranks, laws and refused input."""

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
from rheoscope.covers.stack.recovery import compared_cloud, pair_distances, union_ranks
from tests.cases import double, text, traced
from tests.covers.cases import random_model, trace_with_points
from tests.pretrained.cases import random

F64 = torch.float64


@torch.no_grad()
def quarter_heads() -> Any:
    """Four heads, each an isometry of a quarter of the axes. The third head reads the same quarter as the first."""
    model = random_model(heads=4, width=16)
    eye, heads = torch.eye(16, dtype=F64), model.view.layer_heads[0]
    for head, quarter in enumerate((0, 1, 0, 2)):
        for W in (heads.W_Q, heads.W_K):
            W[head].copy_(eye[:, 4 * quarter : 4 * quarter + 4])
    return model


def test_planted_subspaces_have_their_ranks_and_overlaps() -> None:
    result = rs.stack(trace_with_points(quarter_heads(), random(0, 20, 16)), keep_massive=True, draws=2)
    assert sorted(result.joint_rank_share.values[0].tolist()) == [0.25, 0.5, 0.75, 0.75]
    assert np.allclose(result.overlap[0], [[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]])
    assert result.overlap_null.item() == pytest.approx(0.25)
    assert result.rank_ratio.item() == pytest.approx(16 / 12)
    assert sorted(result.head_order.values[0].tolist()) == [0, 1, 2, 3]
    assert {0, 2} & set(result.head_order.values[0, -1:].tolist())  # a head that adds no new directions comes last


def test_isometries_of_complementary_subspaces_recover_everything_together() -> None:
    model = random_model(heads=2, width=12, head_width=6)
    eye, heads = torch.eye(12, dtype=F64), model.view.layer_heads[0]
    with torch.no_grad():
        for head in range(2):
            for W in (heads.W_Q, heads.W_K):
                W[head].copy_(eye[:, 6 * head : 6 * head + 6])
    result = rs.stack(trace_with_points(model, random(0, 20, 12)), keep_massive=True, draws=2)
    assert result.recovered_orthonormal[0, 1].item() == pytest.approx(1)
    assert result.joint_rank_share.values[0].tolist() == [0.5, 1]
    assert result.recovered[0, 1].item() == pytest.approx(1)
    assert result.recovered_cka[0, 1].item() == pytest.approx(1)
    assert 0 < result.recovered[0, 0].item() < 0.95


def test_a_head_that_stretches_one_direction_lowers_the_recovery() -> None:
    """The joint rank is full and the orthonormal images recover everything, but the second head lowers `recovered`."""
    model = random_model(heads=2, width=12, head_width=6)
    eye, heads = torch.eye(12, dtype=F64), model.view.layer_heads[0]
    with torch.no_grad():
        for head in range(2):
            for W in (heads.W_Q, heads.W_K):
                W[head].copy_(eye[:, 6 * head : 6 * head + 6])
        heads.W_Q[1, :, 0] *= 1000
    result = rs.stack(trace_with_points(model, random(0, 20, 12)), keep_massive=True, draws=0)
    assert result.head_order.values[0].tolist() == [0, 1]
    assert result.recovered[0, 1].item() < result.recovered[0, 0].item() - 0.1
    assert result.recovered_orthonormal[0, 1].item() == pytest.approx(1)
    assert result.joint_rank_share[0, 1].item() == 1


@torch.no_grad()
def test_the_null_is_a_greedy_search_over_rotated_heads() -> None:
    """The reference searches with dense operators after a rotation, one draw at a time."""
    trace = traced("llama", F64)
    result = rs.stack(trace, keep_massive=True, draws=2, seed=3)
    x = trace.view.layer_heads[1].norm.normalise(trace.layer_input(1))
    samples = []
    for Q in random_head_rotations(trace.view.width, 2, 3, torch.device("cpu")).double():
        images = [(x @ Q @ trace.view.head(1, head).M.dense()).numpy() for head in range(4)]
        samples.append(slow_search(images, x.numpy())[1])
    assert np.allclose(result.recovered_null[1], np.mean(samples, 0), atol=1e-6)
    assert np.allclose(result.mean_recovered_null_draws.mean("draw"), result.recovered_null[:, -1].mean())
    assert float(result.mean_recovered) == pytest.approx(float(result.recovered[:, -1].mean()))
    assert result.mean_recovered_orthonormal_null_draws.dims == ("draw",)


@settings(max_examples=8)
@given(seed=st.integers(0, 1000), ranks=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_joint_ranks_equal_the_ranks_of_concatenated_bases(seed: int, ranks: list[int]) -> None:
    basis = torch.zeros(len(ranks), 9, 5, dtype=F64)
    for head, rank in enumerate(ranks):
        basis[head, :, :rank] = torch.linalg.qr(random(seed + head, 9, rank))[0]
    basis[-1, :, :1] = basis[0, :, :1]  # a direction that the first and the last head share
    expected = [int(torch.linalg.matrix_rank(torch.cat(list(basis[: n + 1]), -1))) for n in range(len(ranks))]
    assert union_ranks(basis).tolist() == expected


def test_cka_from_distances_equals_that_of_inner_products() -> None:
    """Linear CKA of the images side by side, ‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖); 0 for an image that is a point."""
    x, images = random(0, 15, 6), random(1, 3, 15, 4)
    images[2] = 1.0
    joint = pair_distances(images[None]).cumulative(torch.tensor([[2, 0, 1]]))
    scores = compared_cloud(x).cka(joint)[0]
    centred = [y - y.mean(0) for y in (x, images[0], torch.cat([images[0], images[1]], -1))]
    expected = [
        (centred[0].mT @ y).norm() ** 2 / (centred[0].mT @ centred[0]).norm() / (y.mT @ y).norm() for y in centred[1:]
    ]
    assert torch.allclose(scores, torch.stack([torch.zeros((), dtype=F64), *expected]))


def slow_search(images: list[np.ndarray], x: np.ndarray) -> tuple[list[int], list[float]]:
    """The greedy order of the heads and the correlation after each of them, with SciPy."""
    order: list[int] = []
    recovered: list[float] = []
    while len(order) < len(images):
        candidates = {
            head: spearmanr(pdist(np.concatenate([images[h] for h in (*order, head)], -1)), pdist(x)).statistic
            for head in range(len(images))
            if head not in order
        }
        order.append(max(candidates, key=lambda head: candidates[head]))
        recovered.append(candidates[order[-1]])
    return order, recovered


def test_recovery_and_order_equal_a_slow_search() -> None:
    trace = traced("gpt2", F64)
    result = rs.stack(trace, projection="content", keep_massive=True, draws=0)
    heads = trace.view.layer_heads[1]
    x = heads.norm.normalise(trace.layer_input(1)).detach()
    images = [(x @ trace.view.head(1, head).F.dense().detach()).numpy() for head in range(4)]
    order, recovered = slow_search(images, x.numpy())
    assert np.allclose(result.recovered[1], recovered, atol=1e-9)
    assert result.head_order.values[1].tolist() == order
    all_images = np.concatenate([
        (trace.view.layer_heads[layer].norm.normalise(trace.layer_input(layer)) @ trace.view.head(layer, head).F.dense()).detach().numpy()
        for layer in range(2) for head in range(4)
    ], -1)  # fmt: skip
    expected = spearmanr(pdist(all_images), pdist(trace.points[0].numpy())).statistic
    assert float(result.recovered_layers[1]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_recovery_overlap_and_joint_rank_obey_their_laws(name: str) -> None:
    result = rs.stack(traced(name, F64), draws=5)
    assert np.allclose(result.recovered[:, -1], result.recovered_random[:, -1])
    assert np.allclose(result.overlap, result.overlap.transpose("layer", "other", "head"))
    assert np.allclose(np.diagonal(result.overlap, axis1=1, axis2=2), 1)
    assert float(result.rank_ratio.min()) >= 1
    assert bool((result.recovered[:, 0] >= result.recovered_random[:, 0] - 1e-12).all())
    assert bool((result.recovered_projection.diff("heads_used") > -0.05).all())
    assert bool((result.joint_rank_share.diff("heads_used") >= 0).all())
    assert float(result.joint_rank_share.max()) <= 1


def test_without_draws_the_random_fields_are_left_out() -> None:
    trace = traced("llama", F64)
    result, with_null = rs.stack(trace, draws=0), rs.stack(trace, draws=2)
    means = {f"mean_{name}_null_draws" for name in ("recovered", "recovered_orthonormal")}
    nulls = {f"{name}_null" for name in ("recovered", "recovered_orthonormal", "recovered_cka")}
    random_fields = {"recovered_random", "recovered_projection"} | nulls | means
    assert set(with_null.data_vars) - set(result.data_vars) == random_fields
    for field in result.data_vars:
        assert np.array_equal(result[field], with_null[field]), field


def test_unknown_images_and_short_texts_are_refused() -> None:
    model = double("llama")
    with pytest.raises(
        rs.RheoscopeError, match="projection must be one of query, key, content, got 'value'; type projection='query'"
    ):
        rs.stack(model.trace(text()), projection="value")
    with pytest.raises(rs.RheoscopeError, match="at least 4 tokens"):
        rs.stack(model.trace([3, 4, 5]), keep_massive=True)

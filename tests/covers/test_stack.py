"""Stack: isometric covers recover everything, greedy is a greedy search, overlaps and ranks are those of the spaces."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

import rheoscope as rs
from tests.cases import double, text, traced
from tests.covers.cases import bare, on
from tests.pretrained.cases import random

F64 = torch.float64


@torch.no_grad()
def halves() -> Any:
    """Four heads, each an isometry of a quarter of the axes; the third reads the quarter of the first."""
    model = bare(heads=4, width=16)
    eye, heads = torch.eye(16, dtype=F64), model.view.blocks[0]
    for head, quarter in enumerate((0, 1, 0, 2)):
        for W in (heads.W_Q, heads.W_K):
            W[head].copy_(eye[:, 4 * quarter : 4 * quarter + 4])
    return model


def test_the_planted_spaces_are_found() -> None:
    model = halves()
    x = random(0, 20, 16)
    found = rs.stack(on(model, x), keep_massive=True)
    wanted = np.array([[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]])
    assert np.allclose(found.overlap[0], wanted)
    assert found.overlap_null.item() == pytest.approx(0.25)
    assert found.rank_ratio.item() == pytest.approx(16 / 12)
    assert sorted(found.order.values[0].tolist()) == [0, 1, 2, 3]
    assert {0, 2} & set(found.order.values[0, -1:].tolist())  # what was seen already comes last


def test_a_full_cover_recovers_everything_and_a_part_does_not() -> None:
    model = bare(heads=2, width=12, head_width=6)
    eye, heads = torch.eye(12, dtype=F64), model.view.blocks[0]
    with torch.no_grad():
        for head in range(2):
            for W in (heads.W_Q, heads.W_K):
                W[head].copy_(eye[:, 6 * head : 6 * head + 6])
    found = rs.stack(on(model, random(0, 20, 12)), keep_massive=True)
    assert found.recovered[0, 1].item() == pytest.approx(1)
    assert found.recovered_cka[0, 1].item() == pytest.approx(1)
    assert 0 < found.recovered[0, 0].item() < 0.95


def test_it_equals_a_slow_search() -> None:
    trace = traced("gpt2", F64)
    found = rs.stack(trace, image="content", keep_massive=True)
    heads = trace.view.blocks[1]
    x = heads.norm.hat(trace.read_by(1)).detach()
    images = [(x @ trace.view.head(1, head).F.dense().detach()).numpy() for head in range(4)]
    order: list[int] = []
    for step in range(4):
        tried = {
            head: spearmanr(pdist(np.concatenate([images[h] for h in (*order, head)], -1)), pdist(x.numpy())).statistic
            for head in range(4)
            if head not in order
        }
        order.append(max(tried, key=lambda head: tried[head]))
        assert float(found.recovered[1, step]) == pytest.approx(tried[order[-1]], abs=1e-9)
    assert found.order.values[1].tolist() == order
    below = np.concatenate([
        (trace.view.blocks[layer].norm.hat(trace.read_by(layer)) @ trace.view.head(layer, head).F.dense()).detach().numpy()
        for layer in range(2) for head in range(4)
    ], -1)  # fmt: skip
    wanted = spearmanr(pdist(below), pdist(trace.points[0].numpy())).statistic
    assert float(found.recovered_layers[1]) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_laws(name: str) -> None:
    trace = traced(name, F64)
    found = rs.stack(trace)
    assert np.allclose(found.recovered[:, -1], found.recovered_random[:, -1])
    assert np.allclose(found.overlap, found.overlap.transpose("layer", "other", "head"))
    assert np.allclose(np.diagonal(found.overlap, axis1=1, axis2=2), 1)
    assert float(found.rank_ratio.min()) >= 1
    assert bool((found.recovered[:, 0] >= found.recovered_random[:, 0] - 1e-12).all())
    assert bool((found.recovered_null.diff("heads_used") > -0.05).all())


def test_without_draws_nothing_random_is_told() -> None:
    trace = traced("llama", F64)
    found, beside = rs.stack(trace, draws=0), rs.stack(trace, draws=2)
    assert set(beside.data_vars) - set(found.data_vars) == {"recovered_random", "recovered_null", "recovered_cka_null"}
    for field in found.data_vars:
        assert np.array_equal(found[field], beside[field]), field


def test_what_it_cannot_do_is_told_in_one_line() -> None:
    model = double("llama")
    with pytest.raises(rs.RheoscopeError, match="image='value', draws=5; type image='query'"):
        rs.stack(model.trace(text()), image="value")
    with pytest.raises(rs.RheoscopeError, match="at least 4 tokens"):
        rs.stack(model.trace([3, 4, 5]), keep_massive=True)

"""Tests of the claim that symmetrising M costs loss: a slow twin with dense forms, shared edits and planted heads."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import rheoscope as rs
from rheoscope.covers.surgery.claims import measure
from rheoscope.space.claim import ClaimSample
from rheoscope.space.model import Rewrite
from rheoscope.statistics.nulls import random_rotations
from tests.cases import double
from tests.covers.cases import random_model
from tests.covers.claim_cases import check_shared_draws, check_values, sample

F64 = torch.float64
Change = Callable[[int, Tensor], Tensor]
"""The layer and the asymmetric part ½(Mᵀ − M) at an offset → the change of M."""


@cache
def dense_form(heads: Any, offset: int) -> Tensor:
    """M(δ) of all heads of a layer as full matrices."""
    return heads.M()(offset).dense()


def slow_loss(model: Any, trace: Any, change: Change | None) -> float:
    """The loss with a change of M in all heads, from dense forms, one head and one offset at a time."""
    rows = [row for row in range(len(trace)) if row not in trace.massive_tokens()]

    def rewrite(layer: int) -> Any:
        heads = trace.view.layer_heads[layer]

        def edit(x: Tensor, q: Tensor, k: Tensor, v: Tensor, mechanism: Any, out: Tensor) -> tuple[Tensor, None]:
            assert change is not None
            x_hat, new_out, n = heads.norm.normalise(x[0]), out.clone(), x.shape[1]
            centred = x_hat - x_hat[rows].mean(0)
            for head in range(heads.n_heads):
                scores = heads.scores(x[0], head).clone()
                for offset in range(n):
                    dense = dense_form(heads, offset)[head]
                    differences = centred @ change(layer, (dense.mT - dense) / 2) @ centred.mT
                    scores.diagonal(-offset).add_(differences.diagonal(-offset))
                weights = scores.masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf).softmax(-1)
                new_out[0, head] = weights @ v[0, heads.kv_head(head)]
            return new_out, None

        return Rewrite(edit)

    edits = {} if change is None else {layer: rewrite(layer) for layer in range(trace.view.layers)}
    log_probs = model.run(trace.ids, edit=edits).log_softmax(-1)
    return -sum(float(log_probs[i, trace.ids[i + 1]]) for i in range(len(trace) - 1)) / (len(trace) - 1)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_costs_equal_a_slow_twin_with_dense_forms(name: str) -> None:
    claim_sample = sample(double(name), draws=1)
    model, traces, generator = claim_sample.model, list(claim_sample.batches[0]), Generator().manual_seed(3)
    pairs = [random_rotations(1, 32, generator, F64) for _ in range(2 * model.view.layers)]

    def rotated(layer: int, A: Tensor) -> Tensor:
        return pairs[2 * layer][0] @ A @ pairs[2 * layer + 1][0].mT

    before = [slow_loss(model, trace, None) for trace in traces]
    symmetric, random_change = (
        [slow_loss(model, trace, change) - loss for trace, loss in zip(traces, before, strict=True)]
        for change in (lambda layer, A: A, rotated)
    )
    check_values(measure(claim_sample)["asymmetry"], symmetric, [random_change])


def test_all_texts_share_the_random_changes() -> None:
    check_shared_draws(measure, double("gpt2"))


@torch.no_grad()
def successor_model(is_symmetric: bool) -> Any:
    """Token a attends to token a + 1 and predicts it. If symmetric, it attends to itself and predicts itself."""
    model, eye = random_model(width=32, vocabulary=32), torch.eye(32, dtype=F64)
    network, heads = model.network.stack, model.view.layer_heads[0]
    network.embed.weight.copy_(eye)
    network.norm.weight.fill_(2.0)
    network.blocks[0].ffn.write.weight.zero_()
    heads.W_Q[0].copy_(1.5 * (eye if is_symmetric else eye.roll(1, -1)))
    heads.W_K[0].copy_(1.5 * eye)
    heads.W_V[0].copy_(eye)
    heads.W_O[0].copy_(3 * eye)
    return model


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_a_head_that_attends_to_successors_needs_its_asymmetry(is_symmetric: bool) -> None:
    model = successor_model(is_symmetric)
    traces = model.trace([[(start + i) % 32 for i in range(64)] for start in range(3)])
    measured = measure(ClaimSample(model, (traces,), 8))["asymmetry"]
    if is_symmetric:
        assert measured.effects.abs().max() < 1e-6
    else:
        assert measured.effects.min() > 0.5


def test_random_heads_need_no_asymmetry() -> None:
    model = random_model(heads=2, width=32)
    ids = torch.randint(1, 300, (4, 30), generator=Generator().manual_seed(0))
    measured = measure(ClaimSample(model, (model.trace(list(ids)),), 8))["asymmetry"]
    assert measured.effects.mean().abs() < 0.005


def test_bidirectional_models_are_refused() -> None:
    model = double("bert")
    with pytest.raises(rs.RheoscopeError, match="bidirectional"):
        measure(ClaimSample(model, (model.trace([[5, 6, 7]] * 2),), 2))

"""The quantities of the monitor: each equals its slow definition, on networks of different kinds."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.learn.monitor.quantities import AGREEMENT_QUERIES, QUANTITIES, Reading, measure, stable_ranks, symmetries
from rheoscope.space.operator import Factored
from tests.learn.monitor.cases import TEXTS, network
from tests.pretrained.cases import once

NETWORKS = ("gpt2", "llama", "gemma3", "bert")


@once
def measured(name: str) -> tuple[Any, list[Any], Reading]:
    """A model, the traces of its texts one by one, and the reading of all."""
    model = rs.load(network(name))
    return model, [model.trace(ids) for ids in TEXTS], measure(model.trace(TEXTS), 10)


def masked(trace: Any, layer: int, head: int) -> Tensor:
    """The permitted scores of a head; −∞ elsewhere."""
    n = torch.arange(len(trace))
    return trace.scores(layer, head).masked_fill(~trace.view.heads_of(layer).mechanism.mask(n, n), -torch.inf)


def relative_entropy(trace: Any, layer: int, head: int) -> Tensor:
    rows = []
    for row, scores in zip(trace.weights(layer, head), masked(trace, layer, head), strict=True):
        n_keys = int((~scores.isneginf()).sum())
        if n_keys > 1:
            rows.append(-sum(float(p) * math.log(float(p)) for p in row if p > 0) / math.log(n_keys))
    return torch.tensor(rows).mean()


def direction_cosine(trace: Any, layer: int, head: int) -> Tensor:
    """The cosines with the next token's vector, which is centred over all texts."""
    from rheoscope.flow.transport.next_token import readout_vectors

    mean = torch.cat([readout_vectors(trace.view, ids[1:]) for ids in TEXTS]).mean(0)
    vectors = (readout_vectors(trace.view, trace.ids[1:]) - mean).float()
    factored = trace.factored_displacements(layer)
    update = factored.displacements()[head, :-1]
    return torch.cosine_similarity(update - update.mean(0), vectors).mean()


SLOW: dict[str, Callable[[Any, int, int], Tensor]] = {
    "sink": lambda trace, layer, head: trace.weights(layer, head)[1:, 0].mean(),
    "self_weight": lambda trace, layer, head: trace.weights(layer, head).diagonal()[1:].mean(),
    "entropy": relative_entropy,
    "stable_rank_M": lambda trace, layer, head: trace.view.head(layer, head).M.stable_rank(),
    "stable_rank_F": lambda trace, layer, head: trace.view.head(layer, head).F.stable_rank(),
    "symmetry": lambda trace, layer, head: trace.view.head(layer, head).M.symmetry(),
    "toward_next": direction_cosine,
}
"""The same of one text; the mean over texts is the reading."""


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_every_quantity_of_a_head_equals_its_definition(name: str) -> None:
    model, traces, reading = measured(name)
    for quantity, slow in SLOW.items():
        if quantity not in reading.values:
            assert quantity in reading.left_out
            continue
        for layer in range(model.view.layers):
            expected = [float(torch.stack([slow(trace, layer, head) for trace in traces]).mean()) for head in range(4)]
            assert reading.values[quantity][layer] == pytest.approx(expected, rel=2e-3, abs=1e-5), (quantity, layer)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_largest_logit_and_the_displacements(name: str) -> None:
    model, traces, reading = measured(name)
    for layer in range(model.view.layers):
        largest = [
            max(float(x[x.isfinite()].abs().max()) for x in (masked(t, layer, h) for t in traces)) for h in range(4)
        ]
        assert reading.values["largest_logit"][layer] == pytest.approx(largest, rel=1e-4)
        update = torch.cat([trace.factored_displacements(layer).displacements() for trace in traces], 1)
        length = torch.cat([trace.layer_input(layer) for trace in traces]).norm()
        assert reading.values["relative_displacement"][layer] == pytest.approx(
            (update.flatten(1).norm(dim=-1) / length).tolist(), rel=1e-4
        )
        cosines = torch.cosine_similarity(update.flatten(1)[:, None], update.flatten(1), dim=-1)
        assert reading.values["nearest_head_cosine"][layer] == pytest.approx(
            cosines.fill_diagonal_(0).max(-1).values.tolist(), abs=1e-4
        )


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_quantities_of_a_layer(name: str) -> None:
    model, traces, reading = measured(name)
    ends = [*traces[0].input_steps[1:], -1]
    for layer in range(model.view.layers):
        rows = [trace.valid_mask() for trace in traces]
        before = torch.cat([t.layer_input(layer)[row] for t, row in zip(traces, rows, strict=True)])
        after = torch.cat([t.points[ends[layer]][row] for t, row in zip(traces, rows, strict=True)])
        assert reading.values["residual"][layer] == pytest.approx(
            float((after - before).norm() / before.norm()), rel=1e-4
        )
        assert reading.values["norm_growth"][layer] == pytest.approx(float(after.norm() / before.norm()), rel=1e-4)
        cosines = []
        for trace, row in zip(traces, rows, strict=True):
            x = model.view.heads_of(layer).norm.centre(trace.layer_input(layer)[row])
            table = torch.cosine_similarity(x[:, None], x, dim=-1)
            cosines.append(float((table.sum() - len(x)) / (len(x) * (len(x) - 1))))
        assert reading.values["token_cosine"][layer] == pytest.approx(np.mean(cosines), abs=1e-4)


def test_agreement_equals_the_analysis() -> None:
    _, traces, reading = measured("gpt2")
    results = [rs.agreement(trace, draws=0, max_queries=AGREEMENT_QUERIES).agreement.values for trace in traces]
    assert reading.values["agreement"] == pytest.approx(np.mean(results, 0), abs=1e-5)


def test_what_a_model_does_not_have_is_left_out_with_its_reason() -> None:
    reading = measured("bert")[2]
    assert reading.left_out == {"toward_next": "this model predicts no next token"}
    assert set(reading.values) == set(QUANTITIES) - {"toward_next"}


@pytest.mark.parametrize("rank", [1, 2, 6])
def test_the_stable_rank_equals_that_of_the_singular_values(rank: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    left, right = (
        torch.randn(3, 9, 6, generator=generator) * torch.tensor([1, 1e-3, 1e3])[:, None, None] for _ in range(2)
    )
    left[..., rank:] = 0
    A = Factored(left, right.mT)
    zero = Factored(left * 0, right.mT)
    assert torch.allclose(stable_ranks([A])[0].to(left), A.stable_rank(), rtol=1e-3)
    assert stable_ranks([zero])[0].tolist() == [0, 0, 0]


def test_layers_of_different_shapes_have_the_values_of_each_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    operators = [
        Factored(torch.randn(h, 9, r, generator=generator), torch.randn(h, r, 9, generator=generator))
        for h, r in ((3, 4), (2, 4), (3, 4), (3, 5))
    ]
    for A, rank, symmetry in zip(operators, stable_ranks(operators), symmetries(operators), strict=True):
        assert torch.allclose(rank, stable_ranks([A])[0])
        assert torch.allclose(symmetry.to(A.left), A.symmetry())

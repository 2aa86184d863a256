"""Factored displacements equal the displacements themselves, in every family."""

from dataclasses import replace

import pytest
import torch

from tests.cases import EVERY, distance, random, traced

F64 = torch.float64


@pytest.mark.parametrize("name", EVERY)
def test_factored_lengths_and_inner_products_equal_the_dense_ones(name: str) -> None:
    trace = traced(name, F64)
    y = random(0, len(trace), trace.points.shape[-1])
    for layer in range(trace.view.layers):
        factored = trace.factored_displacements(layer)
        displacements = factored.displacements()
        assert distance(factored.squared_norms, displacements.square().sum(-1)) <= 1e-12
        assert distance(factored.inner_products_with(y), (displacements * y).sum(-1)) <= 1e-12
        assert distance(factored.total(), displacements.sum(0) + factored.constants) <= 1e-12
        total = trace.displacements(layer).sum(0) + trace.bias(layer)
        assert distance(factored.total(), total) <= 1e-6  # a norm after attention computes in float32
        selected = factored.select_tokens([5, 0])
        assert distance(selected.displacements(), displacements[:, [5, 0]]) <= 1e-12
        assert torch.equal(selected.constants, factored.constants[[5, 0]])


def test_displacements_are_cached_per_trace() -> None:
    trace = replace(traced("llama", F64))
    factored = trace.factored_displacements(0)
    assert trace.factored_displacements(0) is factored
    other = replace(trace, points=trace.points + 1)
    assert not torch.equal(other.factored_displacements(0).mixed_values, factored.mixed_values)


def test_at_least_float32_widens_half_precision() -> None:
    factored = traced("llama", F64).factored_displacements(0)
    half = replace(
        factored, **{name: getattr(factored, name).bfloat16() for name in ("mixed_values", "output_map", "constants")}
    ).at_least_float32()
    assert {half.mixed_values.dtype, half.output_map.dtype, half.constants.dtype} == {torch.float32}

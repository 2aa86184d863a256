"""What heads carried, in factors: equal to the displacements themselves, in every family."""

from dataclasses import replace

import pytest
import torch

from tests.cases import EVERY, distance, random, traced

F64 = torch.float64


@pytest.mark.parametrize("name", EVERY)
def test_lengths_and_inner_products_equal_those_of_displacements(name: str) -> None:
    trace = traced(name, F64)
    y = random(0, len(trace), trace.points.shape[-1])
    for layer in range(trace.view.layers):
        made = trace.carried(layer)
        moved = made.displacements()
        assert distance(made.squares(), moved.square().sum(-1)) <= 1e-12
        assert distance(made.along(y), (moved * y).sum(-1)) <= 1e-12
        assert distance(made.total(), moved.sum(0) + made.rest) <= 1e-12
        whole = trace.displacements(layer).sum(0) + trace.bias(layer)
        assert distance(made.total(), whole) <= 1e-6  # a norm after attention takes a float32 step
        some = made.at([5, 0])
        assert distance(some.displacements(), moved[:, [5, 0]]) <= 1e-12
        assert torch.equal(some.rest, made.rest[[5, 0]])


def test_it_is_computed_once_and_never_for_other_points() -> None:
    trace = replace(traced("llama", F64))
    made = trace.carried(0)
    assert trace.carried(0) is made
    other = replace(trace, points=trace.points + 1)
    assert not torch.equal(other.carried(0).moved, made.moved)


def test_half_precision_is_lifted() -> None:
    made = traced("llama", F64).carried(0)
    half = replace(made, **{name: getattr(made, name).bfloat16() for name in ("moved", "write", "rest")}).exact()
    assert {half.moved.dtype, half.write.dtype, half.rest.dtype} == {torch.float32}

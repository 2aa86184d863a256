"""What layers share on a tape equals what each of them would give alone."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from rheoscope.pretrained.finder import coordinates
from rheoscope.pretrained.finder.describe_network import record_forward
from rheoscope.pretrained.finder.equal_operations import replay_key, value_numbers
from rheoscope.pretrained.finder.tape import Tape, record_tape
from tests.pretrained.cases import network


class Layers(nn.Module):
    """Layers x ↦ factor * x W in reverse order, which differ in their weights and perhaps in the factor."""

    def __init__(self, *factors: float) -> None:
        super().__init__()
        self.factors = factors
        self.weights = nn.ParameterList([torch.randn(4, 4) for _ in factors])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [(x @ W).flip(-1) * factor for W, factor in zip(self.weights, self.factors, strict=True)]


def recorded_keys(*factors: float) -> list[object]:
    """The keys of the steps after each product."""
    net = Layers(*factors)
    with record_tape(net, 3) as tape:
        net(torch.randn(3, 4))
    products = [x.results[0] for x in tape.operations if x.name == "mm"]
    results = [x.results[0] for x in tape.operations if x.name == "mul"]
    return [replay_key(tape, (end,), start) for start, end in zip(products, results, strict=True)]


def test_equal_steps_after_different_weights_have_one_key() -> None:
    first, second = recorded_keys(2.0, 2.0)
    assert first == second


@pytest.mark.parametrize("factors", [(2.0, 3.0), (2, 2.0), (1, True)])
def test_steps_with_other_numbers_or_types_have_other_keys(factors: tuple[float, float]) -> None:
    first, second = recorded_keys(*factors)
    assert first != second


def maps(tape: Tape) -> Iterator[tuple[int, int]]:
    """Products of weights, and the next tensor with as many numbers in another shape."""
    for operation in tape.operations:
        if operation.name == "view" and tape.tensors[operation.results[0]].ndim == 4:
            yield operation.operands[0], operation.results[0]


def test_shared_maps_equal_those_of_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    tape, computed = record_forward(network("llama_yarn")), list[int]()
    make = coordinates._coordinate_map
    monkeypatch.setattr(coordinates, "_coordinate_map", lambda *args: computed.append(1) or make(*args))
    pairs = list(maps(tape))
    for source, target in pairs:
        shared, own = coordinates.coordinate_map(tape, source, target), make(tape, source, target, {})
        for name in ("index", "gain", "bias", "is_filled"):
            assert torch.equal(getattr(shared, name), getattr(own, name))
    assert len(computed) < len(pairs)


def test_tensors_of_equal_operations_have_one_number() -> None:
    tape = record_forward(network("llama_yarn"))
    numbers = value_numbers(tape)
    for value, number in enumerate(numbers):
        assert number <= value
        assert torch.equal(tape.tensors[number], tape.tensors[value])
    assert len(set(numbers)) < len(numbers)

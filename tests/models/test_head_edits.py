"""Heads of our own models edited while they run: nothing else changes, and everything is undone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from tests.models.cases import EVERY, model, network, seen, traced
from tests.pretrained.cases import gap, text

F64 = torch.float64


def same(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return mechanism.attend(q, k, v)


@pytest.mark.parametrize("name", EVERY)
def test_an_edit_that_changes_nothing_changes_nothing(name: str) -> None:
    every = {(at, head): same for at in range(2) for head in range(4)}
    assert gap(model(name).run(text(), edit=every), traced(name).logits) <= 1e-5 * max(
        1.0, float(traced(name).logits.abs().max())
    )
    assert torch.equal(model(name).run(text()), traced(name).logits)


@pytest.mark.parametrize("name", EVERY)
def test_an_edit_is_given_the_mechanism_of_its_head(name: str) -> None:
    for at, layer in enumerate(seen(name, F64)[1]):
        found: dict[int, Tensor] = {}

        def look(head: int) -> Any:
            def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
                found[head] = mechanism.weights(q, k)[0, 0]
                return mechanism.attend(q, k, v)

            return edit

        model(name, F64).run(text(), edit={(at, head): look(head) for head in range(4)})
        for head, weights in found.items():
            assert gap(weights, layer.weights[head]) <= 1e-12


def test_a_run_inside_an_edit_leaves_the_edit_as_it_was() -> None:
    of, plain = model("own"), traced("own").logits
    zero = of.run(text(), edit={(0, 1): lambda q, k, v, mechanism: torch.zeros_like(q)})

    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        of.run(text(), edit={(0, 1): same, (1, 0): same})
        return torch.zeros_like(q)

    assert gap(of.run(text(), edit={(0, 1): edit}), zero) <= 1e-6
    assert torch.equal(of.run(text()), plain)
    assert all("current_mechanism" not in vars(block.attention.mechanism) for block in network("own").stack.blocks)

"""Head edits in our own models: nothing else changes, and edits are undone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from tests.models.cases import EVERY, model, network, seen, traced
from tests.pretrained.cases import gap, text

F64 = torch.float64


def unchanged(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return mechanism.attend(q, k, v)


@pytest.mark.parametrize("name", EVERY)
def test_the_identity_edit_leaves_the_logits_unchanged(name: str) -> None:
    every_head = {(layer_index, head): unchanged for layer_index in range(2) for head in range(4)}
    assert gap(model(name).run(text(), edit=every_head), traced(name).logits) <= 1e-5 * max(
        1.0, float(traced(name).logits.abs().max())
    )
    assert torch.equal(model(name).run(text()), traced(name).logits)


@pytest.mark.parametrize("name", EVERY)
def test_an_edit_receives_the_mechanism_of_its_head(name: str) -> None:
    for layer_index, layer in enumerate(seen(name, F64)[1]):
        recorded: dict[int, Tensor] = {}

        def record_weights(head: int) -> Any:
            def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
                recorded[head] = mechanism.weights(q, k)[0, 0]
                return mechanism.attend(q, k, v)

            return edit

        model(name, F64).run(text(), edit={(layer_index, head): record_weights(head) for head in range(4)})
        for head, weights in recorded.items():
            assert gap(weights, layer.weights[head]) <= 1e-12


def test_a_run_inside_an_edit_does_not_disturb_it() -> None:
    loaded, logits = model("own"), traced("own").logits
    zero = loaded.run(text(), edit={(0, 1): lambda q, k, v, mechanism: torch.zeros_like(q)})

    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        loaded.run(text(), edit={(0, 1): unchanged, (1, 0): unchanged})
        return torch.zeros_like(q)

    assert gap(loaded.run(text(), edit={(0, 1): edit}), zero) <= 1e-6
    assert torch.equal(loaded.run(text()), logits)
    assert all("current_mechanism" not in vars(block.attention.mechanism) for block in network("own").stack.blocks)

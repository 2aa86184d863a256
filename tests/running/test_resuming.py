"""Batched runs, and runs that reuse block outputs: the same numbers, less work, undone on exit."""

from typing import Any

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Translator
from tests.cases import WITH_LOGITS, double, gap, model, text

ISLANDS = 2e-5
"""The tolerance for float32 steps inside a float64 model."""


def texts(count: int = 3) -> Tensor:
    return torch.stack([text(seed) for seed in range(count)])


def halve_outputs(q: Tensor, k: Tensor, v: Tensor, mechanism: Any, out: Tensor) -> Tensor:
    return out / 2


@pytest.mark.parametrize("name", WITH_LOGITS)
@torch.no_grad()
def test_batched_run_equals_single_runs(name: str) -> None:
    loaded_model, edit = double(name), {1: halve_outputs}
    batched = loaded_model.run_batch(texts(), edit, {"L0.resid_post": lambda x: 1.1 * x})
    for ids, logits in zip(texts(), batched, strict=True):
        assert gap(loaded_model.run(ids, edit, {"L0.resid_post": lambda x: 1.1 * x}), logits) <= ISLANDS
    assert gap(batched, loaded_model.run_batch(texts())) > 1e-4


@pytest.mark.parametrize("name", WITH_LOGITS)
@torch.no_grad()
def test_reused_blocks_change_no_bit_and_are_not_computed(name: str) -> None:
    loaded_model = model(name)
    block_outputs = loaded_model.block_outputs(texts())
    assert len(block_outputs) == loaded_model.view.layers
    calls: list[int] = []
    attention = loaded_model.description.attention_modules[0]
    handle = attention.register_forward_hook(lambda *any: calls.append(1))
    for count in range(loaded_model.view.layers + 1):
        edit = {count: halve_outputs} if count < loaded_model.view.layers else {}
        calls.clear()
        resumed = loaded_model.run_batch(texts(), edit, block_outputs=block_outputs[:count])
        assert bool(calls) == (count == 0)
        assert torch.equal(resumed, loaded_model.run_batch(texts(), edit))
    handle.remove()
    assert torch.equal(loaded_model.run_batch(texts()), loaded_model.run_batch(texts(), block_outputs=block_outputs))


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "own"])
@torch.no_grad()
def test_resumed_run_applies_hooks_and_restores_the_model(name: str) -> None:
    loaded_model = model(name)
    before, block_outputs = loaded_model.run_batch(texts()), loaded_model.block_outputs(texts())
    hooks = {"L0.resid_post": lambda x: 2 * x}
    assert torch.equal(
        loaded_model.run_batch(texts(), hooks=hooks, block_outputs=block_outputs[:1]),
        loaded_model.run_batch(texts(), hooks=hooks),
    )

    def fail(x: Tensor) -> Tensor:
        raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        loaded_model.run_batch(texts(), hooks={"L0.resid_post": fail}, block_outputs=block_outputs[:1])
    assert torch.equal(loaded_model.run_batch(texts()), before)
    assert not any("forward" in vars(layer[-1].module) for layer in loaded_model.description.layer_taps)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"edit": {0: halve_outputs}}, "layer 0 cannot be edited: the output of the first block is reused"),
        ({"edit": {(0, 1): halve_outputs}}, "layer 0 cannot be edited"),
        ({"hooks": {"embed": lambda x: x}}, "embed cannot be edited"),
        (
            {"hooks": {"L0.resid_mid": lambda x: x}},
            r"L0\.resid_mid cannot be edited: .*; type block_outputs=\(\)",
        ),
    ],
)
def test_edits_inside_reused_blocks_raise(edits: dict[str, Any], message: str) -> None:
    loaded_model = model("llama")
    with pytest.raises(rs.RheoscopeError, match=message):
        loaded_model.run_batch(texts(), block_outputs=loaded_model.block_outputs(texts())[:1], **edits)


def test_batches_of_pairs_raise() -> None:
    loaded_model = rs.load(Translator(Config(vocabulary=9, width=8, depth=1, heads=2, form="encoder-decoder")))
    for method in (loaded_model.run_batch, loaded_model.block_outputs):
        with pytest.raises(rs.RheoscopeError, match="reads one pair"):
            method(torch.tensor([[1, 2]]))

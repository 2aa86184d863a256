"""Texts side by side, and runs that begin after blocks that are given: the same numbers, less work, undone on exit."""

from typing import Any

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Translator
from tests.cases import WITH_LOGITS, double, gap, model, text

ISLANDS = 2e-5
"""Float32 steps inside a float64 model."""


def texts(count: int = 3) -> Tensor:
    return torch.stack([text(seed) for seed in range(count)])


def halved(q: Tensor, k: Tensor, v: Tensor, mechanism: Any, out: Tensor) -> Tensor:
    return out / 2


@pytest.mark.parametrize("name", WITH_LOGITS)
@torch.no_grad()
def test_texts_side_by_side_give_what_each_gives_alone(name: str) -> None:
    of, edit = double(name), {1: halved}
    found = of.run_batch(texts(), edit, {"L0.resid_post": lambda x: 1.1 * x})
    for ids, logits in zip(texts(), found, strict=True):
        assert gap(of.run(ids, edit, {"L0.resid_post": lambda x: 1.1 * x}), logits) <= ISLANDS
    assert gap(found, of.run_batch(texts())) > 1e-4


@pytest.mark.parametrize("name", WITH_LOGITS)
@torch.no_grad()
def test_blocks_that_are_given_change_no_bit_and_are_not_computed(name: str) -> None:
    of = model(name)
    given = of.passed(texts())
    assert len(given) == of.view.layers
    seen: list[int] = []
    attention = of.description.attentions[0]
    handle = attention.register_forward_hook(lambda *any: seen.append(1))
    for count in range(of.view.layers + 1):
        edit = {count: halved} if count < of.view.layers else {}
        seen.clear()
        resumed = of.run_batch(texts(), edit, given=given[:count])
        assert bool(seen) == (count == 0)
        assert torch.equal(resumed, of.run_batch(texts(), edit))
    handle.remove()
    assert torch.equal(of.run_batch(texts()), of.run_batch(texts(), given=given))


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "own"])
@torch.no_grad()
def test_a_resumed_run_sees_what_is_changed_at_its_start_and_leaves_the_model_as_it_was(name: str) -> None:
    of = model(name)
    before, given = of.run_batch(texts()), of.passed(texts())
    hooks = {"L0.resid_post": lambda x: 2 * x}
    assert torch.equal(of.run_batch(texts(), hooks=hooks, given=given[:1]), of.run_batch(texts(), hooks=hooks))

    def broken(x: Tensor) -> Tensor:
        raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        of.run_batch(texts(), hooks={"L0.resid_post": broken}, given=given[:1])
    assert torch.equal(of.run_batch(texts()), before)
    assert not any("forward" in vars(layer[-1].module) for layer in of.description.layers)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"edit": {0: halved}}, "layer 0 cannot be changed: the first 1 blocks are given"),
        ({"edit": {(0, 1): halved}}, "layer 0 cannot be changed"),
        ({"hooks": {"embed": lambda x: x}}, "embed cannot be changed"),
        ({"hooks": {"L0.resid_mid": lambda x: x}}, r"L0\.resid_mid cannot be changed: .*; type given=\(\) or fewer"),
    ],
)
def test_a_change_before_the_start_is_refused(asked: dict[str, Any], said: str) -> None:
    of = model("llama")
    with pytest.raises(rs.RheoscopeError, match=said):
        of.run_batch(texts(), given=of.passed(texts())[:1], **asked)


def test_pairs_are_refused() -> None:
    of = rs.load(Translator(Config(vocabulary=9, width=8, depth=1, heads=2, form="encoder-decoder")))
    for ask in (of.run_batch, of.passed):
        with pytest.raises(rs.RheoscopeError, match="reads pairs of texts"):
            ask(torch.tensor([[1, 2]]))

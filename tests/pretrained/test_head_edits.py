"""Edits switch the attention implementation of Hugging Face and restore it."""

import pytest
import torch
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.pretrained.head_edits import register_editable
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import KINDS, gap, model, text, traced


def unchanged(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return mechanism.attend(q, k, v)


@pytest.mark.parametrize("name", KINDS)
def test_the_implementation_is_restored_after_an_error(name: str) -> None:
    def fail(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        assert model(name).network.config._attn_implementation == register_editable("sdpa")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        model(name).run(text(), edit={(0, 1): fail})
    assert model(name).network.config._attn_implementation == "sdpa"
    assert torch.equal(model(name).run(text()), traced(name).logits)


@pytest.mark.parametrize("edit", [{(9, 0): unchanged}, {(1, 2): lambda q, k, v, mechanism: None}])
def test_an_invalid_edit_changes_nothing(edit: dict[tuple[int, int], object]) -> None:
    with pytest.raises(RheoscopeError, match="head"):
        model("gpt2").run(text(), edit=edit)
    assert model("gpt2").network.config._attn_implementation == "sdpa"
    assert torch.equal(model("gpt2").run(text()), traced("gpt2").logits)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "opt", "bert"])
def test_an_eager_model_is_edited_with_eager_attention(name: str) -> None:
    loaded = model(name)
    loaded.network.set_attn_implementation("eager")
    try:
        logits = loaded.run(text())
        assert gap(loaded.run(text(), edit={(1, 1): unchanged}), logits) <= 1e-5
        assert loaded.network.config._attn_implementation == "eager"
    finally:
        loaded.network.set_attn_implementation("sdpa")
    assert gap(logits, traced(name).logits) <= 1e-4

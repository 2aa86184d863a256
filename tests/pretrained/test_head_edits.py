"""Editing borrows the attention interface of Hugging Face and gives it back."""

import pytest
import torch
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.pretrained.head_edits import register_editable
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import KINDS, gap, model, text, traced


def same(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return mechanism.attend(q, k, v)


@pytest.mark.parametrize("name", KINDS)
def test_the_implementation_is_given_back_even_after_an_error(name: str) -> None:
    def fail(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        assert model(name).network.config._attn_implementation == register_editable("sdpa")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        model(name).run(text(), edit={(0, 1): fail})
    assert model(name).network.config._attn_implementation == "sdpa"
    assert torch.equal(model(name).run(text()), traced(name).logits)


@pytest.mark.parametrize("edit", [{(9, 0): same}, {(1, 2): lambda q, k, v, mechanism: None}])
def test_what_is_refused_changes_nothing(edit: dict[tuple[int, int], object]) -> None:
    with pytest.raises(RheoscopeError):
        model("gpt2").run(text(), edit=edit)
    assert model("gpt2").network.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "opt", "bert"])
def test_a_model_that_runs_eager_is_edited_eager(name: str) -> None:
    of = model(name)
    of.network.set_attn_implementation("eager")
    try:
        plain = of.run(text())
        assert gap(of.run(text(), edit={(1, 1): same}), plain) <= 1e-5
        assert of.network.config._attn_implementation == "eager"
    finally:
        of.network.set_attn_implementation("sdpa")
    assert gap(plain, traced(name).logits) <= 1e-4

"""Asking a model for its eager attention leaves it as it was."""

import pytest
import torch

from rheoscope.pretrained.certificate import certify, trace_eager
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import EVERY, hooks_left, model


@pytest.mark.parametrize("name", EVERY)
def test_certifying_leaves_the_model_as_it_was(name: str) -> None:
    certify(model(name))
    assert model(name).network.config._attn_implementation == "sdpa"
    assert not hooks_left(model(name).network)


def test_an_error_on_the_way_leaves_the_model_as_it_was() -> None:
    of = model("llama")
    with pytest.raises(RheoscopeError, match="token ids must lie between"):
        trace_eager(of, torch.tensor([10**6]))
    assert of.network.config._attn_implementation == "sdpa"
    assert not hooks_left(of.network)

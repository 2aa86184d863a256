"""Certification with eager attention restores the model."""

import pytest
import torch

from rheoscope.pretrained.certificate import certify, trace_eager
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import EVERY, hooks_left, model


@pytest.mark.parametrize("name", EVERY)
def test_certification_restores_the_model(name: str) -> None:
    certificate = certify(model(name))
    assert max(certificate.weights_error, certificate.closure_error) <= 1e-4
    assert model(name).network.config._attn_implementation == "sdpa"
    assert not hooks_left(model(name).network)


def test_an_error_during_the_run_restores_the_model() -> None:
    loaded = model("llama")
    with pytest.raises(RheoscopeError, match="token ids must lie between"):
        trace_eager(loaded, torch.tensor([10**6]))
    assert loaded.network.config._attn_implementation == "sdpa"
    assert not hooks_left(loaded.network)

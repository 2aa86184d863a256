"""Certification with eager attention restores the model."""

from typing import Any

import pytest
import torch

from rheoscope.pretrained.certificate import certify, trace_eager
from rheoscope.pretrained.proof_run import SoftmaxRecorder
from rheoscope.running import certificate
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


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "bert"])
def test_a_layer_is_compared_once_on_all_texts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n_texts, cloud_errors = list[int](), certificate.cloud_errors

    def counted(*args: Any) -> Any:
        n_texts.append(len(args[-1].sizes))
        return cloud_errors(*args)

    monkeypatch.setattr(certificate, "cloud_errors", counted)
    certify(model(name))
    assert n_texts == [2] * model(name).view.layers


def test_one_attention_of_each_class_is_searched_for_its_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    entries, enter = list[SoftmaxRecorder](), SoftmaxRecorder.__enter__
    monkeypatch.setattr(SoftmaxRecorder, "__enter__", lambda self: entries.append(self) or enter(self))
    certify(model("llama"))
    assert model("llama").view.layers > 1
    assert len(entries) == 1

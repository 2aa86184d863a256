"""Hugging Face models without an unembedding have points but no logits."""

from typing import Any

import pytest
import transformers as hf

import rheoscope as rs
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import CASES, LENGTH, PLAIN, hooks_left, network, randomised, text


@pytest.mark.parametrize(
    "make_network",
    [
        CASES["bert_bare"],
        lambda: hf.LlamaModel(network("llama").config),
        lambda: hf.BertForSequenceClassification(hf.BertConfig(**PLAIN)),
    ],
    ids=["bert", "llama", "classifier"],
)
def test_a_model_without_unembedding_has_points_but_no_logits(make_network: Any) -> None:
    loaded = rs.load(randomised(make_network()))
    assert loaded.trace(text()).points.shape[1] == LENGTH
    for call in (loaded.run, lambda ids: loaded.trace(ids, logits=True)):
        with pytest.raises(
            RheoscopeError, match=r"has no unembedding and therefore no logits; choose a language model"
        ):
            call(text())
    assert not hooks_left(loaded.network)

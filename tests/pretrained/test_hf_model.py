"""Models of Hugging Face without an unembedding have points, and no logits."""

from typing import Any

import pytest
import transformers as hf

import rheoscope as rs
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import CASES, LENGTH, PLAIN, hooks_left, network, randomised, text


@pytest.mark.parametrize(
    "net",
    [
        CASES["bert_bare"],
        lambda: hf.LlamaModel(network("llama").config),
        lambda: hf.BertForSequenceClassification(hf.BertConfig(**PLAIN)),
    ],
    ids=["bert", "llama", "classifier"],
)
def test_a_model_without_unembedding_has_points_but_no_logits(net: Any) -> None:
    of = rs.load(randomised(net()))
    assert of.trace(text()).points.shape[1] == LENGTH
    for ask in (of.run, lambda ids: of.trace(ids, logits=True)):
        with pytest.raises(
            RheoscopeError, match=r"has no unembedding, so there are no logits; type the name of a language model"
        ):
            ask(text())
    assert not hooks_left(of.network)

"""The two sides of an encoder-decoder as models of one text."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Translator
from rheoscope.running.pair_sides import sides_for
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import model as decoder_model
from tests.pretrained.cases import randomised

T5 = {
    "vocab_size": 40,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 8,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
NETWORKS: dict[str, Callable[[], Any]] = {
    "translator": lambda: Translator(Config(vocabulary=40, width=16, depth=2, heads=4, form="encoder-decoder")),
    "t5": lambda: randomised(hf.T5ForConditionalGeneration(hf.T5Config(**T5))),
}
SOURCE, TARGET = torch.arange(5, 23), torch.arange(7, 20)


@cache
def pair(name: str) -> Any:
    return rs.load(NETWORKS[name]())


@pytest.mark.parametrize("name", NETWORKS)
def test_both_sides_trace_what_the_pair_traces(name: str) -> None:
    linked = pair(name).trace((SOURCE, TARGET), logits=True)
    source = rs.source_model(pair(name)).trace(SOURCE)
    target = rs.target_model(pair(name), SOURCE).trace(TARGET, logits=True)
    assert torch.equal(source.points, linked.source.points)
    assert torch.equal(target.points, linked.target.points)
    assert torch.equal(target.logits, linked.target.logits)
    assert torch.equal(target.cross_weights(1, 2), linked.target.cross_weights(1, 2))


@pytest.mark.parametrize("name", NETWORKS)
def test_analyses_of_one_cloud_run_on_both_sides(name: str) -> None:
    source, target = rs.source_model(pair(name)), rs.target_model(pair(name), SOURCE)
    for side, ids in ((source, SOURCE), (target, TARGET)):
        trace = side.trace(ids)
        assert rs.transport(trace).kappa.notnull().all()
        assert rs.agreement(trace, draws=2).agreement.shape == (2, 4)
    readout = rs.readout(target.trace(TARGET))
    assert any("cross" in name for name in readout.component.values)
    unchanged = target.run(TARGET, edit={(1, 1): lambda q, k, v, mechanism: mechanism.attend(q, k, v)})
    torch.testing.assert_close(unchanged, target.run(TARGET))


def test_a_batch_of_targets_shares_the_source() -> None:
    target = rs.target_model(pair("t5"), SOURCE)
    first, second = target.trace([TARGET, TARGET.flip(0)])
    torch.testing.assert_close(first.points, target.trace(TARGET).points)
    torch.testing.assert_close(second.points, target.trace(TARGET.flip(0)).points)


def test_what_a_side_lacks_is_refused_in_one_line() -> None:
    with pytest.raises(RheoscopeError, match="the encoder of an encoder-decoder has no logits; give it a target"):
        rs.source_model(pair("t5")).run(SOURCE)
    with pytest.raises(RheoscopeError, match="has no encoder, so it reads one text; leave out --target"):
        sides_for(decoder_model("gpt2"), "a text", "a target")
    assert sides_for(decoder_model("gpt2"), "a text", None) == (decoder_model("gpt2"), "a text")

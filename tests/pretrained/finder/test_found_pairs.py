"""Encoder-decoders: two clouds and the cross-attention between them, found on one tape."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

import rheoscope as rs
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import gap, randomised

SIZES = {
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
}
T5 = {
    "vocab_size": 60,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
PAIRS: dict[str, Callable[[], Any]] = {
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**SIZES)),
    "mbart": lambda: hf.MBartForConditionalGeneration(hf.MBartConfig(**SIZES, scale_embedding=True)),
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)),
    "t5_gated": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False, relative_attention_max_distance=40)
    ),
}
SOURCE, TARGET = torch.arange(5, 50), torch.arange(7, 40)
"""Longer than the distances at which T5's buckets grow."""


@cache
def network(name: str) -> Any:
    return randomised(PAIRS[name]()).double()


@cache
def loaded(name: str) -> Any:
    return rs.load(network(name))


@pytest.mark.parametrize("name", PAIRS)
def test_both_clouds_and_cross_attention_equal_the_network(name: str) -> None:
    linked = loaded(name).trace((SOURCE, TARGET), logits=True)
    network(name).set_attn_implementation("eager")
    with torch.no_grad():
        out = network(name)(
            input_ids=SOURCE[None], decoder_input_ids=TARGET[None], output_attentions=True, use_cache=False
        )
    network(name).set_attn_implementation("sdpa")
    assert gap(linked.target.logits, out.logits[0]) < 1e-10
    for layer in range(2):
        for head in range(4):
            assert gap(linked.source.weights(layer, head), out.encoder_attentions[layer][0, head]) < 1e-6
            assert gap(linked.target.weights(layer, head), out.decoder_attentions[layer][0, head]) < 1e-6
            assert gap(linked.target.cross_weights(layer, head), out.cross_attentions[layer][0, head]) < 1e-6


@pytest.mark.parametrize("name", PAIRS)
def test_the_displacements_of_cross_attention_add_up(name: str) -> None:
    target = loaded(name).trace((SOURCE, TARGET)).target
    for layer in range(2):
        labels = [str(step) for step in target.steps]
        after = labels.index(f"L{layer}.cross_sum" if f"L{layer}.cross_sum" in labels else f"L{layer}.resid_cross")
        shifted = target.points[after] - target.points_at(f"L{layer}.resid_mid")
        assert gap(target.cross_displacements(layer).sum(0) + target.cross_bias(layer), shifted) < 1e-6


def test_the_lens_of_a_decoder_gives_its_logits() -> None:
    for name in PAIRS:
        target = loaded(name).trace((SOURCE, TARGET), logits=True).target
        assert abs(float(rs.readout(target).logit) - float(target.logits[-1].max())) < 1e-6


def test_a_text_without_a_target_is_refused_in_one_line() -> None:
    with pytest.raises(RheoscopeError, match=r"an encoder-decoder expects a pair \(source, target\)"):
        loaded("t5").trace(SOURCE)

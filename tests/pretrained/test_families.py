"""The registry of families: the fields they handle, and fields that no family handles."""

from typing import Any

import pytest
import transformers as hf

import rheoscope as rs
from rheoscope.pretrained.certificate import trace_eager
from rheoscope.pretrained.families import ATTENTION_FIELD, FAMILIES, family_of
from rheoscope.pretrained.finder import describe_network
from rheoscope.running.certificate import closure_error
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import EVERY, GPT2, PLAIN, gap, network, randomised, text
from tests.pretrained.variants import VARIANTS


@pytest.mark.parametrize("name", EVERY)
def test_every_case_belongs_to_the_family_of_its_type(name: str) -> None:
    config = network(name).config
    assert family_of(config) is FAMILIES[config.model_type]


def test_no_model_type_belongs_to_two_families() -> None:
    model_types = [model_type for family in set(FAMILIES.values()) for model_type in family.MODEL_TYPES]
    assert sorted(model_types) == sorted(FAMILIES)


UNHANDLED = [
    {"attn_logit_softcapping": 5.0},
    {"qk_layernorm": True},
    {"alibi": True},
    {"rope_interleaved": True},
    {"attention_multiplier": 0.1},
    {"residual_scale": 2.0},
    {"position_bias": "relative"},
    {"clip_qkv": 8.0},
]


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "mistral", "qwen2", "qwen3", "neox", "opt", "phi3", "bert", "roberta"]
)
@pytest.mark.parametrize("field", UNHANDLED, ids=lambda field: next(iter(field)))
def test_a_field_that_may_change_attention_is_refused_by_name(name: str, field: dict[str, Any]) -> None:
    config = type(network(name).config)(**network(name).config.to_dict() | field)
    (key, value) = next(iter(field.items()))
    pattern = (
        rf"the config has {key}={value!r}, which may change attention and which the description of .* does not handle"
    )
    with pytest.raises(RheoscopeError, match=pattern):
        family_of(config)


@pytest.mark.parametrize("name", EVERY)
def test_fields_without_effect_on_attention_are_accepted(name: str) -> None:
    config = network(name).config
    extra_fields = {"colour": "blue", "attn_logit_softcapping": None, "use_qk_norm": False, "hidden_act": "gelu"}
    assert family_of(type(config)(**config.to_dict() | extra_fields)) is FAMILIES[config.model_type]


def test_cross_attention_is_refused() -> None:
    for config in (
        hf.GPT2Config(**GPT2, add_cross_attention=True),
        hf.BertConfig(**PLAIN, is_decoder=True, add_cross_attention=True),
    ):
        with pytest.raises(RheoscopeError, match="add_cross_attention=True"):
            family_of(config)


def test_names_of_attention_fields_are_recognised() -> None:
    for field in (
        "attn_pdrop",
        "num_attention_heads",
        "rope_parameters",
        "sliding_window",
        "qk_norm",
        "alibi",
        "layer_types",
    ):
        assert ATTENTION_FIELD.search(field)
    for field in ("vocab_size", "hidden_size", "intermediate_size", "eos_token_id", "initializer_range"):
        assert not ATTENTION_FIELD.search(field)


def test_a_model_type_without_a_file_is_described_by_the_finder() -> None:
    assert family_of(hf.MptConfig()) is describe_network


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_a_family_is_reproduced(variant: str) -> None:
    network_variant = randomised(VARIANTS[variant]())
    loaded = rs.load(network_variant)
    trace = loaded.trace(text())
    assert loaded.view.facts["certificate"].closure_error <= 1e-6
    eager_trace, eager_weights = trace_eager(loaded, text())
    for layer, layer_weights in enumerate(eager_weights):
        assert closure_error(trace, layer) <= 1e-6
        for head, weights in enumerate(layer_weights):
            assert gap(eager_trace.weights(layer, head), weights) <= 1e-6


def test_long_rope_follows_the_length_of_the_text() -> None:
    """The rotary tables depend on the length of the text, so recomputation must follow them in both directions."""
    loaded = rs.load(randomised(VARIANTS["phi3 long rope"]()))
    for n in (20, 40, 20):
        eager_trace, eager_weights = trace_eager(loaded, text(n=n))
        for layer, layer_weights in enumerate(eager_weights):
            for head, weights in enumerate(layer_weights):
                assert gap(eager_trace.weights(layer, head), weights) <= 1e-6
            assert closure_error(eager_trace, layer) <= 1e-6

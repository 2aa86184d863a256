"""Mechanisms inside Hugging Face models: the model's own numbers, its masks, and no ignored keyword."""

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import rheoscope as rs
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.score import Score
from rheoscope.attention.zoo import ZOO, ZooEntry
from rheoscope.pretrained.attention_interface import HARMLESS_KEYWORDS, MASKED_BELOW, attention_function

rs.register_with_transformers()

VOCAB, LENGTH = 40, 9
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
GEMMA = {**GROUPED, "head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BART = {
    f"{side}_{field}": x
    for side in ("encoder", "decoder")
    for field, x in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
}

# Every model is built from a config, without files or a network connection.
FAMILIES: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=VOCAB, n_positions=64, **TOKENS)
    ),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=8)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, sliding_window=4)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**GEMMA, attn_logit_softcapping=2.0, query_pre_attn_scalar=4)
    ),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**GEMMA)),
    "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL)),
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(
            hidden_size=32,
            ffn_dim=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            vocab_size=VOCAB,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
            **TOKENS,
        )
    ),
    "gpt_oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(
            **GEMMA,
            num_local_experts=2,
            num_experts_per_tok=1,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        )
    ),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**SMALL)),
    "modernbert": lambda: hf.ModernBertForMaskedLM(
        hf.ModernBertConfig(**SMALL, local_attention=6, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2)
    ),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_heads=4,
            vocab_size=VOCAB,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=6,
            decoder_start_token_id=0,
            eos_token_id=2,
            pad_token_id=0,
        )
    ),
    "bart": lambda: hf.BartForConditionalGeneration(
        hf.BartConfig(
            **BART,
            d_model=32,
            vocab_size=VOCAB,
            max_position_embeddings=64,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
            **TOKENS,
        )
    ),
}
CAUSAL = ["gpt2", "llama", "qwen3", "mistral", "gemma2", "gemma3", "neox", "opt", "gpt_oss"]
BIDIRECTIONAL = ["bert", "modernbert"]
ENCODER_DECODER = ["t5", "bart"]
MODELS: dict[str, Any] = {}


def model_of(family: str, mechanism: str = "eager") -> Any:
    """A tiny model with every parameter random, including norms, biases and sinks. Built once and returned as a copy."""
    if family not in MODELS:
        torch.manual_seed(0)
        built = FAMILIES[family]().eval()
        with torch.no_grad():
            for x in built.parameters():
                x.copy_(torch.randn_like(x) * (0.3 if x.ndim > 1 else 0.5) + (x.ndim == 1))
        MODELS[family] = built
    model = copy.deepcopy(MODELS[family])
    model.set_attn_implementation(mechanism)
    return model


def texts(rows: int = 2, length: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def left_padding() -> Tensor:
    is_token = torch.ones(2, LENGTH, dtype=torch.long)
    is_token[0, :3] = 0
    return is_token


def inputs(family: str, padded: bool) -> dict[str, Tensor]:
    arguments = {"input_ids": texts()}
    if padded:
        arguments["attention_mask"] = left_padding() if family in CAUSAL else left_padding().flip(-1)
    if family in ENCODER_DECODER:
        arguments["decoder_input_ids"] = texts(length=5, seed=2)
    return arguments


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max().clamp(min=1))


def logits(model: Any, family: str, padded: bool) -> Tensor:
    """Logits at real tokens only. At padding, where nothing reads them, eager and sdpa differ."""
    with torch.no_grad():
        arguments = inputs(family, padded)
        out = model(**arguments).logits
    return out[arguments["attention_mask"].bool()] if padded and family not in ENCODER_DECODER else out


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread, because synchronisation dominates for tensors this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# The model's own numbers


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_scaled_dot_reproduces_the_logits_of_the_model(family: str, padded: bool) -> None:
    expected = logits(model_of(family), family, padded)
    assert gap(logits(model_of(family, "rheoscope:scaled_dot"), family, padded), expected) < 1e-5
    assert float(expected.std()) > 0.05


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family", [*CAUSAL, *ENCODER_DECODER])
def test_cached_generation_gives_the_same_tokens(family: str, cache: str | None) -> None:
    """A dynamic cache with padding, and a static one without a mask, where keys outnumber queries."""
    options = {"cache_implementation": cache, "disable_compile": True} if cache else {}

    def generate(mechanism: str) -> tuple[Tensor, Tensor]:
        out = model_of(family, mechanism).generate(
            texts(),
            attention_mask=left_padding() if family in CAUSAL and not cache else None,
            max_new_tokens=4,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            **options,
        )
        return out.sequences, torch.stack(out.logits)

    (tokens, scores), (expected, expected_scores) = generate("rheoscope:scaled_dot"), generate("eager")
    assert torch.equal(tokens, expected)
    assert gap(scores, expected_scores) < 1e-5


@pytest.mark.parametrize("mechanism", ["metric", "sigmoid", "linear", "entmax15", "additive"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_cache_changes_nothing(family: str, mechanism: str) -> None:
    """One pass, token by token, and in parts give the same logits."""
    model, ids = model_of(family, f"rheoscope:{mechanism}"), texts()
    with torch.no_grad():
        full_logits = model(ids).logits
        for lengths in ([1] * LENGTH, [4, 3, 2]):
            cache = hf.DynamicCache(config=model.config)
            parts = [model(part, past_key_values=cache).logits for part in ids.split(lengths, 1)]
            assert gap(torch.cat(parts, 1), full_logits) < 1e-5


def test_packed_texts_do_not_attend_to_each_other() -> None:
    model, ids = model_of("llama", "rheoscope:metric"), texts(1)
    position_ids = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    with torch.no_grad():
        packed = model(ids, position_ids=position_ids, use_cache=False).logits
        separate = [model(ids[:, :4], use_cache=False).logits, model(ids[:, 4:], use_cache=False).logits]
    assert gap(packed, torch.cat(separate, 1)) < 1e-5


def test_a_vision_model_is_reproduced() -> None:
    torch.manual_seed(0)
    config = hf.ViTConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4
    )
    model = hf.ViTModel(config).eval()
    image, outputs = torch.randn(2, 3, 16, 16), {}
    for mechanism in ("eager", "rheoscope:scaled_dot", "rheoscope:sinkhorn"):
        model.set_attn_implementation(mechanism)
        with torch.no_grad():
            outputs[mechanism] = model(image).last_hidden_state
    assert gap(outputs["rheoscope:scaled_dot"], outputs["eager"]) < 1e-5
    assert gap(outputs["rheoscope:sinkhorn"], outputs["eager"]) > 1e-4


def test_cross_attention_of_a_bert_decoder_is_reproduced() -> None:
    torch.manual_seed(0)
    model = hf.BertLMHeadModel(hf.BertConfig(**SMALL, is_decoder=True, add_cross_attention=True)).eval()
    arguments = {"input_ids": texts(), "encoder_hidden_states": torch.randn(2, 5, 32)}
    encoder_mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    outputs = []
    for mechanism in ("eager", "rheoscope:scaled_dot"):
        model.set_attn_implementation(mechanism)
        with torch.no_grad():
            outputs.append(model(**arguments, encoder_attention_mask=encoder_mask).logits)
    assert gap(outputs[1], outputs[0]) < 1e-5


# The metric, written out


def eager_metric(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kw: Any) -> Any:
    """-scaling |q - k|²/2, softmax and additive mask, written out without code of Rheoscope."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    squares = (query[..., :, None, :] - key[..., None, :, :]).square().sum(-1)
    weights = (-kw["scaling"] / 2 * squares + attention_mask).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


hf.AttentionInterface.register("metric_by_hand", eager_metric)
hf.AttentionMaskInterface.register("metric_by_hand", hf.masking_utils.eager_mask)


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_metric_equals_the_written_out_metric(padded: bool) -> None:
    expected = logits(model_of("llama", "metric_by_hand"), "llama", padded)
    assert gap(logits(model_of("llama", "rheoscope:metric"), "llama", padded), expected) < 1e-5
    assert gap(logits(model_of("llama", "rheoscope:scaled_dot"), "llama", padded), expected) > 1e-2


# Masks, for every mechanism


def logits_or_error(model: Any, **arguments: Any) -> Tensor | str:
    """The logits, or the text of the error."""
    try:
        with torch.no_grad():
            return model(**arguments).logits
    except rs.RheoscopeError as error:
        return str(error)


def is_one_line_error(outcome: Tensor | str, fragment: str) -> bool:
    return isinstance(outcome, str) and fragment in outcome and len(outcome.splitlines()) == 1


def supports_masks(mechanism: str) -> bool:
    return ZOO[mechanism].domain.allows_masks


@pytest.mark.parametrize("mechanism", ZOO)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_logits_do_not_depend_on_later_tokens(family: str, mechanism: str) -> None:
    model, ids = model_of(family, f"rheoscope:{mechanism}"), texts()
    edited_ids = ids.clone()
    edited_ids[:, -1] = (ids[:, -1] + 1) % VOCAB
    before, after = logits_or_error(model, input_ids=ids), logits_or_error(model, input_ids=edited_ids)
    if not supports_masks(mechanism):
        assert is_one_line_error(before, "does not support masks")
        return
    assert isinstance(before, Tensor)
    assert isinstance(after, Tensor)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


@pytest.mark.parametrize("mechanism", ZOO)
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_padding_does_not_affect_other_tokens(family: str, mechanism: str) -> None:
    model, arguments = model_of(family, f"rheoscope:{mechanism}"), inputs(family, padded=True)
    is_token = arguments["attention_mask"].bool()
    edited_ids = torch.where(is_token, arguments["input_ids"], 7)
    before = logits_or_error(model, **arguments)
    after = logits_or_error(model, **{**arguments, "input_ids": edited_ids})
    if not supports_masks(mechanism):
        assert is_one_line_error(before, "does not support masks")
        return
    assert isinstance(before, Tensor)
    assert isinstance(after, Tensor)
    assert torch.equal(before[is_token], after[is_token])
    assert bool(before.isfinite().all())


@pytest.mark.parametrize("mechanism", ZOO)
def test_every_mechanism_trains_or_is_refused(mechanism: str) -> None:
    model = model_of("llama", f"rheoscope:{mechanism}").train()
    arguments = {"input_ids": texts(), "attention_mask": left_padding()}
    if not supports_masks(mechanism):
        with pytest.raises(rs.RheoscopeError, match=r"^.*does not support masks.*$"):
            model(**arguments)
        return
    model(**arguments)
    loss = model(**arguments, labels=arguments["input_ids"]).loss
    loss.backward()
    gradients = {name: x.grad for name, x in model.named_parameters()}
    without_gradient = [name for name, x in gradients.items() if x is None]  # hard attention has no gradient in q and k
    assert all("q_proj" in name or "k_proj" in name for name in without_gradient)
    assert bool(without_gradient) != ZOO[mechanism].domain.is_differentiable
    assert all(bool(x.isfinite().all()) for x in gradients.values() if x is not None)
    learned = [name for name in gradients if "rheoscope_attention" in name]
    assert bool(learned) == ZOO[mechanism].needs_dim
    assert all(bool(gradients[name].any()) for name in learned)


def test_shaped_attention_needs_square_attention() -> None:
    model = model_of("llama", "rheoscope:shaped")
    with pytest.raises(rs.RheoscopeError, match="square"):
        model.generate(texts(), max_new_tokens=3, do_sample=False)
    assert model.generate(texts(), max_new_tokens=3, do_sample=False, use_cache=False).shape == (2, LENGTH + 3)


def test_sinkhorn_attention_runs_without_a_mask() -> None:
    model = model_of("bert", "rheoscope:sinkhorn")
    with torch.no_grad():
        weights = model(texts(), attention_mask=torch.ones(2, LENGTH), output_attentions=True).attentions
    assert all(gap(x.sum(-1), torch.ones(())) < 1e-5 for x in weights)


# Learned mechanisms


def test_learned_parameters_are_created_once_trainable_and_saved() -> None:
    model, ids = model_of("llama", "rheoscope:bilinear"), texts()
    with torch.inference_mode():
        first = model(ids).logits.clone()
    name = "model.layers.1.self_attn.rheoscope_attention.bilinear.learned.score_phi_W"
    weight = dict(model.named_parameters())[name]
    assert gap(first, logits(model_of("llama"), "llama", padded=False)) < 1e-5  # B starts as the identity
    model(ids).logits.square().mean().backward()
    assert weight.grad is not None
    with torch.no_grad():
        weight += 0.3
    changed = model(ids).logits
    assert dict(model.named_parameters())[name] is weight
    assert gap(changed, first) > 1e-3

    reopened = model_of("llama", "rheoscope:bilinear")
    reopened(ids)
    reopened.load_state_dict(model.state_dict())
    assert torch.equal(reopened(ids).logits, changed)


def test_parameters_of_two_mechanisms_coexist() -> None:
    model, ids = model_of("llama", "rheoscope:additive"), texts()
    first = model(ids).logits
    model.set_attn_implementation("rheoscope:relation")
    assert not torch.equal(model(ids).logits, first)
    model.set_attn_implementation("rheoscope:additive")
    assert torch.equal(model(ids).logits, first)


def test_learned_parameters_have_the_dtype_of_the_layer() -> None:
    model = model_of("llama", "rheoscope:metric_map").to(torch.bfloat16)
    assert model(texts()).logits.dtype is torch.bfloat16
    assert {x.dtype for x in model.parameters()} == {torch.bfloat16}


def test_autocast_keeps_the_metric_exact() -> None:
    """Far from the origin the key bias is large, and rounding it to bfloat16 would be wrong by whole units."""
    q, k, v = (x.bfloat16().float() for x in heads(g=4))
    with torch.autocast("cpu", torch.bfloat16):
        out = call("metric", 8 * q, 8 * k, v.bfloat16(), None, scaling=0.3)
    scores = -0.15 * 64 * (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
    weights = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    assert out.dtype is torch.bfloat16
    assert gap(out.float(), (weights @ v).transpose(1, 2)) < 2**-8


def test_a_model_runs_under_autocast() -> None:
    """Qwen's normalised queries are float32 and its values bfloat16."""
    model = model_of("qwen3", "rheoscope:scaled_dot")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        half_precision_logits = model(texts(), use_cache=False).logits.float()
    assert gap(half_precision_logits, logits(model_of("qwen3"), "qwen3", padded=False)) < 0.05


# Weights


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gpt_oss", "bert"])
def test_weights_are_returned_on_request(family: str, padded: bool) -> None:
    arguments = inputs(family, padded)
    with torch.no_grad():
        expected = model_of(family)(**arguments, output_attentions=True)
        out = model_of(family, "rheoscope:scaled_dot")(**arguments, output_attentions=True)
        without_weights = model_of(family, "rheoscope:scaled_dot")(**arguments)
    rows = arguments.get("attention_mask", torch.ones(2, LENGTH)).bool()
    assert len(out.attentions) == len(expected.attentions) == 2
    for a, b in zip(out.attentions, expected.attentions, strict=True):
        assert gap(a.transpose(1, 2)[rows], b.transpose(1, 2)[rows]) < 1e-5
    assert gap(out.logits[rows], expected.logits[rows]) < 1e-5
    assert not without_weights.attentions


# Single calls: each keyword is applied or refused


def layer(**options: Any) -> Any:
    module = torch.nn.Module()
    for name, value in options.items():
        setattr(module, name, value)
    return module


def heads(m: int = 5, n: int = 5, h: int = 4, g: int = 2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, x, t, 8, generator=generator) for x, t in ((h, m), (g, n), (g, n)))  # type: ignore[return-value]


def call(mechanism: str, *args: Any, **kw: Any) -> Tensor:
    module = kw.pop("module", layer(is_causal=True))
    return attention_function(mechanism)(module, *args, **kw)[0]


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kw: Any) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True, **kw).transpose(1, 2)


def test_the_output_has_the_layout_of_transformers() -> None:
    out, weights = attention_function("metric")(layer(is_causal=True), *heads(), None)
    assert weights is None
    assert out.shape == (2, 5, 4, 8)
    assert out.is_contiguous()


def test_without_a_mask_the_call_equals_sdpa() -> None:
    square, static, cross = heads(), heads(n=8), heads(m=4, n=8)
    triangle = torch.ones(5, 8, dtype=torch.bool).tril()
    assert gap(call("scaled_dot", *square, None), sdpa(*square, None, is_causal=True)) < 1e-6
    assert gap(call("scaled_dot", *square, None, is_causal=False), sdpa(*square, None)) < 1e-6
    assert gap(call("scaled_dot", *square, None, module=layer()), sdpa(*square, None, is_causal=True)) < 1e-6
    assert gap(call("scaled_dot", *static, None), sdpa(*static, triangle)) < 1e-6
    assert gap(call("scaled_dot", *cross, None, module=layer(is_causal=False)), sdpa(*cross, None)) < 1e-6
    single_query = heads(m=1, n=8)
    assert gap(call("scaled_dot", *single_query, None), sdpa(*single_query, None)) < 1e-6
    with pytest.raises(rs.RheoscopeError, match="needs a mask"):
        call("scaled_dot", *heads(m=8, n=5), None)


def test_a_mask_overrides_causality_and_window() -> None:
    qkv, table = heads(n=8), torch.rand(2, 1, 5, 8, generator=torch.Generator().manual_seed(0)) < 0.6
    table[..., 0] = True
    assert gap(call("scaled_dot", *qkv, table, is_causal=True, sliding_window=2), sdpa(*qkv, table)) < 1e-6
    one_query_row = table[:, :, :1]
    assert gap(call("scaled_dot", *qkv, attention_mask=one_query_row), sdpa(*qkv, one_query_row)) < 1e-6


@pytest.mark.parametrize("lowest", [-torch.inf, torch.finfo(torch.float32).min, -1e9, MASKED_BELOW])
@pytest.mark.parametrize("mechanism", ["scaled_dot", "relu", "linear", "shaped"])
def test_a_float_mask_equals_a_boolean_one(mechanism: str, lowest: float) -> None:
    qkv, table = heads(), torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.6
    float_mask = torch.zeros(2, 1, 5, 5).masked_fill(~table, lowest)
    assert torch.equal(call(mechanism, *qkv, float_mask), call(mechanism, *qkv, table))


def test_a_float_mask_and_a_position_bias_are_added() -> None:
    qkv, generator = heads(n=8), torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 1, 5, 8, generator=generator), torch.randn(1, 4, 5, 8, generator=generator)
    a[..., 3] = torch.finfo(torch.float32).min
    assert gap(call("scaled_dot", *qkv, a, position_bias=b), sdpa(*qkv, a + b)) < 1e-6
    assert gap(call("scaled_dot", *qkv, None, position_bias=b, is_causal=False), sdpa(*qkv, b)) < 1e-6
    triangle = torch.ones(5, 8, dtype=torch.bool).tril()
    causal = b.masked_fill(~triangle, -torch.inf)
    assert gap(call("scaled_dot", *qkv, None, position_bias=b), sdpa(*qkv, causal)) < 1e-6


def test_a_position_bias_has_a_gradient() -> None:
    bias = torch.zeros(1, 4, 5, 5, requires_grad=True)
    call("metric", *heads(), None, position_bias=bias).square().sum().backward()
    assert bias.grad is not None
    assert bool(bias.grad.any())


def test_the_weights_of_a_static_cache_cover_all_keys() -> None:
    out = attention_function("scaled_dot")(layer(is_causal=True), *heads(n=8), None, output_attentions=True)
    assert out[1] is not None
    assert out[1].shape == (2, 4, 5, 8)
    assert gap(out[0], call("scaled_dot", *heads(n=8), None)) < 1e-6


def test_a_window_applies_without_a_mask() -> None:
    qkv = heads()
    offset = torch.arange(5)[:, None] - torch.arange(5)
    assert gap(call("scaled_dot", *qkv, None, sliding_window=2), sdpa(*qkv, (offset >= 0) & (offset < 2))) < 1e-6
    assert gap(call("scaled_dot", *qkv, None, sliding_window=2, is_causal=False), sdpa(*qkv, offset.abs() < 2)) < 1e-6
    single_query = heads(m=1)
    assert gap(call("scaled_dot", *single_query, None, sliding_window=2), sdpa(*single_query, (offset < 2)[-1:])) < 1e-6


def test_scaling_sets_the_scale_of_scores_that_have_one() -> None:
    qkv = heads()
    for mechanism, option in (("scaled_dot", "scale"), ("kernel_polynomial", "scale"), ("entmax15", "scale")):
        expected = rs.mechanism(mechanism, **{option: 0.7})(*qkv, mask="causal").transpose(1, 2)
        assert gap(call(mechanism, *qkv, None, scaling=0.7), expected) < 1e-6
    metric = rs.mechanism("metric", sigma=0.7**-0.5)(*qkv, mask="causal").transpose(1, 2)
    assert gap(call("metric", *qkv, None, scaling=0.7), metric) < 1e-6
    assert gap(call("kernel_rbf", *qkv, None, scaling=torch.tensor(0.7)), metric) < 1e-6
    for mechanism in ("cosine", "kernel_laplace", "linear"):
        assert torch.equal(call(mechanism, *qkv, None, scaling=0.7), call(mechanism, *qkv, None, scaling=0.1))


@dataclass(frozen=True, eq=False)
class UserScore(Score):
    """A score of a user that does not define `with_model_scale`."""

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT

    def pullback(self, q: Tensor, k: Tensor, r: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return r @ k, r.mT @ q, {}

    def dot_form(self, q: Tensor, k: Tensor) -> None:
        return None

    @property
    def numbers_per_pair(self) -> int:
        return 1


def test_a_score_without_a_model_scale_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ZOO, "own", ZooEntry("own", "q·k", lambda: Mechanism(UserScore()), (), ""))
    with pytest.raises(
        rs.RheoscopeError, match=r"UserScore does not define .*model's scale: implement the method with_model_scale"
    ):
        call("own", *heads(), None, scaling=0.7)


def test_sinks_and_caps_equal_the_computation_by_hand() -> None:
    q, k, v = heads(g=4)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    s = 0.9 * torch.tanh(q @ k.mT * 0.5 / 0.9) + torch.full((5, 5), -torch.inf).triu(1)
    total = torch.logaddexp(s.logsumexp(-1, keepdim=True), sinks[:, None, None])
    by_hand = ((s - total).exp() @ v).transpose(1, 2)
    for mechanism in ("scaled_dot", "softmax_sink"):
        assert gap(call(mechanism, q, k, v, None, scaling=0.5, softcap=0.9, s_aux=sinks), by_hand) < 1e-6


@pytest.mark.parametrize("mechanism", ["sigmoid", "relu", "entmax15", "hard", "linear", "shaped"])
def test_sinks_are_refused_by_normalisers_without_them(mechanism: str) -> None:
    with pytest.raises(rs.RheoscopeError, match="sinks"):
        call(mechanism, *heads(), None, s_aux=torch.zeros(4))


@pytest.mark.parametrize("mechanism", ZOO)
def test_sinks_of_a_model_act_or_are_refused(mechanism: str) -> None:
    """Changing the sinks changes the logits of every mechanism that accepts them."""
    model, ids = model_of("gpt_oss", f"rheoscope:{mechanism}"), texts()
    before = logits_or_error(model, input_ids=ids)
    if isinstance(before, str):
        assert is_one_line_error(before, "sinks") or is_one_line_error(before, "does not support masks")
        return
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.sinks += 2.0
    assert gap(model(ids).logits, before) > 1e-3


def test_a_bias_is_refused_by_linear_attention() -> None:
    with pytest.raises(rs.RheoscopeError, match="bias"):
        call("linear", *heads(), None, position_bias=torch.ones(1, 4, 5, 5))


def test_dropout_is_refused() -> None:
    config = hf.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, vocab_size=VOCAB, **TOKENS, attn_implementation="rheoscope:metric"
    )
    model = hf.GPT2LMHeadModel(config).train()
    with pytest.raises(rs.RheoscopeError, match=r"got 0\.1; .*; type model\.eval\(\)"):
        model(texts())
    assert model.eval()(texts()).logits.shape == (2, LENGTH, VOCAB)


@pytest.mark.parametrize("name", ["surprise", "cu_seq_lens_q", "indices", "cache"])
def test_an_unknown_keyword_is_refused_by_name(name: str) -> None:
    model = model_of("llama", "rheoscope:metric")
    with pytest.raises(rs.RheoscopeError, match=f"LlamaAttention passes {name} ") as error:
        model(texts(), **{name: torch.ones(3)})
    assert len(str(error.value).splitlines()) == 1
    harmless = {"surprise": None, **dict.fromkeys(HARMLESS_KEYWORDS, 1)}
    assert torch.equal(call("metric", *heads(), None, **harmless), call("metric", *heads(), None))


def test_a_learned_scaling_is_refused() -> None:
    with pytest.raises(rs.RheoscopeError, match="scaling must be one number"):
        call("metric", *heads(), None, scaling=torch.ones(4))


@pytest.mark.filterwarnings("ignore")
def test_a_model_with_attention_of_its_own_is_refused() -> None:
    """BLOOM uses only the masks of the interface. It would run unmasked and without the mechanism."""
    config = hf.BloomConfig(
        hidden_size=16, n_layer=1, n_head=2, vocab_size=VOCAB, attn_implementation="rheoscope:metric"
    )
    with pytest.raises(rs.RheoscopeError, match="'bloom' have their own attention"):
        hf.BloomForCausalLM(config)(texts())


# Registration


def test_registering_twice_changes_nothing() -> None:
    keys = rs.register_with_transformers()
    assert keys == rs.register_with_transformers() == [f"rheoscope:{name}" for name in ZOO]
    assert set(keys) <= set(hf.AttentionInterface().valid_keys()) & set(hf.AttentionMaskInterface().valid_keys())


def test_without_transformers_the_error_gives_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(rs.RheoscopeError, match="pip install 'transformers>=5'"):
        rs.register_with_transformers()

"""The mechanisms inside Hugging Face models: the model's own numbers, masks that hold, and no keyword swallowed."""

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
    f"{side}_{what}": x
    for side in ("encoder", "decoder")
    for what, x in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
}

# Each maker builds a model from nothing but numbers; no file and no network is involved.
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
BOTH_WAYS = ["bert", "modernbert"]
ENCODER_DECODER = ["t5", "bart"]
MODELS: dict[str, Any] = {}


def model_of(family: str, mechanism: str = "eager") -> Any:
    """A tiny model with every parameter random, norms and biases and sinks too; made once, handed out as a copy."""
    if family not in MODELS:
        torch.manual_seed(0)
        made = FAMILIES[family]().eval()
        with torch.no_grad():
            for x in made.parameters():
                x.copy_(torch.randn_like(x) * (0.3 if x.ndim > 1 else 0.5) + (x.ndim == 1))
        MODELS[family] = made
    model = copy.deepcopy(MODELS[family])
    model.set_attn_implementation(mechanism)
    return model


def texts(rows: int = 2, length: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def left_padding() -> Tensor:
    real = torch.ones(2, LENGTH, dtype=torch.long)
    real[0, :3] = 0
    return real


def inputs(family: str, padded: bool) -> dict[str, Tensor]:
    given = {"input_ids": texts()}
    if padded:
        given["attention_mask"] = left_padding() if family in CAUSAL else left_padding().flip(-1)
    if family in ENCODER_DECODER:
        given["decoder_input_ids"] = texts(length=5, seed=2)
    return given


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max().clamp(min=1))


def logits(model: Any, family: str, padded: bool) -> Tensor:
    """Logits at real tokens only: what stands at padding is read by nobody, and eager and sdpa differ there."""
    with torch.no_grad():
        out = model(**(given := inputs(family, padded))).logits
    return out[given["attention_mask"].bool()] if padded and family not in ENCODER_DECODER else out


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small lose more to waiting for a second thread than it gives."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# The model's own numbers


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_scaled_dot_gives_the_models_own_logits(family: str, padded: bool) -> None:
    own = logits(model_of(family), family, padded)
    assert gap(logits(model_of(family, "rheoscope:scaled_dot"), family, padded), own) < 1e-5
    assert float(own.std()) > 0.05


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family", [*CAUSAL, *ENCODER_DECODER])
def test_cached_generation_gives_the_same_tokens(family: str, cache: str | None) -> None:
    """A growing cache with padding; a static one without, where no mask comes and keys outnumber queries."""
    more = {"cache_implementation": cache, "disable_compile": True} if cache else {}

    def generated(mechanism: str) -> tuple[Tensor, Tensor]:
        out = model_of(family, mechanism).generate(
            texts(),
            attention_mask=left_padding() if family in CAUSAL and not cache else None,
            max_new_tokens=6,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            **more,
        )
        return out.sequences, torch.stack(out.logits)

    (tokens, scores), (own, own_scores) = generated("rheoscope:scaled_dot"), generated("eager")
    assert torch.equal(tokens, own)
    assert gap(scores, own_scores) < 1e-5


@pytest.mark.parametrize("mechanism", ["metric", "sigmoid", "linear", "entmax15", "additive"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_cache_changes_nothing(family: str, mechanism: str) -> None:
    """Whole text at once, token by token, and in pieces: the same logits."""
    model, ids = model_of(family, f"rheoscope:{mechanism}"), texts()
    with torch.no_grad():
        whole = model(ids).logits
        for cuts in ([1] * LENGTH, [4, 3, 2]):
            cache = hf.DynamicCache(config=model.config)
            pieces = [model(piece, past_key_values=cache).logits for piece in ids.split(cuts, 1)]
            assert gap(torch.cat(pieces, 1), whole) < 1e-5


def test_packed_texts_do_not_see_each_other() -> None:
    model, ids = model_of("llama", "rheoscope:metric"), texts(1)
    at = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    with torch.no_grad():
        packed = model(ids, position_ids=at, use_cache=False).logits
        apart = [model(ids[:, :4], use_cache=False).logits, model(ids[:, 4:], use_cache=False).logits]
    assert gap(packed, torch.cat(apart, 1)) < 1e-5


def test_a_vision_model_keeps_its_numbers() -> None:
    torch.manual_seed(0)
    config = hf.ViTConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4
    )
    model = hf.ViTModel(config).eval()
    image, answers = torch.randn(2, 3, 16, 16), {}
    for mechanism in ("eager", "rheoscope:scaled_dot", "rheoscope:sinkhorn"):
        model.set_attn_implementation(mechanism)
        with torch.no_grad():
            answers[mechanism] = model(image).last_hidden_state
    assert gap(answers["rheoscope:scaled_dot"], answers["eager"]) < 1e-5
    assert gap(answers["rheoscope:sinkhorn"], answers["eager"]) > 1e-4


def test_cross_attention_inside_a_bert_decoder() -> None:
    torch.manual_seed(0)
    model = hf.BertLMHeadModel(hf.BertConfig(**SMALL, is_decoder=True, add_cross_attention=True)).eval()
    given = {"input_ids": texts(), "encoder_hidden_states": torch.randn(2, 5, 32)}
    seen = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    answers = []
    for mechanism in ("eager", "rheoscope:scaled_dot"):
        model.set_attn_implementation(mechanism)
        with torch.no_grad():
            answers.append(model(**given, encoder_attention_mask=seen).logits)
    assert gap(answers[1], answers[0]) < 1e-5


# The metric, by hand


def eager_metric(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kw: Any) -> Any:
    """-scaling |q - k|²/2, softmax, additive mask: written out without any code of Rheoscope."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    squares = (query[..., :, None, :] - key[..., None, :, :]).square().sum(-1)
    weights = (-kw["scaling"] / 2 * squares + attention_mask).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


hf.AttentionInterface.register("metric_by_hand", eager_metric)
hf.AttentionMaskInterface.register("metric_by_hand", hf.masking_utils.eager_mask)


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_metric_equals_the_metric_by_hand(padded: bool) -> None:
    own = logits(model_of("llama", "metric_by_hand"), "llama", padded)
    assert gap(logits(model_of("llama", "rheoscope:metric"), "llama", padded), own) < 1e-5
    assert gap(logits(model_of("llama", "rheoscope:scaled_dot"), "llama", padded), own) > 1e-2


# Masks hold, for every mechanism


def answer(model: Any, **given: Any) -> Tensor | str:
    """Logits, or the refusal."""
    try:
        with torch.no_grad():
            return model(**given).logits
    except rs.RheoscopeError as error:
        return str(error)


def one_line(refusal: Tensor | str, says: str) -> bool:
    return isinstance(refusal, str) and says in refusal and len(refusal.splitlines()) == 1


def runs(mechanism: str) -> bool:
    return ZOO[mechanism].domain.allows_masks


@pytest.mark.parametrize("mechanism", ZOO)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_past_does_not_see_the_future(family: str, mechanism: str) -> None:
    model, ids = model_of(family, f"rheoscope:{mechanism}"), texts()
    edited = ids.clone()
    edited[:, -1] = (ids[:, -1] + 1) % VOCAB
    before, after = answer(model, input_ids=ids), answer(model, input_ids=edited)
    if not runs(mechanism):
        assert one_line(before, "does not support masks")
        return
    assert isinstance(before, Tensor)
    assert isinstance(after, Tensor)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


@pytest.mark.parametrize("mechanism", ZOO)
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_padding_is_not_seen(family: str, mechanism: str) -> None:
    model, given = model_of(family, f"rheoscope:{mechanism}"), inputs(family, padded=True)
    real = given["attention_mask"].bool()
    edited = torch.where(real, given["input_ids"], 7)
    before = answer(model, **given)
    after = answer(model, **{**given, "input_ids": edited})
    if not runs(mechanism):
        assert one_line(before, "does not support masks")
        return
    assert isinstance(before, Tensor)
    assert isinstance(after, Tensor)
    assert torch.equal(before[real], after[real])
    assert bool(before.isfinite().all())


@pytest.mark.parametrize("mechanism", ZOO)
def test_every_mechanism_trains_or_is_refused(mechanism: str) -> None:
    model = model_of("llama", f"rheoscope:{mechanism}").train()
    given = {"input_ids": texts(), "attention_mask": left_padding()}
    if not runs(mechanism):
        with pytest.raises(rs.RheoscopeError, match=r"^.*does not support masks.*$"):
            model(**given)
        return
    model(**given)
    loss = model(**given, labels=given["input_ids"]).loss
    loss.backward()
    gradients = {name: x.grad for name, x in model.named_parameters()}
    still = [name for name, x in gradients.items() if x is None]  # hard choices have no gradient in q and k
    assert all("q_proj" in name or "k_proj" in name for name in still)
    assert bool(still) != ZOO[mechanism].domain.is_differentiable
    assert all(bool(x.isfinite().all()) for x in gradients.values() if x is not None)
    learned = [name for name in gradients if "rheoscope_attention" in name]
    assert bool(learned) == ZOO[mechanism].needs_dim
    assert all(bool(gradients[name].any()) for name in learned)


def test_shaped_is_square() -> None:
    model = model_of("llama", "rheoscope:shaped")
    with pytest.raises(rs.RheoscopeError, match="square"):
        model.generate(texts(), max_new_tokens=3, do_sample=False)
    assert model.generate(texts(), max_new_tokens=3, do_sample=False, use_cache=False).shape == (2, LENGTH + 3)


def test_doubly_stochastic_attention_runs_where_nothing_is_masked() -> None:
    model = model_of("bert", "rheoscope:sinkhorn")
    with torch.no_grad():
        weights = model(texts(), attention_mask=torch.ones(2, LENGTH), output_attentions=True).attentions
    assert all(gap(x.sum(-1), torch.ones(())) < 1e-5 for x in weights)


# Learned mechanisms


def test_learned_tensors_are_born_once_trainable_and_saved() -> None:
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


def test_learned_tensors_of_two_mechanisms_live_side_by_side() -> None:
    model, ids = model_of("llama", "rheoscope:additive"), texts()
    first = model(ids).logits
    model.set_attn_implementation("rheoscope:relation")
    assert not torch.equal(model(ids).logits, first)
    model.set_attn_implementation("rheoscope:additive")
    assert torch.equal(model(ids).logits, first)


def test_learned_tensors_take_the_dtype_of_the_layer() -> None:
    model = model_of("llama", "rheoscope:metric_map").to(torch.bfloat16)
    assert model(texts()).logits.dtype is torch.bfloat16
    assert {x.dtype for x in model.parameters()} == {torch.bfloat16}


def test_autocast_keeps_the_metric_exact() -> None:
    """Far from the origin the key bias is large: rounded to bfloat16 it would be wrong by whole units."""
    q, k, v = (x.bfloat16().float() for x in heads(g=4))
    with torch.autocast("cpu", torch.bfloat16):
        out = call("metric", 8 * q, 8 * k, v.bfloat16(), None, scaling=0.3)
    scores = -0.15 * 64 * (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
    weights = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    assert out.dtype is torch.bfloat16
    assert gap(out.float(), (weights @ v).transpose(1, 2)) < 2**-8


def test_a_model_runs_under_autocast() -> None:
    """Qwen's normed queries are float32 there and its values bfloat16."""
    model = model_of("qwen3", "rheoscope:scaled_dot")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        half = model(texts(), use_cache=False).logits.float()
    assert gap(half, logits(model_of("qwen3"), "qwen3", padded=False)) < 0.05


# Weights


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gpt_oss", "bert"])
def test_weights_come_back_when_asked_for(family: str, padded: bool) -> None:
    given = inputs(family, padded)
    with torch.no_grad():
        own = model_of(family)(**given, output_attentions=True)
        out = model_of(family, "rheoscope:scaled_dot")(**given, output_attentions=True)
        silent = model_of(family, "rheoscope:scaled_dot")(**given)
    rows = given.get("attention_mask", torch.ones(2, LENGTH)).bool()
    assert len(out.attentions) == len(own.attentions) == 2
    for a, b in zip(out.attentions, own.attentions, strict=True):
        assert gap(a.transpose(1, 2)[rows], b.transpose(1, 2)[rows]) < 1e-5
    assert gap(out.logits[rows], own.logits[rows]) < 1e-5
    assert not silent.attentions


# One call at a time: each keyword is honoured or refused


def layer(**more: Any) -> Any:
    module = torch.nn.Module()
    for name, value in more.items():
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


def test_layout() -> None:
    out, weights = attention_function("metric")(layer(is_causal=True), *heads(), None)
    assert weights is None
    assert out.shape == (2, 5, 4, 8)
    assert out.is_contiguous()


def test_no_mask_means_what_sdpa_means() -> None:
    square, static, cross = heads(), heads(n=8), heads(m=4, n=8)
    triangle = torch.ones(5, 8, dtype=torch.bool).tril()
    assert gap(call("scaled_dot", *square, None), sdpa(*square, None, is_causal=True)) < 1e-6
    assert gap(call("scaled_dot", *square, None, is_causal=False), sdpa(*square, None)) < 1e-6
    assert gap(call("scaled_dot", *square, None, module=layer()), sdpa(*square, None, is_causal=True)) < 1e-6
    assert gap(call("scaled_dot", *static, None), sdpa(*static, triangle)) < 1e-6
    assert gap(call("scaled_dot", *cross, None, module=layer(is_causal=False)), sdpa(*cross, None)) < 1e-6
    one = heads(m=1, n=8)
    assert gap(call("scaled_dot", *one, None), sdpa(*one, None)) < 1e-6
    with pytest.raises(rs.RheoscopeError, match="needs a mask"):
        call("scaled_dot", *heads(m=8, n=5), None)


def test_a_mask_is_the_last_word() -> None:
    qkv, table = heads(n=8), torch.rand(2, 1, 5, 8, generator=torch.Generator().manual_seed(0)) < 0.6
    table[..., 0] = True
    assert gap(call("scaled_dot", *qkv, table, is_causal=True, sliding_window=2), sdpa(*qkv, table)) < 1e-6
    one_row = table[:, :, :1]
    assert gap(call("scaled_dot", *qkv, attention_mask=one_row), sdpa(*qkv, one_row)) < 1e-6


@pytest.mark.parametrize("lowest", [-torch.inf, torch.finfo(torch.float32).min, -1e9, MASKED_BELOW])
@pytest.mark.parametrize("mechanism", ["scaled_dot", "relu", "linear", "shaped"])
def test_a_float_mask_forbids_as_a_boolean_one(mechanism: str, lowest: float) -> None:
    qkv, table = heads(), torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.6
    added = torch.zeros(2, 1, 5, 5).masked_fill(~table, lowest)
    assert torch.equal(call(mechanism, *qkv, added), call(mechanism, *qkv, table))


def test_a_float_mask_and_a_position_bias_add() -> None:
    qkv, generator = heads(n=8), torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 1, 5, 8, generator=generator), torch.randn(1, 4, 5, 8, generator=generator)
    a[..., 3] = torch.finfo(torch.float32).min
    assert gap(call("scaled_dot", *qkv, a, position_bias=b), sdpa(*qkv, a + b)) < 1e-6
    assert gap(call("scaled_dot", *qkv, None, position_bias=b, is_causal=False), sdpa(*qkv, b)) < 1e-6
    triangle = torch.ones(5, 8, dtype=torch.bool).tril()
    causal = b.masked_fill(~triangle, -torch.inf)
    assert gap(call("scaled_dot", *qkv, None, position_bias=b), sdpa(*qkv, causal)) < 1e-6


def test_a_position_bias_is_trained() -> None:
    bias = torch.zeros(1, 4, 5, 5, requires_grad=True)
    call("metric", *heads(), None, position_bias=bias).square().sum().backward()
    assert bias.grad is not None
    assert bool(bias.grad.any())


def test_the_weights_of_a_static_cache_reach_its_end() -> None:
    out = attention_function("scaled_dot")(layer(is_causal=True), *heads(n=8), None, output_attentions=True)
    assert out[1] is not None
    assert out[1].shape == (2, 4, 5, 8)
    assert gap(out[0], call("scaled_dot", *heads(n=8), None)) < 1e-6


def test_a_window_without_a_mask_is_cut_here() -> None:
    qkv = heads()
    offset = torch.arange(5)[:, None] - torch.arange(5)
    assert gap(call("scaled_dot", *qkv, None, sliding_window=2), sdpa(*qkv, (offset >= 0) & (offset < 2))) < 1e-6
    assert gap(call("scaled_dot", *qkv, None, sliding_window=2, is_causal=False), sdpa(*qkv, offset.abs() < 2)) < 1e-6
    one = heads(m=1)
    assert gap(call("scaled_dot", *one, None, sliding_window=2), sdpa(*one, (offset < 2)[-1:])) < 1e-6


def test_scaling_is_the_scale_of_every_score_that_has_one() -> None:
    qkv = heads()
    for mechanism, option in (("scaled_dot", "scale"), ("kernel_polynomial", "scale"), ("entmax15", "scale")):
        expected = rs.mechanism(mechanism, **{option: 0.7})(*qkv, mask="causal").transpose(1, 2)
        assert gap(call(mechanism, *qkv, None, scaling=0.7), expected) < 1e-6
    metric = rs.mechanism("metric", sigma=0.7**-0.5)(*qkv, mask="causal").transpose(1, 2)
    assert gap(call("metric", *qkv, None, scaling=0.7), metric) < 1e-6
    assert gap(call("kernel_rbf", *qkv, None, scaling=torch.tensor(0.7)), metric) < 1e-6
    for own in ("cosine", "kernel_laplace", "linear"):
        assert torch.equal(call(own, *qkv, None, scaling=0.7), call(own, *qkv, None, scaling=0.1))


@dataclass(frozen=True, eq=False)
class Own(Score):
    """A score that a user wrote, and that says nothing of a model's scaling."""

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT

    def pullback(self, q: Tensor, k: Tensor, r: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return r @ k, r.mT @ q, {}

    def dot_form(self, q: Tensor, k: Tensor) -> None:
        return None

    @property
    def numbers_per_pair(self) -> int:
        return 1


def test_scaling_is_not_swallowed_by_a_score_that_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ZOO, "own", ZooEntry("own", "q·k", lambda: Mechanism(Own()), (), ""))
    with pytest.raises(
        rs.RheoscopeError, match=r"Own does not define .*model's scale: implement the method with_model_scale"
    ):
        call("own", *heads(), None, scaling=0.7)


def test_sinks_and_caps_by_hand() -> None:
    q, k, v = heads(g=4)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    s = 0.9 * torch.tanh(q @ k.mT * 0.5 / 0.9) + torch.full((5, 5), -torch.inf).triu(1)
    total = torch.logaddexp(s.logsumexp(-1, keepdim=True), sinks[:, None, None])
    by_hand = ((s - total).exp() @ v).transpose(1, 2)
    for mechanism in ("scaled_dot", "softmax_sink"):
        assert gap(call(mechanism, q, k, v, None, scaling=0.5, softcap=0.9, s_aux=sinks), by_hand) < 1e-6


@pytest.mark.parametrize("mechanism", ["sigmoid", "relu", "entmax15", "hard", "linear", "shaped"])
def test_sinks_are_refused_where_they_have_no_place(mechanism: str) -> None:
    with pytest.raises(rs.RheoscopeError, match="sinks"):
        call(mechanism, *heads(), None, s_aux=torch.zeros(4))


@pytest.mark.parametrize("mechanism", ZOO)
def test_a_model_with_sinks_has_sinks_or_is_refused(mechanism: str) -> None:
    """Moving the sinks moves the logits of every mechanism that accepts them."""
    model, ids = model_of("gpt_oss", f"rheoscope:{mechanism}"), texts()
    before = answer(model, input_ids=ids)
    if isinstance(before, str):
        assert one_line(before, "sinks") or one_line(before, "does not support masks")
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
    with pytest.raises(rs.RheoscopeError, match=r"got 0\.1; type model\.eval\(\)"):
        model(texts())
    assert model.eval()(texts()).logits.shape == (2, LENGTH, VOCAB)


@pytest.mark.parametrize("name", ["surprise", "cu_seq_lens_q", "indices", "cache"])
def test_a_keyword_that_is_not_known_is_refused_by_name(name: str) -> None:
    model = model_of("llama", "rheoscope:metric")
    with pytest.raises(rs.RheoscopeError, match=f"LlamaAttention passes {name} ") as error:
        model(texts(), **{name: torch.ones(3)})
    assert len(str(error.value).splitlines()) == 1
    call("metric", *heads(), None, surprise=None, **dict.fromkeys(HARMLESS_KEYWORDS, 1))


def test_a_learned_scaling_is_refused() -> None:
    with pytest.raises(rs.RheoscopeError, match="scaling must be one number"):
        call("metric", *heads(), None, scaling=torch.ones(4))


@pytest.mark.filterwarnings("ignore")
def test_a_model_with_attention_of_its_own_is_refused() -> None:
    """BLOOM takes masks from the interface and nothing else: it would run unmasked, without our mechanism."""
    config = hf.BloomConfig(
        hidden_size=16, n_layer=1, n_head=2, vocab_size=VOCAB, attn_implementation="rheoscope:metric"
    )
    with pytest.raises(rs.RheoscopeError, match="'bloom' have attention of their own"):
        hf.BloomForCausalLM(config)(texts())


# Registration


def test_registering_twice_changes_nothing() -> None:
    keys = rs.register_with_transformers()
    assert keys == rs.register_with_transformers() == [f"rheoscope:{name}" for name in ZOO]
    assert set(keys) <= set(hf.AttentionInterface().valid_keys()) & set(hf.AttentionMaskInterface().valid_keys())


def test_without_transformers_it_is_told_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(rs.RheoscopeError, match="pip install 'transformers>=5'"):
        rs.register_with_transformers()

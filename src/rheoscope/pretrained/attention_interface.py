"""Every named mechanism inside Hugging Face models, as `attn_implementation="rheoscope:<name>"`.

A model hands its queries, keys, values and mask to a function of `AttentionInterface`, with further keywords that change
what attention means (sinks, caps, biases, windows). Here each keyword is honoured, known to be harmless, or refused by
name: a wrapper that swallows one gives wrong logits without an error. The mask is registered under the same key, since
without it transformers makes none at all.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from rheoscope.attention.call_checks import check_call
from rheoscope.attention.definition import reference_attention
from rheoscope.attention.mask import BooleanMask, Causal, Mask, NoMask, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.modules import Attention
from rheoscope.attention.position_bias import Bias
from rheoscope.attention.score import SoftCap
from rheoscope.attention.zoo import ZOO
from rheoscope.shapes import RheoscopeError

AttentionResult = tuple[Tensor, Tensor | None]

MASKED_BELOW = -1e4
"""An additive mask this low forbids: transformers writes the dtype's minimum, others -1e4, -1e9 or -inf."""

HARMLESS_KEYWORDS = frozenset(
    {
        "cache_position",
        "deterministic",
        "encoder_hidden_states",
        "logits_to_keep",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
"""Keywords that models pass on to every layer and that are spent before attention: by the rotary, the mask, the loss."""

_PACKED_ADVICE = (
    "packed texts are told apart by position_ids that start again at 0: leave the cu_seq_lens and max_length out"
)
_SPARSE_ADVICE = "the model picks its keys itself: type attn_implementation='eager'"
REFUSED_KEYWORDS = {
    "cache": "continuous batching pages its keys: type model.generate(…)",
    "cu_seq_lens_q": _PACKED_ADVICE,
    "cu_seq_lens_k": _PACKED_ADVICE,
    "max_length_q": _PACKED_ADVICE,
    "max_length_k": _PACKED_ADVICE,
    "seq_idx": _PACKED_ADVICE,
    "indices": _SPARSE_ADVICE,
    "block_indices": _SPARSE_ADVICE,
}
"""Keywords that are known and refused, with what to type instead; every other unknown one is refused too."""


def register_with_transformers() -> list[str]:
    """Make every named mechanism an attention implementation of Hugging Face models; returns their keys.

    **Answers** "what does this model become if relevance is a distance, a kernel, a sparse choice, …?" without touching
    its code: `from_pretrained(…, attn_implementation="rheoscope:metric")` or `model.set_attn_implementation(…)`.

    **Semantics** o = mechanism(q, k, v) under the model's own mask (causal, padding, windows, packing, caches), with
    every keyword that a model passes:

    - `scaling` is the scale of dot products and polynomials. For a distance 1/sigma² = scaling (scale = scaling/2), so
      that the metric is the model's own dot product with the bias -scaling |k|²/2 per key. Cosine, additive, Laplace
      and linear attention keep a temperature of their own.
    - `softcap` caps any score. `s_aux` (sinks) takes the place of softmax, or sets the height of `softmax_sink`; other
      normalisers refuse it.
    - `position_bias` and a float mask are added to the scores (-1e4 or less forbids); `linear` refuses them.
    - `sliding_window` and `is_causal` are read where there is no mask: a mask already carries them.
    - `output_attentions` gives the weights back, as `eager` does.
    - `dropout` above 0 is refused: type `model.eval()`, or make the model with `attention_dropout=0`.
    - any other is refused by name, unless it is known to be spent before attention (`position_ids`, `use_cache`, …).

    **Learned mechanisms** (bilinear, additive, relation, symmetric_relation, metric_map, mahalanobis) put their
    parameters into each attention layer as `rheoscope_attention.<name>` at the first forward, always the same ones: run
    one forward before building an optimiser. They are saved with the model; `from_pretrained` makes the layers anew and
    reports them as unexpected, so after it run one forward and `model.load_state_dict(load_file("model.safetensors"))`.

    **Laws** `rheoscope:scaled_dot` gives the model's own logits; no mechanism sees what the model masks; outside a
    mechanism's domain (`sinkhorn` under a mask, `shaped` with a cache) the call is refused; calling twice changes nothing.

    **Limits** A model that never asks the interface (BLOOM, GPT-J, DeBERTa, …) cannot change its attention: refused
    where it asks for a mask, an error of its own in most others, without a word in a few (DeBERTa, XLNet).

    **Source** transformers' AttentionInterface and AttentionMaskInterface.

    **Siblings** `mechanisms()` lists the names; `nn.MultiHeadAttention` is a layer of our own.

    >>> import rheoscope as rs, transformers, torch
    >>> keys = rs.register_with_transformers()
    >>> small = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)
    >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, attn_implementation="rheoscope:metric"))
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 9])
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise RheoscopeError(
            "register_with_transformers needs transformers 5 or later, which is not installed; "
            "type pip install 'transformers>=5'"
        ) from error

    for name in ZOO:
        AttentionInterface.register(f"rheoscope:{name}", attention_function(name))
        AttentionMaskInterface.register(f"rheoscope:{name}", mask_function)
    return [f"rheoscope:{name}" for name in ZOO]


def mask_function(*args: Any, **keywords: Any) -> Tensor | None:
    """The mask of sdpa: boolean, or None where `is_causal` says it all (see `permitted_keys`)."""
    from transformers.masking_utils import sdpa_mask

    refuse_custom_attention(keywords.get("config"))
    return sdpa_mask(*args, **keywords)


def refuse_custom_attention(config: Any) -> None:
    """A model with attention of its own would take our mask, ignore our mechanism, and lose its causality in silence."""
    modeling_module = sys.modules.get(type(config).__module__.replace("configuration_", "modeling_"))
    if modeling_module is None or hasattr(modeling_module, "ALL_ATTENTION_FUNCTIONS"):
        return
    layers = [
        member
        for member in vars(modeling_module).values()
        if isinstance(member, type) and issubclass(member, nn.Module)
    ]
    if any("Attention" in layer.__name__ for layer in layers):
        raise RheoscopeError(
            f"models of type {config.model_type!r} have attention of their own that no attn_implementation changes; "
            "type attn_implementation='eager'"
        )


def attention_function(name: str) -> Callable[..., AttentionResult]:
    """The function that transformers calls for `rheoscope:<name>`."""

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **keywords: Any,
    ) -> AttentionResult:
        settings = parse_keywords(module, keywords)
        call = with_mask(attention_call(query, key, value, settings), attention_mask, settings)
        mechanism = apply_settings(mechanism_for(module, name, call.q), call, settings)
        # Autocast would take the exact parts of a mechanism (biases, distances) down to half precision again.
        with torch.autocast(query.device.type, enabled=False):
            return run_mechanism(mechanism, call, key.shape[-2], settings.return_weights)

    return attend


# The keywords


@dataclass(frozen=True, eq=False)
class AttentionSettings:
    """What a model asks of attention beside q, k, v and the mask."""

    scaling: float | None
    causal: bool
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    bias: Tensor | None
    return_weights: bool


def parse_keywords(module: nn.Module, keywords: dict[str, Any]) -> AttentionSettings:
    """The keywords that mean something; one that is not None and not known is refused."""
    remaining = dict(keywords)
    dropout, causal = remaining.pop("dropout", None), remaining.pop("is_causal", None)
    settings = AttentionSettings(
        scaling=as_number("scaling", remaining.pop("scaling", None)),
        causal=getattr(module, "is_causal", True) if causal is None else causal,
        window=remaining.pop("sliding_window", None),
        softcap=as_number("softcap", remaining.pop("softcap", None)),
        sinks=remaining.pop("s_aux", None),
        bias=remaining.pop("position_bias", None),
        return_weights=wants_weights(remaining.pop("output_attentions", None)),
    )
    refuse_dropout(dropout)
    refuse_unknown(module, remaining)
    return settings


def as_number(name: str, value: Any) -> float | None:
    """A keyword as a plain number; one that is learned, or differs between heads, has no place in a mechanism."""
    if isinstance(value, Tensor) and (value.numel() > 1 or value.requires_grad):
        raise RheoscopeError(
            f"{name} must be one number, got a tensor {tuple(value.shape)}; type attn_implementation='eager'"
        )
    return None if value is None else float(value)


def refuse_dropout(dropout: float | None) -> None:
    if dropout:
        raise RheoscopeError(
            f"dropout of attention weights is not part of a mechanism, got {dropout}; type model.eval(), or make the model "
            "with attention_dropout=0 (attn_pdrop=0, attention_probs_dropout_prob=0, dropout_rate=0 in some families)"
        )


def refuse_unknown(module: nn.Module, remaining: dict[str, Any]) -> None:
    for name, value in remaining.items():
        if value is None or name in HARMLESS_KEYWORDS:
            continue
        advice = REFUSED_KEYWORDS.get(name, f"leave {name}= out, or type attn_implementation='eager'")
        raise RheoscopeError(
            f"{type(module).__name__} passes {name} to attention, which rheoscope does not honour; {advice}"
        )


def wants_weights(output_attentions: bool | None) -> bool:
    """Whether the caller of the model collects weights: some families (GPT-2, OPT) do not pass the request on."""
    from transformers.utils.output_capturing import _active_collector

    collectors = _active_collector.get() or {}
    return bool(output_attentions) or any(name.endswith("attentions") for name in collectors)


# The tensors


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """q, k, v with the mask and the additive bias (b, h, m, n) that belong to them."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    mask: Mask = NoMask()


def attention_call(q: Tensor, k: Tensor, v: Tensor, settings: AttentionSettings) -> AttentionCall:
    """Under autocast a normed query may be wider than its value; torch's own kernel would take all of them down too."""
    if torch.is_autocast_enabled(q.device.type):
        q, k = q.to(v.dtype), k.to(v.dtype)
    return AttentionCall(q, k, v, expand_table(settings.bias, q, k))


def with_mask(call: AttentionCall, mask: Tensor | None, settings: AttentionSettings) -> AttentionCall:
    """A mask from the model carries everything: causality, padding, windows, caches. None says what sdpa means by it."""
    if mask is None:
        return with_default_mask(call, settings)
    table = expand_table(mask, call.q, call.k)
    assert table is not None
    if table.dtype is torch.bool:
        return replace(call, mask=BooleanMask(table))
    forbidden = table <= MASKED_BELOW
    added_bias = table.masked_fill(forbidden, 0)
    if bool(added_bias.any()) or added_bias.requires_grad:
        call = replace(call, bias=added_bias if call.bias is None else call.bias + added_bias)
    return replace(call, mask=BooleanMask(~forbidden))


def with_default_mask(call: AttentionCall, settings: AttentionSettings) -> AttentionCall:
    """One query sees every key; more queries are causal if the layer is, counted from the first key.

    With more keys than queries the further keys are the empty end of a static cache, which nothing may see.
    """
    m, n = call.q.shape[-2], call.k.shape[-2]
    is_causal = settings.causal and m > 1
    if is_causal and m > n:
        raise RheoscopeError(
            f"causal attention of {m} queries to {n} keys needs a mask; type attention_mask=<(b, 1, m, n)>"
        )
    if is_causal:
        bias = None if call.bias is None else call.bias[..., :m]
        call = replace(call, k=call.k[..., :m, :], v=call.v[..., :m, :], bias=bias, mask=Causal())
    if settings.window is not None and settings.window < call.k.shape[-2]:
        call = replace(call, mask=call.mask & Window(settings.window))
    return call


def expand_table(table: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """A table over all queries and keys, where a model leaves an axis of 1."""
    if table is None:
        return None
    m, n = q.shape[-2], k.shape[-2]
    rows, columns = table.shape[-2:]
    return table.expand(*table.shape[:-2], m if rows == 1 else rows, n if columns == 1 else columns)


# The mechanism


def mechanism_for(module: nn.Module, name: str, q: Tensor) -> Mechanism:
    """The named mechanism; where it learns, with the parameters that the layer holds, made at its first call."""
    if not ZOO[name].needs_dim:
        return ZOO[name]()
    if not hasattr(module, "rheoscope_attention"):
        module.rheoscope_attention = nn.ModuleDict()
    layer_mechanisms = module.rheoscope_attention
    assert isinstance(layer_mechanisms, nn.ModuleDict)
    if name not in layer_mechanisms:
        layer_dtype = next(
            (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()), q.dtype
        )
        with torch.inference_mode(False):  # parameters born inside inference_mode could never be trained
            layer_mechanisms[name] = Attention(name, dim=q.shape[-1]).to(device=q.device, dtype=layer_dtype)
    attention = layer_mechanisms[name]
    assert isinstance(attention, Attention)
    return attention.current_mechanism()


def apply_settings(mechanism: Mechanism, call: AttentionCall, settings: AttentionSettings) -> Mechanism:
    """The mechanism as the model asks for it: its scale, cap, sinks, bias and mask."""
    score = mechanism.score.with_model_scale(call.q.shape[-1] ** -0.5 if settings.scaling is None else settings.scaling)
    if settings.softcap is not None:
        score = SoftCap(score, settings.softcap)
    mechanism = replace(mechanism, score=score)
    if settings.sinks is not None:
        mechanism = replace(mechanism, normaliser=mechanism.normaliser.with_sink(settings.sinks.flatten()))
    if call.bias is not None:
        refuse_bias(mechanism)
        mechanism = replace(mechanism, position=Bias(call.bias))
    return mechanism.with_mask(call.mask)


def refuse_bias(mechanism: Mechanism) -> None:
    if mechanism.normaliser.divides_by_sum:
        raise RheoscopeError(
            "this model adds a bias to its scores, and linear attention divides by a sum of scores that must not be "
            "negative; type attn_implementation='rheoscope:scaled_dot'"
        )


def run_mechanism(mechanism: Mechanism, call: AttentionCall, n_keys: int, return_weights: bool) -> AttentionResult:
    """Outputs as transformers wants them (b, m, h, e), and the weights (b, h, m, n) where they are asked for."""
    if not return_weights:
        return mechanism.attend(call.q, call.k, call.v).transpose(1, 2).contiguous(), None
    check_call(mechanism, call.q, call.k, call.v)
    out, weights = reference_attention(mechanism, call.q, call.k, call.v)
    weights = pad(weights, (0, n_keys - weights.shape[-1]))
    return out.to(call.v.dtype).transpose(1, 2).contiguous(), weights.to(call.q.dtype)

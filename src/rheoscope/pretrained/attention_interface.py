"""Every named mechanism as an attention implementation of Hugging Face models: `attn_implementation="rheoscope:<name>"`.

A model passes queries, keys, values and a mask to a function of `AttentionInterface`. Further keywords (sinks, caps, biases,
windows) change the meaning of attention. Here each keyword is applied, known to be harmless, or refused by name, because an
ignored keyword gives wrong logits without an error. The mask is registered under the same key, since transformers otherwise
makes no mask at all.
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
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

AttentionResult = tuple[Tensor, Tensor | None]

MASKED_BELOW = -1e4
"""Values of an additive mask up to this forbid a pair: transformers writes the minimum of the dtype, others -1e4, -1e9 or -inf."""

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
"""Keywords that models pass on to every layer and that rotary, mask or loss have already used."""

EAGER = Advice("attn_implementation='eager'")
"""The advice to use the model's own attention."""
_PACKED = (
    Message("separate packed texts by position_ids that restart at 0"),
    Advice("model(ids, position_ids=position_ids)"),
)
_SPARSE = Message("the model selects its keys itself"), EAGER
REFUSED_KEYWORDS = {
    "cache": (Message("continuous batching uses paged keys"), Advice("model.generate(…)")),
    "cu_seq_lens_q": _PACKED,
    "cu_seq_lens_k": _PACKED,
    "max_length_q": _PACKED,
    "max_length_k": _PACKED,
    "seq_idx": _PACKED,
    "indices": _SPARSE,
    "block_indices": _SPARSE,
}
"""Keywords that are known and refused, with the reason and what to type. Unknown keywords are refused too."""


def register_with_transformers() -> list[str]:
    """Register every named mechanism as an attention implementation of Hugging Face models.

    **Question** What does a model become if relevance is a distance, a kernel or a sparse choice? Its code stays untouched:
    `from_pretrained(…, attn_implementation="rheoscope:metric")` or `model.set_attn_implementation(…)`.

    **Formula** o = mechanism(q, k, v) under the model's own mask (causal, padding, windows, packing, caches).

    **Returns** The keys of the registered implementations.

    **Settings** Keywords that a model passes to attention:

    - `scaling` is the scale of dot products and polynomials. For a distance, 1/sigma² = scaling (scale = scaling/2), so the metric
      is the model's dot product with the bias -scaling |k|²/2 per key. Cosine, additive, Laplace and linear attention keep their
      own temperature.
    - `softcap` caps any score. `s_aux` (sinks) replaces softmax or sets the height of `softmax_sink`. Other normalisers refuse it.
    - `position_bias` and a float mask are added to the scores (-1e4 or less forbids). `linear` refuses them.
    - `sliding_window` and `is_causal` apply only without a mask, because a mask already contains them.
    - `output_attentions` returns the weights, as `eager` does.
    - `dropout` above 0 is refused. Call `model.eval()`, or create the model with `attention_dropout=0`.
    - Any other keyword is refused by name, unless it is known to be used before attention (`position_ids`, `use_cache`, …).

    Learned mechanisms (bilinear, additive, relation, symmetric_relation, metric_map, mahalanobis) store their parameters in each
    attention layer as `rheoscope_attention.<name>` at the first forward pass. They are the same for every model, so run one forward
    pass before creating an optimiser. They are saved with the model. `from_pretrained` creates new layers and reports them as
    unexpected, so run one forward pass and then `model.load_state_dict(load_file("model.safetensors"))`.

    **Laws** `rheoscope:scaled_dot` reproduces the model's logits. No mechanism attends to what the model masks. A call outside the
    domain of a mechanism (`sinkhorn` under a mask, `shaped` with a cache) raises. A second registration changes nothing.

    A model that never uses the interface (BLOOM, GPT-J, DeBERTa, …) cannot change its attention. It is refused if it requests a
    mask. Most others raise an error of their own, and a few ignore the setting silently (DeBERTa, XLNet).

    **Source** transformers' AttentionInterface and AttentionMaskInterface.

    **See also** `mechanisms()` lists the names. `nn.MultiHeadAttention` is a layer of this package.

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
            Message("register_with_transformers needs transformers 5 or later, which is not installed"),
            Advice("", "pip install 'transformers>=5'"),
        ) from error

    for name in ZOO:
        AttentionInterface.register(f"rheoscope:{name}", attention_function(name))
        AttentionMaskInterface.register(f"rheoscope:{name}", mask_function)
    return [f"rheoscope:{name}" for name in ZOO]


def mask_function(*args: Any, **keywords: Any) -> Tensor | None:
    """The mask of sdpa: boolean, or None if `is_causal` is sufficient (see `with_default_mask`)."""
    from transformers.masking_utils import sdpa_mask

    refuse_custom_attention(keywords.get("config"))
    return sdpa_mask(*args, **keywords)


def refuse_custom_attention(config: Any) -> None:
    """Raise for a model with attention of its own. It would take our mask, ignore the mechanism and lose causality silently."""
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
            Message(
                "models of type {model_type!r} have their own attention, which attn_implementation does not change",
                model_type=config.model_type,
            ),
            EAGER,
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
        # Autocast would round the exact parts of a mechanism (biases, distances) to half precision again.
        with torch.autocast(query.device.type, enabled=False):
            return run_mechanism(mechanism, call, key.shape[-2], settings.return_weights)

    return attend


# The keywords


@dataclass(frozen=True, eq=False)
class AttentionSettings:
    """The settings that a model passes to attention in addition to q, k, v and the mask."""

    scaling: float | None
    causal: bool
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    bias: Tensor | None
    return_weights: bool


def parse_keywords(module: nn.Module, keywords: dict[str, Any]) -> AttentionSettings:
    """The keywords that change attention. Raises for an unknown keyword that is not None."""
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
    """A keyword as a plain number. A mechanism does not support a learned number or one per head."""
    if isinstance(value, Tensor) and (value.numel() > 1 or value.requires_grad):
        raise RheoscopeError(
            Message("{name} must be one number, got a tensor of shape {shape}", name=name, shape=tuple(value.shape)),
            EAGER,
        )
    return None if value is None else float(value)


def refuse_dropout(dropout: float | None) -> None:
    if dropout:
        raise RheoscopeError(
            Message(
                "a mechanism does not support dropout of attention weights, got {dropout}; for training, create the model "
                "with attention_dropout=0 (in some families attn_pdrop, attention_probs_dropout_prob or dropout_rate)",
                dropout=dropout,
            ),
            Advice("model.eval()"),
        )


def refuse_unknown(module: nn.Module, remaining: dict[str, Any]) -> None:
    for name, value in remaining.items():
        if value is None or name in HARMLESS_KEYWORDS:
            continue
        reason, advice = REFUSED_KEYWORDS.get(name, (Message("the keyword is unknown"), EAGER))
        raise RheoscopeError(
            Message(
                "{module} passes {name} to attention, which Rheoscope does not support: {reason}",
                module=type(module).__name__,
                name=name,
                reason=reason,
            ),
            advice,
        )


def wants_weights(output_attentions: bool | None) -> bool:
    """Whether the caller collects weights. Some families (GPT-2, OPT) do not pass the request on."""
    from transformers.utils.output_capturing import _active_collector

    collectors = _active_collector.get() or {}
    return bool(output_attentions) or any(name.endswith("attentions") for name in collectors)


# The tensors


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """q, k, v with their mask and additive bias (b, h, m, n)."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    mask: Mask = NoMask()


def attention_call(q: Tensor, k: Tensor, v: Tensor, settings: AttentionSettings) -> AttentionCall:
    """The call with q and k in the dtype of v. Under autocast a normalised query may be wider than its value."""
    if torch.is_autocast_enabled(q.device.type):
        q, k = q.to(v.dtype), k.to(v.dtype)
    return AttentionCall(q, k, v, expand_table(settings.bias, q, k))


def with_mask(call: AttentionCall, mask: Tensor | None, settings: AttentionSettings) -> AttentionCall:
    """The call with the model's mask, which contains causality, padding, windows and caches. None means what sdpa means by it."""
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
    """The mask of a call without one: a single query sees every key, several queries are causal if the layer is.

    Positions count from the first key. Keys beyond the queries are the empty end of a static cache, which is never attended to.
    """
    m, n = call.q.shape[-2], call.k.shape[-2]
    is_causal = settings.causal and m > 1
    if is_causal and m > n:
        raise RheoscopeError(
            Message("causal attention of {m} queries to {n} keys needs a mask", m=m, n=n),
            Advice("attention_mask=mask  # (b, 1, m, n)"),
        )
    if is_causal:
        bias = None if call.bias is None else call.bias[..., :m]
        call = replace(call, k=call.k[..., :m, :], v=call.v[..., :m, :], bias=bias, mask=Causal())
    if settings.window is not None and settings.window < call.k.shape[-2]:
        call = replace(call, mask=call.mask & Window(settings.window))
    return call


def expand_table(table: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """A table expanded over all queries and keys, where a model leaves an axis of 1."""
    if table is None:
        return None
    m, n = q.shape[-2], k.shape[-2]
    rows, columns = table.shape[-2:]
    return table.expand(*table.shape[:-2], m if rows == 1 else rows, n if columns == 1 else columns)


# The mechanism


def mechanism_for(module: nn.Module, name: str, q: Tensor) -> Mechanism:
    """The named mechanism. A learned mechanism takes its parameters from the layer, which creates them at its first call."""
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
        with torch.inference_mode(False):  # parameters created in inference_mode could not be trained
            layer_mechanisms[name] = Attention(name, dim=q.shape[-1]).to(device=q.device, dtype=layer_dtype)
    attention = layer_mechanisms[name]
    assert isinstance(attention, Attention)
    return attention.current_mechanism()


def apply_settings(mechanism: Mechanism, call: AttentionCall, settings: AttentionSettings) -> Mechanism:
    """The mechanism with the scale, cap, sinks, bias and mask of the model."""
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
            Message("this model adds a bias to its scores, but linear attention needs non-negative scores"),
            Advice("attn_implementation='rheoscope:scaled_dot'"),
        )


def run_mechanism(mechanism: Mechanism, call: AttentionCall, n_keys: int, return_weights: bool) -> AttentionResult:
    """Outputs (b, m, h, e) as transformers expects them, and the weights (b, h, m, n) on request."""
    if not return_weights:
        return mechanism.attend(call.q, call.k, call.v).transpose(1, 2).contiguous(), None
    check_call(mechanism, call.q, call.k, call.v)
    out, weights = reference_attention(mechanism, call.q, call.k, call.v)
    weights = pad(weights, (0, n_keys - weights.shape[-1]))
    return out.to(call.v.dtype).transpose(1, 2).contiguous(), weights.to(call.q.dtype)

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
from rheoscope.attention.definition import reference
from rheoscope.attention.mask import Causal, Mask, NoMask, Table, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.modules import Attention
from rheoscope.attention.position import Bias
from rheoscope.attention.score import SoftCap
from rheoscope.attention.zoo import ZOO
from rheoscope.shapes import RheoscopeError

Attended = tuple[Tensor, Tensor | None]

FORBIDDING = -1e4
"""An additive mask this low forbids: transformers writes the dtype's minimum, others -1e4, -1e9 or -inf."""

HARMLESS = frozenset(
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

_PACKED = "packed texts are told apart by position_ids that start again at 0: leave the cu_seq_lens and max_length out"
_SPARSE = "the model picks its keys itself: type attn_implementation='eager'"
REFUSED = {
    "cache": "continuous batching pages its keys: type model.generate(…)",
    "cu_seq_lens_q": _PACKED,
    "cu_seq_lens_k": _PACKED,
    "max_length_q": _PACKED,
    "max_length_k": _PACKED,
    "seq_idx": _PACKED,
    "indices": _SPARSE,
    "block_indices": _SPARSE,
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


def mask_function(*args: Any, **kw: Any) -> Tensor | None:
    """The mask of sdpa: boolean, or None where `is_causal` says it all (see `permitted_keys`)."""
    from transformers.masking_utils import sdpa_mask

    refuse_a_model_of_its_own(kw.get("config"))
    return sdpa_mask(*args, **kw)


def refuse_a_model_of_its_own(config: Any) -> None:
    """A model with attention of its own would take our mask, ignore our mechanism, and lose its causality in silence."""
    modeling = sys.modules.get(type(config).__module__.replace("configuration_", "modeling_"))
    if modeling is None or hasattr(modeling, "ALL_ATTENTION_FUNCTIONS"):
        return
    layers = [x for x in vars(modeling).values() if isinstance(x, type) and issubclass(x, nn.Module)]
    if any("Attention" in layer.__name__ for layer in layers):
        raise RheoscopeError(
            f"models of type {config.model_type!r} have attention of their own that no attn_implementation changes; "
            "type attn_implementation='eager'"
        )


def attention_function(name: str) -> Callable[..., Attended]:
    """The function that transformers calls for `rheoscope:<name>`."""

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **keywords: Any,
    ) -> Attended:
        asked = read(module, keywords)
        call = under_the_mask(lay(query, key, value, asked), attention_mask, asked)
        mechanism = honour(mechanism_for(module, name, call.q), call, asked)
        # Autocast would take the exact parts of a mechanism (biases, distances) down to half precision again.
        with torch.autocast(query.device.type, enabled=False):
            return run(mechanism, call, key.shape[-2], asked.weights)

    return attend


# The keywords


@dataclass(frozen=True, eq=False)
class Asked:
    """What a model asks of attention beside q, k, v and the mask."""

    scaling: float | None
    causal: bool
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    bias: Tensor | None
    weights: bool


def read(module: nn.Module, keywords: dict[str, Any]) -> Asked:
    """The keywords that mean something; one that is not None and not known is refused."""
    rest = dict(keywords)
    dropout, causal = rest.pop("dropout", None), rest.pop("is_causal", None)
    asked = Asked(
        scaling=number("scaling", rest.pop("scaling", None)),
        causal=getattr(module, "is_causal", True) if causal is None else causal,
        window=rest.pop("sliding_window", None),
        softcap=number("softcap", rest.pop("softcap", None)),
        sinks=rest.pop("s_aux", None),
        bias=rest.pop("position_bias", None),
        weights=weights_wanted(rest.pop("output_attentions", None)),
    )
    refuse_dropout(dropout)
    refuse_unknown(module, rest)
    return asked


def number(name: str, value: Any) -> float | None:
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


def refuse_unknown(module: nn.Module, rest: dict[str, Any]) -> None:
    for name, value in rest.items():
        if value is None or name in HARMLESS:
            continue
        instead = REFUSED.get(name, f"leave {name}= out, or type attn_implementation='eager'")
        raise RheoscopeError(
            f"{type(module).__name__} passes {name} to attention, which rheoscope does not honour; {instead}"
        )


def weights_wanted(output_attentions: bool | None) -> bool:
    """Whether the caller of the model collects weights: some families (GPT-2, OPT) do not pass the request on."""
    from transformers.utils.output_capturing import _active_collector

    collected = _active_collector.get() or {}
    return bool(output_attentions) or any(name.endswith("attentions") for name in collected)


# The tensors


@dataclass(frozen=True, eq=False)
class Call:
    """q, k, v with the mask and the additive bias (b, h, m, n) that belong to them."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    mask: Mask = NoMask()


def lay(q: Tensor, k: Tensor, v: Tensor, asked: Asked) -> Call:
    """Under autocast a normed query may be wider than its value; torch's own kernel would take all of them down too."""
    if torch.is_autocast_enabled(q.device.type):
        q, k = q.to(v.dtype), k.to(v.dtype)
    return Call(q, k, v, whole(asked.bias, q, k))


def under_the_mask(call: Call, mask: Tensor | None, asked: Asked) -> Call:
    """A mask from the model carries everything: causality, padding, windows, caches. None says what sdpa means by it."""
    if mask is None:
        return without_a_mask(call, asked)
    table = whole(mask, call.q, call.k)
    assert table is not None
    if table.dtype is torch.bool:
        return replace(call, mask=Table(table))
    forbidden = table <= FORBIDDING
    added = table.masked_fill(forbidden, 0)
    if bool(added.any()) or added.requires_grad:
        call = replace(call, bias=added if call.bias is None else call.bias + added)
    return replace(call, mask=Table(~forbidden))


def without_a_mask(call: Call, asked: Asked) -> Call:
    """One query sees every key; more queries are causal if the layer is, counted from the first key.

    With more keys than queries the further keys are the empty end of a static cache, which nothing may see.
    """
    m, n = call.q.shape[-2], call.k.shape[-2]
    causal = asked.causal and m > 1
    if causal and m > n:
        raise RheoscopeError(
            f"causal attention of {m} queries to {n} keys needs a mask; type attention_mask=<(b, 1, m, n)>"
        )
    if causal:
        bias = None if call.bias is None else call.bias[..., :m]
        call = replace(call, k=call.k[..., :m, :], v=call.v[..., :m, :], bias=bias, mask=Causal())
    if asked.window is not None and asked.window < call.k.shape[-2]:
        call = replace(call, mask=call.mask & Window(asked.window))
    return call


def whole(table: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
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
    held = module.rheoscope_attention
    assert isinstance(held, nn.ModuleDict)
    if name not in held:
        beside = next((x.dtype for x in module.parameters() if x.is_floating_point()), q.dtype)
        with torch.inference_mode(False):  # parameters born inside inference_mode could never be trained
            held[name] = Attention(name, dim=q.shape[-1]).to(device=q.device, dtype=beside)
    attention = held[name]
    assert isinstance(attention, Attention)
    return attention.current()


def honour(mechanism: Mechanism, call: Call, asked: Asked) -> Mechanism:
    """The mechanism as the model asks for it: its scale, cap, sinks, bias and mask."""
    score = mechanism.score.scaled(call.q.shape[-1] ** -0.5 if asked.scaling is None else asked.scaling)
    if asked.softcap is not None:
        score = SoftCap(score, asked.softcap)
    mechanism = replace(mechanism, score=score)
    if asked.sinks is not None:
        mechanism = replace(mechanism, normaliser=mechanism.normaliser.with_sink(asked.sinks.flatten()))
    if call.bias is not None:
        refuse_a_bias(mechanism)
        mechanism = replace(mechanism, position=Bias(call.bias))
    return mechanism.under(call.mask)


def refuse_a_bias(mechanism: Mechanism) -> None:
    if mechanism.normaliser.divides_by_sum:
        raise RheoscopeError(
            "this model adds a bias to its scores, and linear attention divides by a sum of scores that must not be "
            "negative; type attn_implementation='rheoscope:scaled_dot'"
        )


def run(mechanism: Mechanism, call: Call, n: int, weights_too: bool) -> Attended:
    """Outputs as transformers wants them (b, m, h, e), and the weights (b, h, m, n) where they are asked for."""
    if not weights_too:
        return mechanism.attend(call.q, call.k, call.v).transpose(1, 2).contiguous(), None
    check_call(mechanism, call.q, call.k, call.v)
    out, weights = reference(mechanism, call.q, call.k, call.v)
    weights = pad(weights, (0, n - weights.shape[-1]))
    return out.to(call.v.dtype).transpose(1, 2).contiguous(), weights.to(call.q.dtype)

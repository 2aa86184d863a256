"""Softmax attention to earlier tokens only, as causal attention of shifted queries, on any fused causal kernel.

    query i >= 1 sees the keys j < i      =      causal attention of the query at position i - 1
    the first token sees itself           =      its own value

The query of the first token takes the free last position, so the number of rows stays that of plain causal attention. Its
output there is dropped. A mask table would exclude the fused kernels.
"""

from functools import partial

import torch
from torch import Tensor

from rheoscope.attention.definition import Definition, repeat_kv_heads
from rheoscope.attention.lower.lowering import AttentionFunction, LoweredCall, first_accepted, unless_compiling
from rheoscope.attention.lower.shaped import SOFTMAX_LOWERINGS
from rheoscope.attention.mask import Causal
from rheoscope.attention.parameters import with_fields
from rheoscope.messages.message import Message

CAUSAL = Causal()
"""Created once, because creating a part inside a forward pass breaks the graph of `torch.compile`."""


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    fused = mechanism.normaliser.fused_softmax
    if not mechanism.mask.is_strictly_causal or q.shape[-2] != k.shape[-2]:
        return unless_compiling(lambda: Message("the mask is not that of earlier tokens only"))
    if fused is None or not fused.is_plain or not mechanism.position.is_trivial:
        return unless_compiling(lambda: Message("shifted queries need a plain softmax without a position of its own"))
    name, lowered, _ = first_accepted(SOFTMAX_LOWERINGS, with_causal_mask(mechanism), q, k, v)
    reason = unless_compiling(
        lambda: Message("earlier tokens only, as causal attention of shifted queries ({lowering})", lowering=name)
    )
    return LoweredCall(reason, partial(run, run_causal=lowered.run))


def with_causal_mask(mechanism: Definition) -> Definition:
    return with_fields(mechanism, mask=CAUSAL)


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor, run_causal: AttentionFunction) -> Tensor:
    """The value of the first token, and causal attention of the other queries one position earlier."""
    shifted_queries = torch.cat([q[..., 1:, :], q[..., :1, :]], -2)
    out = run_causal(with_causal_mask(mechanism), shifted_queries, k, v)
    first_value = mechanism.value(repeat_kv_heads(v[..., :1, :], q.shape[1])).to(out.dtype)
    return torch.cat([first_value, out[..., :-1, :]], -2)

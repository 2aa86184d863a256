"""Shaped attention as a sum of three that are faster: o = alpha v_i + beta attention_i - gamma (mean of permitted v)."""

from functools import partial

from torch import Tensor

from rheoscope.attention.definition import Definition, repeat_kv_heads
from rheoscope.attention.lower import blocks, cudnn, flex, reference_lowering, sdpa
from rheoscope.attention.lower.lowering import AttentionFunction, LoweredCall, first_accepted
from rheoscope.attention.lower.running_mean import subtract_past_mean
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.parameters import with_fields
from rheoscope.attention.position import NoPosition
from rheoscope.attention.score import Gram

SOFTMAX_LOWERINGS = {
    "cudnn": cudnn.try_lower,
    "flex": flex.try_lower,
    "sdpa": sdpa.try_lower,
    "blocks": blocks.try_lower,
    "reference": reference_lowering.try_lower,
}
"""What softmax attention may run on, in the order that `choose` has."""
SOFTMAX_NORMALISER, ZERO_SCORE, NO_POSITION = Softmax(), Gram(scale=0.0), NoPosition()
"""Parts made here once: a part with a default of its own, made inside a forward, breaks the graph of `torch.compile`."""


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    if mechanism.normaliser.mixture_coefficients is None:
        return f"its normaliser is {type(mechanism.normaliser).__name__}, not alpha I + beta A - gamma C"
    if not mechanism.mask.allows_self:
        return "the mask may forbid a token to itself, which the identity part would miss"
    run_softmax, run_uniform = (
        first_accepted(SOFTMAX_LOWERINGS, make_part(mechanism), q, k, v)[1].run
        for make_part in (softmax_mechanism, uniform_mechanism)
    )
    reason = "a sum of the values, softmax attention and a mean, each on its own fastest lowering"
    return LoweredCall(reason, partial(run, run_softmax=run_softmax, run_uniform=run_uniform))


def softmax_mechanism(mechanism: Definition) -> Definition:
    return with_fields(mechanism, normaliser=SOFTMAX_NORMALISER)


def uniform_mechanism(mechanism: Definition) -> Definition:
    """Softmax of scores that are all the same."""
    return with_fields(mechanism, score=ZERO_SCORE, position=NO_POSITION, normaliser=SOFTMAX_NORMALISER)


def run(
    mechanism: Definition,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    run_softmax: AttentionFunction,
    run_uniform: AttentionFunction,
) -> Tensor:
    """The mean of permitted values is the attention of equal scores, or a running mean where the mask is the past."""
    assert mechanism.normaliser.mixture_coefficients is not None, "offer() has seen it"
    alpha, beta, gamma = mechanism.normaliser.mixture_coefficients
    values = mechanism.value.map_in_float32(repeat_kv_heads(v, q.shape[1]))
    attended = run_softmax(softmax_mechanism(mechanism), q, k, v)
    if mechanism.mask.is_causal:
        return subtract_past_mean(values, attended if beta == 1 else beta * attended, alpha, gamma)
    mean = (
        values.mean(-2, keepdim=True)
        if mechanism.mask.allows_all
        else run_uniform(uniform_mechanism(mechanism), q, k, v)
    )
    return alpha * values + beta * attended - gamma * mean

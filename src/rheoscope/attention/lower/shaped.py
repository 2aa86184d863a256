"""Shaped attention as a sum of three fast parts: o = alpha v_i + beta attention_i - gamma (mean of allowed v)."""

from functools import partial

from torch import Tensor

from rheoscope.attention.definition import Definition, repeat_kv_heads
from rheoscope.attention.lower import blocks, cudnn, flex, reference_lowering, sdpa
from rheoscope.attention.lower.lowering import AttentionFunction, LoweredCall, first_accepted, unless_compiling
from rheoscope.attention.lower.running_mean import subtract_past_mean
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.parameters import with_fields
from rheoscope.attention.position import NoPosition
from rheoscope.attention.score import Gram
from rheoscope.messages.message import Message

SOFTMAX_LOWERINGS = {
    "cudnn": cudnn.try_lower,
    "flex": flex.try_lower,
    "sdpa": sdpa.try_lower,
    "blocks": blocks.try_lower,
    "reference": reference_lowering.try_lower,
}
"""The lowerings for softmax attention, in the order of `choice.LOWERINGS`."""
SOFTMAX_NORMALISER, ZERO_SCORE, NO_POSITION = Softmax(), Gram(scale=0.0), NoPosition()
"""Parts created once, because creating a part inside a forward pass breaks the graph of `torch.compile`."""


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    if mechanism.normaliser.mixture_coefficients is None:
        return unless_compiling(
            lambda: Message(
                "the normaliser is {normaliser}, not alpha I + beta A - gamma C",
                normaliser=type(mechanism.normaliser).__name__,
            )
        )
    if not mechanism.mask.allows_self:
        return unless_compiling(
            lambda: Message("the mask may forbid a token to attend to itself, which the identity part ignores")
        )
    run_softmax, run_uniform = (
        first_accepted(SOFTMAX_LOWERINGS, make_part(mechanism), q, k, v)[1].run
        for make_part in (softmax_mechanism, uniform_mechanism)
    )
    reason = unless_compiling(
        lambda: Message("a sum of the values, softmax attention and a mean, each on its fastest lowering")
    )
    return LoweredCall(reason, partial(run, run_softmax=run_softmax, run_uniform=run_uniform))


def softmax_mechanism(mechanism: Definition) -> Definition:
    return with_fields(mechanism, normaliser=SOFTMAX_NORMALISER)


def uniform_mechanism(mechanism: Definition) -> Definition:
    """Softmax of equal scores, which averages the allowed values."""
    return with_fields(mechanism, score=ZERO_SCORE, position=NO_POSITION, normaliser=SOFTMAX_NORMALISER)


def run(
    mechanism: Definition,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    run_softmax: AttentionFunction,
    run_uniform: AttentionFunction,
) -> Tensor:
    """The sum of the three parts. With a causal mask, the mean of allowed values is a running mean."""
    assert mechanism.normaliser.mixture_coefficients is not None, "try_lower has checked it"
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

"""Shaped attention as a sum of three that are faster: o = alpha v_i + beta attention_i - gamma (mean of permitted v)."""

from functools import partial

from torch import Tensor

from rheoscope.attention.definition import Definition, for_every_head
from rheoscope.attention.lower import blocks, cudnn, flex, reference_lowering, sdpa
from rheoscope.attention.lower.lowering import Offer, Run, first
from rheoscope.attention.lower.running_mean import less_past_mean
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.parameters import with_parts
from rheoscope.attention.position import NoPosition
from rheoscope.attention.score import Gram

SOFTMAX = {
    "cudnn": cudnn.offer,
    "flex": flex.offer,
    "sdpa": sdpa.offer,
    "blocks": blocks.offer,
    "reference": reference_lowering.offer,
}
"""What softmax attention may run on, in the order that `choose` has."""
SOFT, EVEN, NOWHERE = Softmax(), Gram(scale=0.0), NoPosition()
"""Parts made here once: a part with a default of its own, made inside a forward, breaks the graph of `torch.compile`."""


def offer(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Offer | str:
    if mechanism.normaliser.mixture is None:
        return f"its normaliser is {type(mechanism.normaliser).__name__}, not alpha I + beta A - gamma C"
    if not mechanism.mask.sees_itself:
        return "the mask may forbid a token to itself, which the identity part would miss"
    attention, even = (first(SOFTMAX, part(mechanism), q, k, v)[1].run for part in (softened, evened))
    why = "a sum of the values, softmax attention and a mean, each on its own fastest lowering"
    return Offer(why, partial(run, attention=attention, even=even))


def softened(mechanism: Definition) -> Definition:
    return with_parts(mechanism, normaliser=SOFT)


def evened(mechanism: Definition) -> Definition:
    """Softmax of scores that are all the same."""
    return with_parts(mechanism, score=EVEN, position=NOWHERE, normaliser=SOFT)


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor, attention: Run, even: Run) -> Tensor:
    """The mean of permitted values is the attention of equal scores, or a running mean where the mask is the past."""
    assert mechanism.normaliser.mixture is not None, "offer() has seen it"
    alpha, beta, gamma = mechanism.normaliser.mixture
    values = mechanism.value.rounded(for_every_head(v, q.shape[1]))
    attended = attention(softened(mechanism), q, k, v)
    if mechanism.mask.is_causal:
        return less_past_mean(values, attended if beta == 1 else beta * attended, alpha, gamma)
    mean = values.mean(-2, keepdim=True) if mechanism.mask.forbids_nothing else even(evened(mechanism), q, k, v)
    return alpha * values + beta * attended - gamma * mean

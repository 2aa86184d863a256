"""The backward pass of attention in closed form, and the reversed-attention map R.

With G = dL/dO and values g(V):

    dL/dg(V) = A^T G,   D = dL/dA = G g(V)^T,   R = dL/dS = nu'(S)[D],   dL/dQ, dL/dK = f'(Q, K)[R]

For softmax R = A (D - rowsum(A D)); its rows sum to 0, and it is 0 where the mask forbids. R says how the loss wants each
score to change: the "reversed attention" of Katz & Wolf (arXiv:2412.17019, whose code keeps the scale inside R).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rheoscope.attention.border import check_call, check_finite
from rheoscope.attention.definition import Masked, for_every_head, positions, scores
from rheoscope.attention.feature import added, under
from rheoscope.attention.mechanism import Mechanism
from rheoscope.shapes import RheoscopeError, Scores


@dataclass(frozen=True, eq=False)
class Gradients:
    """dL/dq, dL/dk, dL/dv as the inputs are shaped, R = dL/dS (b, h, m, n), and dL/d(tensor) of the mechanism by path."""

    q: Tensor
    k: Tensor
    v: Tensor
    scores: Scores
    tensors: dict[str, Tensor]


def attention_gradients(
    mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, g: Tensor, mask: Masked = None
) -> Gradients:
    """Every gradient of attention from the gradient g of its output, by formula rather than by autograd.

    **Answers** "how does the loss want each score, query, key and value to move?"

    **Formula** D = g V^T, R = nu'(S)[D], then the score's own derivative; dL/dV = A^T g.

    **Shapes** g is (b, h, m, e) as the output; the result has the shapes of q, k, v, and R is (b, h, m, n).

    **Laws** equal to autograd for every differentiable mechanism; rows of R sum to 0 under softmax.

    **Source** Katz & Wolf, arXiv:2412.17019.

    **Siblings** autograd gives q, k, v without R; `weight_statistics` looks at the forward weights.

    >>> import torch, rheoscope as rs
    >>> q = torch.randn(1, 1, 3, 4)
    >>> r = rs.attention_gradients(rs.mechanism("metric"), q, q, q, torch.ones_like(q)).scores
    >>> bool(r.sum(-1).abs().max() < 1e-5)
    True
    """
    mechanism = mechanism.under(mask)
    check_finite(q=q, k=k, v=v, g=g)
    check_call(mechanism, q, k, v)
    _check_gradient(mechanism, q, v, g)
    return pull(mechanism, q, k, v, g)


def pull(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Gradients:
    """The chain of derivatives, last part first; float32 or better inside, grouped heads summed at the end."""
    exact = torch.promote_types(q.dtype, torch.float32)
    i, j = positions(q.shape[-2], k.shape[-2], q.device)
    rows, keys, values = q.to(exact), for_every_head(k.to(exact), q.shape[1]), for_every_head(v.to(exact), q.shape[1])
    at_q, at_k = mechanism.position.place(rows, i), mechanism.position.place(keys, j)
    s = scores(mechanism, at_q, at_k, i, j)
    a = mechanism.normaliser(s)
    r, of_normaliser = mechanism.normaliser.pull(s, a, g.to(exact) @ mechanism.value(values).mT)
    dv, of_value = mechanism.value.pull(values, a.mT @ g.to(exact))
    dq, dk, of_score = mechanism.score.pull(at_q, at_k, r)
    dq, from_q = mechanism.position.pull(i, dq)
    dk, from_k = mechanism.position.pull(j, dk)
    of_position = added(added(from_q, from_k), mechanism.position.pull_bias(i, j, r))
    tensors = under("score", of_score) | under("normaliser", of_normaliser)
    tensors |= under("value", of_value) | under("position", of_position)
    return Gradients(dq.to(q), _per_group(dk, k), _per_group(dv, v), r, tensors)


def reversed_scores(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Scores:
    """R = dL/dS alone, from the gradient g of the output: half the work of `pull`, for heads inside a model."""
    exact = torch.promote_types(q.dtype, torch.float32)
    i, j = positions(q.shape[-2], k.shape[-2], q.device)
    rows, keys, values = q.to(exact), for_every_head(k.to(exact), q.shape[1]), for_every_head(v.to(exact), q.shape[1])
    s = scores(mechanism, mechanism.position.place(rows, i), mechanism.position.place(keys, j), i, j)
    return mechanism.normaliser.pull(s, mechanism.normaliser(s), g.to(exact) @ mechanism.value(values).mT)[0]


def _per_group(gradient: Tensor, x: Tensor) -> Tensor:
    """Query heads that share a key/value head add their gradients."""
    return gradient.unflatten(1, (x.shape[1], -1)).sum(2).to(x)


def _check_gradient(mechanism: Mechanism, q: Tensor, v: Tensor, g: Tensor) -> None:
    if not mechanism.domain.differentiable:
        raise RheoscopeError(
            f"{type(mechanism.normaliser).__name__} has no gradient (its weights jump); type mechanism('scaled_dot', scale=…)"
        )
    one = for_every_head(v[:, :, :1], q.shape[1]).to(torch.promote_types(v.dtype, torch.float32))
    expected, came = (
        (*q.shape[:-1], mechanism.value(one).shape[-1]),
        tuple(g.shape) if isinstance(g, Tensor) else type(g).__name__,
    )
    if came != expected:
        raise RheoscopeError(f"g must have the shape of the output {expected}, got {came}; type torch.ones{expected}")

"""The backward pass of attention in closed form, and the reversed-attention map R.

With G = dL/dO and values g(V):

    dL/dg(V) = A^T G,   D = dL/dA = G g(V)^T,   R = dL/dS = nu'(S)[D],   dL/dQ, dL/dK = f'(Q, K)[R]

For softmax R = A (D - rowsum(A D)); its rows sum to 0, and it is 0 where the mask forbids. R says how the loss wants each
score to change: the "reversed attention" of Katz & Wolf (arXiv:2412.17019, whose code keeps the scale inside R).

In self-attention one X is behind all three, Q = X W_Q, K = X W_K, V = X W_V, and its gradient is their sum over heads:

    dL/dX = sum_h dL/dQ_h W_Q^T + dL/dK_h W_K^T + dL/dV_h W_V^T
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rheoscope.attention.call_checks import check_call, check_finite
from rheoscope.attention.definition import Masked, for_every_head, positions, scores
from rheoscope.attention.feature_maps import added, under
from rheoscope.attention.mechanism import Mechanism
from rheoscope.shapes import KeyAt, RheoscopeError, RowAt, Scores


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


@dataclass(frozen=True, eq=False)
class InputGradients:
    """dL/dX of self-attention: in three parts that add up to `x`, the gradients of the three matrices, and those inside."""

    through_queries: Tensor
    through_keys: Tensor
    through_values: Tensor
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    inside: Gradients

    @property
    def x(self) -> Tensor:
        """dL/dX, as X is shaped."""
        return self.through_queries + self.through_keys + self.through_values


def self_attention_gradients(
    mechanism: Mechanism, x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, g: Tensor, mask: Masked = None
) -> InputGradients:
    """The gradient of the tokens themselves, by formula: a token is moved as a query, as a key and as a value.

    **Answers** "how does the loss want each token to move, and in which of its three roles?"

    **Formula** dL/dX = sum_h dL/dQ_h W_Q^T + dL/dK_h W_K^T + dL/dV_h W_V^T; dL/dW_Q = X^T dL/dQ, and so on.

    **Shapes** x (b, n, d); W_Q (h, d, k), W_K (g, d, k), W_V (g, d, e), where g divides h; g as the output (b, h, n, e).
    The parts are (b, n, d), the gradients of matrices as the matrices; `inside` has q, k, v, R.

    **Laws** equal to autograd through X under every mask and position; the three parts sum to `x`.

    **Siblings** `attention_gradients` starts from q, k, v.

    >>> import torch, rheoscope as rs
    >>> x, W = torch.randn(1, 3, 4), torch.randn(2, 4, 4)
    >>> rs.self_attention_gradients(rs.mechanism("metric"), x, W, W, W, torch.ones(1, 2, 3, 4), mask="causal").x.shape
    torch.Size([1, 3, 4])
    """
    _check_projections(x, W_Q, W_K, W_V)
    rows = x[:, None]
    inside = attention_gradients(mechanism, rows @ W_Q, rows @ W_K, rows @ W_V, g, mask)
    roles = ((inside.q, W_Q), (inside.k, W_K), (inside.v, W_V))
    by_query, by_key, by_value = ((dy @ W.mT).sum(1) for dy, W in roles)
    of_query, of_key, of_value = ((rows.mT @ dy).sum(0) for dy, _ in roles)
    return InputGradients(by_query, by_key, by_value, of_query, of_key, of_value, inside)


def _check_projections(x: Tensor, *matrices: Tensor) -> None:
    fits = x.ndim == 3 and all(W.ndim == 3 and W.shape[1] == x.shape[-1] for W in matrices)
    if not fits:
        came = ", ".join(str(tuple(W.shape)) for W in matrices)
        raise RheoscopeError(
            f"self-attention needs x (batch, tokens, d) and W_Q, W_K, W_V (heads, d, width), got x {tuple(x.shape)} and {came}; "
            "for one unbatched head type x[None], W_Q[None], W_K[None], W_V[None]"
        )


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
    at_q, at_k = mechanism.position.place(rows, i), mechanism.position.place(keys, j)
    return reversed_rows(mechanism, at_q, at_k, mechanism.value(values), g.to(exact), i, j)


def reversed_rows(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, g: Tensor, i: RowAt, j: KeyAt) -> Scores:
    """R of placed queries at i over placed keys at j with mapped values: complete rows where weights are normalised by rows."""
    s, fused = scores(mechanism, q, k, i, j), mechanism.normaliser.fused
    full = (
        fused is not None and fused.bare and mechanism.mask.sees_itself
    )  # no row is empty, which softmax would look for
    return mechanism.normaliser.pull(s, s.softmax(-1) if full else mechanism.normaliser(s), g @ v.mT)[0]


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

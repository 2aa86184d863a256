"""The backward pass of attention in closed form, including the reversed-attention map R.

With G = dL/dO and values g(V):

    dL/dg(V) = A^T G,   D = dL/dA = G g(V)^T,   R = dL/dS = nu'(S)[D],   dL/dQ, dL/dK = f'(Q, K)[R]

For softmax R = A (D - rowsum(A D)); its rows sum to 0, and it is 0 at masked pairs. R is the gradient of the loss with
respect to each score, called "reversed attention" by Katz & Wolf (arXiv:2412.17019). Their code keeps the scale inside R.

In self-attention Q = X W_Q, K = X W_K and V = X W_V come from the same X, so its gradient is a sum over heads:

    dL/dX = sum_h dL/dQ_h W_Q^T + dL/dK_h W_K^T + dL/dV_h W_V^T
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rheoscope.attention.call_checks import check_call, check_finite
from rheoscope.attention.definition import MaskLike, masked_scores, query_key_positions, repeat_kv_heads
from rheoscope.attention.feature_maps import add_gradients, prefix_keys
from rheoscope.attention.mechanism import Mechanism
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import KeyPositions, QueryPositions, RheoscopeError, Scores


@dataclass(frozen=True, eq=False)
class Gradients:
    """dL/dq, dL/dk, dL/dv in the shapes of q, k, v; R = dL/dS (b, h, m, n); gradients of the mechanism's tensors by path."""

    q: Tensor
    k: Tensor
    v: Tensor
    scores: Scores
    tensors: dict[str, Tensor]


def attention_gradients(
    mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, g: Tensor, mask: MaskLike = None
) -> Gradients:
    """All gradients of attention in closed form, from the gradient g of its output.

    **Question** How does the loss change with each score, query, key and value?

    **Formula** D = g V^T, R = nu'(S)[D], then the derivative of the score; dL/dV = A^T g.

    **Returns** Gradients in the shapes of q, k and v, and R (b, h, m, n). g has the shape of the output (b, h, m, e).

    **Laws** The gradients equal autograd for every differentiable mechanism. Rows of R sum to 0 under softmax.

    **Source** Katz & Wolf, arXiv:2412.17019.

    **See also** Autograd returns the gradients of q, k and v without R; `weight_statistics` summarises the forward weights.

    >>> import torch, rheoscope as rs
    >>> q = torch.randn(1, 1, 3, 4)
    >>> r = rs.attention_gradients(rs.mechanism("metric"), q, q, q, torch.ones_like(q)).scores
    >>> bool(r.sum(-1).abs().max() < 1e-5)
    True
    """
    mechanism = mechanism.with_mask(mask)
    check_finite(q=q, k=k, v=v, g=g)
    check_call(mechanism, q, k, v)
    _check_gradient(mechanism, q, v, g)
    return closed_form_gradients(mechanism, q, k, v, g)


@dataclass(frozen=True, eq=False)
class InputGradients:
    """dL/dX of self-attention as three terms that sum to `x`, the gradients of W_Q, W_K, W_V, and those of q, k, v."""

    through_queries: Tensor
    through_keys: Tensor
    through_values: Tensor
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    qkv_gradients: Gradients

    @property
    def x(self) -> Tensor:
        """dL/dX, in the shape of X."""
        return self.through_queries + self.through_keys + self.through_values


def self_attention_gradients(
    mechanism: Mechanism, x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, g: Tensor, mask: MaskLike = None
) -> InputGradients:
    """The gradient of the input tokens in closed form, split by the role of a token as query, key and value.

    **Question** How does the loss change with each token, and through which of its three roles?

    **Formula** dL/dX = sum_h dL/dQ_h W_Q^T + dL/dK_h W_K^T + dL/dV_h W_V^T; dL/dW_Q = X^T dL/dQ, and so on.

    **Returns** Three terms (b, n, d), the gradients of W_Q, W_K and W_V in their shapes, and `qkv_gradients` with the
    gradients of q, k, v and R. The inputs are x (b, n, d), W_Q (h, d, k), W_K (g, d, k) and W_V (g, d, e), where g divides
    h, and the gradient g of the output (b, h, n, e).

    **Laws** The result equals autograd through X under every mask and position. The three terms sum to `x`.

    **See also** `attention_gradients` starts from q, k, v.

    >>> import torch, rheoscope as rs
    >>> x, W = torch.randn(1, 3, 4), torch.randn(2, 4, 4)
    >>> rs.self_attention_gradients(rs.mechanism("metric"), x, W, W, W, torch.ones(1, 2, 3, 4), mask="causal").x.shape
    torch.Size([1, 3, 4])
    """
    _check_projections(x, W_Q, W_K, W_V)
    rows = x[:, None]
    qkv_gradients = attention_gradients(mechanism, rows @ W_Q, rows @ W_K, rows @ W_V, g, mask)
    projections = ((qkv_gradients.q, W_Q), (qkv_gradients.k, W_K), (qkv_gradients.v, W_V))
    through_queries, through_keys, through_values = ((dy @ W.mT).sum(1) for dy, W in projections)
    grad_W_Q, grad_W_K, grad_W_V = ((rows.mT @ dy).sum(0) for dy, _ in projections)
    return InputGradients(through_queries, through_keys, through_values, grad_W_Q, grad_W_K, grad_W_V, qkv_gradients)


def _check_projections(x: Tensor, *matrices: Tensor) -> None:
    fits = x.ndim == 3 and all(W.ndim == 3 and W.shape[1] == x.shape[-1] for W in matrices)
    if not fits:
        raise RheoscopeError(
            Message(
                "self-attention needs x (batch, tokens, d) and W_Q, W_K, W_V (heads, d, width), got x {x} and {matrices}",
                x=str(tuple(x.shape)),
                matrices=", ".join(str(tuple(W.shape)) for W in matrices),
            ),
            Advice("x[None], W_Q[None], W_K[None], W_V[None]"),
        )


def closed_form_gradients(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Gradients:
    """The chain rule from the output back, in float32 or better; gradients of grouped heads are summed at the end."""
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
    queries, keys, values = (
        q.to(compute_dtype),
        repeat_kv_heads(k.to(compute_dtype), q.shape[1]),
        repeat_kv_heads(v.to(compute_dtype), q.shape[1]),
    )
    encoded_q, encoded_k = mechanism.position.encode(queries, i), mechanism.position.encode(keys, j)
    s = masked_scores(mechanism, encoded_q, encoded_k, i, j)
    a = mechanism.normaliser(s)
    r, normaliser_grads = mechanism.normaliser.pullback(s, a, g.to(compute_dtype) @ mechanism.value(values).mT)
    dv, value_grads = mechanism.value.pullback(values, a.mT @ g.to(compute_dtype))
    dq, dk, score_grads = mechanism.score.pullback(encoded_q, encoded_k, r)
    dq, position_grads_q = mechanism.position.pullback(i, dq)
    dk, position_grads_k = mechanism.position.pullback(j, dk)
    position_grads = add_gradients(
        add_gradients(position_grads_q, position_grads_k), mechanism.position.pullback_bias(i, j, r)
    )
    tensor_grads = prefix_keys("score", score_grads) | prefix_keys("normaliser", normaliser_grads)
    tensor_grads |= prefix_keys("value", value_grads) | prefix_keys("position", position_grads)
    return Gradients(dq.to(q), _sum_per_kv_head(dk, k), _sum_per_kv_head(dv, v), r, tensor_grads)


def score_gradients(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Scores:
    """Only R = dL/dS, from the gradient g of the output: half the work of `closed_form_gradients`."""
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
    queries, keys, values = (
        q.to(compute_dtype),
        repeat_kv_heads(k.to(compute_dtype), q.shape[1]),
        repeat_kv_heads(v.to(compute_dtype), q.shape[1]),
    )
    encoded_q, encoded_k = mechanism.position.encode(queries, i), mechanism.position.encode(keys, j)
    return score_gradient_rows(mechanism, encoded_q, encoded_k, mechanism.value(values), g.to(compute_dtype), i, j)


def score_gradient_rows(
    mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, g: Tensor, i: QueryPositions, j: KeyPositions
) -> Scores:
    """R of position-encoded queries at i and keys at j with mapped values; rows are complete for row-wise normalisers."""
    s, fused_softmax = masked_scores(mechanism, q, k, i, j), mechanism.normaliser.fused_softmax
    # torch's softmax suffices: without empty rows there is nothing to zero
    no_empty_rows = fused_softmax is not None and fused_softmax.is_plain and mechanism.mask.allows_self
    return mechanism.normaliser.pullback(s, s.softmax(-1) if no_empty_rows else mechanism.normaliser(s), g @ v.mT)[0]


def _sum_per_kv_head(gradient: Tensor, x: Tensor) -> Tensor:
    """Sum the gradients of the query heads that share a key/value head."""
    return gradient.unflatten(1, (x.shape[1], -1)).sum(2).to(x)


def _check_gradient(mechanism: Mechanism, q: Tensor, v: Tensor, g: Tensor) -> None:
    if not mechanism.domain.is_differentiable:
        raise RheoscopeError(
            Message(
                "{normaliser} has no gradient because its weights are piecewise constant",
                normaliser=type(mechanism.normaliser).__name__,
            ),
            Advice("rs.mechanism('scaled_dot')"),
        )
    first_value = repeat_kv_heads(v[:, :, :1], q.shape[1]).to(torch.promote_types(v.dtype, torch.float32))
    expected, actual = (
        (*q.shape[:-1], mechanism.value(first_value).shape[-1]),
        tuple(g.shape) if isinstance(g, Tensor) else type(g).__name__,
    )
    if actual != expected:
        raise RheoscopeError(
            Message(
                "g must have the shape of the output {expected}, got {received}",
                expected=str(expected),
                received=str(actual),
            ),
            Advice(f"torch.ones{expected}"),
        )

"""A layer as a map T of clouds, the same map with every token alone, and the directions that T preserves."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import (
    Definition,
    masked_scores,
    query_key_positions,
    reference_attention,
    repeat_kv_heads,
)
from rheoscope.messages.advice import analyse
from rheoscope.messages.message import Message
from rheoscope.shapes import Outputs, RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.masked_means import zero_invalid_rows
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

Cloud = Float[Tensor, "n d"]
Map = Callable[[Tensor], Tensor]
Attention = Callable[[Definition, Tensor, Tensor, Tensor], Outputs]


@dataclass(frozen=True, eq=False)
class LayerMap:
    """The map T of a layer: T(x) = x + attention + MLP, of one cloud or of several.

    `own` has the values of T, but the derivative of each token by itself only, because all other tokens count as constant. It
    is None if a token can affect an earlier one. `preserves_constant` and `preserves_scale` state the symmetries of the norm:
    what the layer adds does not change if a constant is added to every coordinate of a token, or if a token is rescaled.
    """

    apply: Map
    own: Map | None = None
    preserves_constant: bool = False
    preserves_scale: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        return self.apply(x)

    def without_symmetries(self, x: Cloud) -> Map:
        """The projection, token by token, that removes the directions of the symmetries at a cloud.

        Under LayerNorm the constant vector is an eigenvector of ∂T/∂X with eigenvalue 1. Under any norm before attention and MLP,
        the direction of the token has an eigenvalue close to 1. Neither says anything about the layer.
        """
        preserved = [torch.ones_like(x)] if self.preserves_constant else []
        preserved += [x] if self.preserves_scale else []
        if not preserved:
            return lambda v: v
        basis = torch.linalg.qr(torch.stack(preserved, -1).double()).Q  # n, d, directions

        def project(v: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
            directions = basis.to(v.dtype)
            return v - torch.einsum("ndr,...nd,ner->...ne", directions, v, directions)

        return project


def layer_map(trace: Trace, layer: int) -> LayerMap:
    """The map T of a layer, built from its heads and its MLP. Raises if it differs from the model's own layer."""
    heads = trace.view.heads_of(layer)
    T = _map_with_attention(trace, layer, lambda *arguments: reference_attention(*arguments)[0])
    end_indices = [*trace.input_steps[1:], len(trace.steps) - 1]
    x, expected_points = trace.layer_input(layer), trace.points[end_indices[layer]]
    _check_form(layer, T(x), expected_points, trace.view.dtype, bool(trace.view.cross_heads))
    own = _map_with_attention(trace, layer, own_token_attention) if is_causal(heads, x) else None
    has_norm = heads.norm.eps is not None
    return LayerMap(T, own, has_norm and heads.norm.subtracts_mean, has_norm)


def batch_layer_map(traces: Traces, layer: int) -> Map:
    """The map T of a layer for all texts at once; it reads 0 at padding. Raises if it differs from the model's own layer.

    Attention runs in its fastest exact form, without derivatives.
    """
    heads, mlp = traces.view.heads_of(layer), traces.view.mlps[layer]
    valid, padding = None if traces.is_unpadded else traces.is_token, traces.padding_for_layer(layer)
    is_parallel = traces.steps[traces.mid_steps[layer]] in traces.unread_steps
    end_index = [*traces.input_steps[1:], len(traces.steps) - 1][layer]

    def T(x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        x = zero_invalid_rows(x, valid)
        middle = x + heads.attention_update(x, padding)
        return middle + mlp((x if is_parallel else middle).flatten(0, -2)).reshape(x.shape)

    image, expected_points = (
        zero_invalid_rows(x, valid) for x in (T(traces.layer_input(layer)), traces.points_at(end_index))
    )
    _check_form(layer, image, expected_points, traces.view.dtype, bool(traces.view.cross_heads))
    return T


def _check_form(
    layer: int, image: Tensor, expected_points: Tensor, dtype: torch.dtype, has_cross_attention: bool
) -> None:
    """Refuse a layer whose own output is not x + attention + MLP."""
    if has_cross_attention:
        raise RheoscopeError(
            Message(
                "layer {layer} also adds cross-attention to a source, which this analysis does not include", layer=layer
            ),
            analyse("trajectory"),
        )
    error = float((image - expected_points).detach().norm() / expected_points.norm())
    if not error < (1e-3 if dtype.itemsize >= 4 else 0.1):
        raise RheoscopeError(
            Message(
                "layer {layer} is not of the form x + attention + MLP (relative error {error:.1g}): it uses post-norm, which "
                "this analysis does not support",
                layer=layer,
                error=error,
            ),
            analyse("trajectory"),
        )


def is_causal(heads: Heads, x: Cloud) -> bool:
    """Whether no token of a layer depends on a later one, by its mask and its normaliser."""
    allowed = heads.mechanism.mask(*query_key_positions(len(x), len(x), x.device))
    return heads.mechanism.normaliser.is_rowwise and not bool(allowed.triu(1).any())


def _map_with_attention(trace: Trace, layer: int, attention: Attention) -> Map:
    """x + attention + MLP with this implementation of attention, for one cloud (n, d) or several (b, n, d)."""
    heads, mlp = trace.view.heads_of(layer), trace.view.mlps[layer]
    W_O, b_O = heads.W_O.detach(), None if heads.b_O is None else heads.b_O.detach()  # a function of the cloud alone
    is_parallel = trace.steps[trace.mid_steps[layer]] in trace.unread_steps

    def T(x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        clouds = x if x.ndim == 3 else x[None]
        outputs = attention(heads.mechanism, *heads.qkv(clouds)).to(x.dtype)
        outputs = heads.apply_gate(outputs, clouds, all_outputs=outputs)
        update = (outputs @ W_O).sum(1).reshape(x.shape)
        update = update if b_O is None else update + b_O
        middle = x + (update if heads.output_norm is None else heads.output_norm.apply(update))
        return middle + mlp((x if is_parallel else middle).flatten(0, -2)).reshape(x.shape)

    return T


def own_token_attention(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Outputs:
    """The outputs of attention, in which a token is a variable as query, key and value of itself and a constant for others."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
    k, v = (repeat_kv_heads(part.to(dtype), q.shape[1]) for part in (k, v))
    queries, keys = mechanism.position.encode(q.to(dtype), i), mechanism.position.encode(k, j)
    scores = masked_scores(mechanism, queries, keys.detach(), i, j)
    own_score = masked_scores(mechanism, queries.detach(), keys, i, j).diagonal(dim1=-2, dim2=-1)
    own_change = torch.where(
        own_score.isfinite(), own_score - own_score.detach(), 0
    )  # 0, with the derivative of the score
    weights, values = mechanism.normaliser(scores + torch.diag_embed(own_change)), mechanism.value(v)
    own_weight = weights.diagonal(dim1=-2, dim2=-1)[..., None]
    return weights @ values.detach() + own_weight * (values - values.detach())

"""The update of every head and the gradient of its energy, in factored form."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mask import Mask
from rheoscope.flow.energy.landscape import Landscape, head_landscape
from rheoscope.flow.energy.weight_products import WeightProducts, weight_products
from rheoscope.space.head import project_normalised
from rheoscope.space.model_parts import Projected
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

Cloud = Float[Tensor, "*b n d"]


@dataclass(frozen=True, eq=False)
class HeadUpdates:
    """The updates of all heads of a layer as factors, so that no tensor of shape (h, n, d) is needed.

    Δ_h = `mixed_values` `output_map` and ∇Λ = `query_gradient` `query_weights`ᵀ. `norm_scale` is the factor by which the norm
    multiplies a token. `positioned_queries` are the queries after their bias, QK-norm and position encoding.
    """

    landscape: Landscape
    x_hat: Cloud
    norm_scale: Float[Tensor, "*b n 1"]
    unbiased_queries: Float[Tensor, "*b h n k"]
    query_bias: Float[Tensor, "*b h 1 k"]
    positioned_queries: Float[Tensor, "b h n k"]
    output_map: Float[Tensor, "h e d"]
    products: WeightProducts
    energy: Float[Tensor, "*b h n"]
    query_gradient: Float[Tensor, "*b h n k"]
    mixed_values: Float[Tensor, "*b h n e"]
    to_model_precision: Callable[[Tensor], Tensor] = lambda x: x

    @property
    def query_weights(self) -> Float[Tensor, "h d k"]:
        """The query weights after the norm, as they act on x̂."""
        heads = self.landscape.heads
        return heads.norm.fold(heads.W_Q.to(self.x_hat.dtype))

    def gradient_cloud(self) -> Cloud:
        """The sum of ∇Λ over the heads, as one product."""
        heads = self.landscape.heads
        gradient = sum_over_heads(self.query_gradient, heads.W_Q.to(self.x_hat.dtype).mT)
        return heads.norm.centre(gradient if heads.norm.gain is None else gradient * heads.norm.gain.to(gradient.dtype))

    def projections(self) -> Projected:
        """q, k and v of the cloud before the position encoding, as a mechanism takes them."""
        heads = self.landscape.heads
        q, norm = self.unbiased_queries + self.query_bias, heads.q_norm
        q = q if norm is None else norm.normed(q)
        v = project_normalised(heads.norm, self.x_hat, heads.W_V, heads.b_V, heads.v_norm, self.to_model_precision)
        return (
            (q, self.landscape.unpositioned_keys, v)
            if q.ndim == 4
            else (q[None], self.landscape.unpositioned_keys[None], v[None])
        )


def head_updates(trace: Trace | Traces, layer: int) -> HeadUpdates:
    heads, x = trace.view.layer_heads[layer], trace.layer_input(layer)
    x = at_least_float32(x)
    norm, x_hat, factored = heads.norm, heads.norm.normalise(x), trace.factored_displacements(layer).at_least_float32()
    to_model_precision, zero = trace.view.to_model_precision, torch.zeros_like(x_hat[..., :1, :])
    landscape = head_landscape(heads, x_hat, padding_mask(trace, layer), to_model_precision)
    queries, query_bias = (
        project_normalised(norm, y, heads.W_Q, heads.b_Q, None, to_model_precision) for y in (x_hat, zero)
    )
    positioned_queries = landscape.position_queries(queries)
    energy, query_gradient = landscape.energies_and_gradient(queries, positioned_queries)
    unbiased_queries, query_gradient, mixed_values = (
        x.contiguous() if x.is_cuda else x for x in (queries - query_bias, query_gradient, factored.mixed_values)
    )  # contiguous for matrix products on a GPU
    return HeadUpdates(
        landscape,
        x_hat,
        norm.scale(x),
        unbiased_queries,
        query_bias,
        positioned_queries,
        factored.output_map,
        weight_products(trace.view, layer, factored.output_map),
        energy,
        query_gradient,
        mixed_values,
        to_model_precision,
    )


def sum_over_heads(rows: Float[Tensor, "*b h n k"], maps: Float[Tensor, "h k d"]) -> Cloud:
    """Σ_h rows_h maps_h, as one product."""
    return rows.transpose(-3, -2).flatten(-2) @ maps.flatten(0, 1)


def padding_mask(trace: Trace | Traces, layer: int) -> Mask | None:
    """The padding mask of a batch; None for one text."""
    return trace.padding_for_layer(layer) if isinstance(trace, Traces) else None

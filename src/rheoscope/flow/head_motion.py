"""The speed of every head, and its cosine with the displacement by the whole attention of its layer."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import block_numel
from rheoscope.attention.lower.kernels.triton_lowerings import HAS_TRITON
from rheoscope.space.head_contributions import FactoredDisplacements, vecdot_float32
from rheoscope.space.head_outputs import stacked_value_bias
from rheoscope.space.layer_stack import stack_padded
from rheoscope.space.masked_means import ValidTokens, masked_mean
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View


def head_speeds_and_cosines(
    trace: Trace | Traces,
    points: Float[Tensor, "*b p n d"],
    displacement: Float[Tensor, "*b n s d"] | None,
    valid: ValidTokens = None,
    positions: list[int] | None = None,
) -> Float[Tensor, "2 *b layer h"]:
    """The norm of every head's displacement and its cosine with the displacement by the whole attention; means over tokens.

    On a GPU, layers are batched to avoid launch overhead. If the forward pass recorded the head outputs, a kernel reads them
    directly.
    """
    parts, layers = [], range(trace.view.layers)
    if not points.is_cuda:
        values = [update_lengths_and_cosines(trace, layer) for layer in layers]
        return torch.stack([mean_lengths_and_cosines(x, valid, positions) for x in values], -2)
    head_outputs = recorded_head_outputs(trace, positions)
    if head_outputs is not None and displacement is not None:
        return output_speeds_and_cosines(
            trace.view, head_outputs, attention_displacements(trace, points, displacement, layers), valid
        )
    layers_per_chunk = max(1, block_numel(points.device) // trace.factored_displacements(0).mixed_values.numel())
    for chunk in (layers[start : start + layers_per_chunk] for start in range(0, len(layers), layers_per_chunk)):
        updates = [trace.factored_displacements(layer) for layer in chunk]
        updates = (
            updates
            if positions is None or len(positions) == updates[0].mixed_values.shape[-2]
            else [update.select_tokens(positions) for update in updates]
        )
        parts.append(
            layer_speeds_and_cosines(updates, attention_displacements(trace, points, displacement, chunk), valid)
        )
    return torch.cat(parts, -2)


def mean_lengths_and_cosines(
    values: Float[Tensor, "2 *b h n"], valid: ValidTokens, positions: list[int] | None
) -> Float[Tensor, "2 *b h"]:
    """The means over the tokens at `positions`, or over all tokens, that are valid."""
    if positions is not None and len(positions) < values.shape[-1]:
        values = values[..., positions]
    return torch.stack([masked_mean(x, valid) for x in values])


def update_lengths_and_cosines(trace: Trace | Traces, layer: int) -> Float[Tensor, "2 *b h n"]:
    """‖Δ_h‖ of every head and token of a layer, and the cosine with the displacement by the whole attention."""
    updates = trace.factored_displacements(layer)
    displacement = at_least_float32(trace.points[..., trace.mid_steps[layer], :, :]) - at_least_float32(
        trace.points[..., trace.input_steps[layer], :, :]
    )
    lengths = updates.squared_norms.sqrt()
    cosines = safe_divide(updates.inner_products_with(displacement), lengths * displacement.norm(dim=-1)[..., None, :])
    return torch.stack([lengths, cosines])


def attention_displacements(
    trace: Trace | Traces,
    points: Float[Tensor, "*b p n d"],
    displacement: Float[Tensor, "*b n s d"] | None,
    layers: Sequence[int],
) -> Float[Tensor, "layer *b n d"]:
    """The displacement of every token by the whole attention of each layer."""
    if displacement is not None:
        steps_per_layer = displacement.shape[-2] // trace.view.layers  # a slice avoids a copy
        return displacement[..., trace.input_steps[layers[0]] :: steps_per_layer, :].movedim(-2, 0)[: len(layers)]
    end_points = [(trace.mid_steps[layer], trace.input_steps[layer]) for layer in layers]
    return torch.stack(
        [
            at_least_float32(points[..., end, :, :]) - at_least_float32(points[..., start, :, :])
            for end, start in end_points
        ]
    )


def layer_speeds_and_cosines(
    updates: list[FactoredDisplacements], attention_displacement: Float[Tensor, "layer *b n d"], valid: ValidTokens
) -> Float[Tensor, "2 *b layer h"]:
    """Speeds and cosines of a batch of layers, from factored displacements."""
    mixed_values = (
        stack_padded([update.mixed_values for update in updates], fill_value=0.0)
        if len(updates) > 1
        else updates[0].mixed_values[None]
    )
    output_map = stack_padded([update.output_map.mT for update in updates], fill_value=0.0).mT.to(mixed_values.dtype)
    output_gram = (output_map @ output_map.mT).unflatten(0, (-1, *(1,) * (mixed_values.ndim - 4)))
    head_length = vecdot_float32(mixed_values @ output_gram, mixed_values).clamp(min=0).sqrt()
    projected = (attention_displacement.to(mixed_values.dtype).flatten(1, -2) @ output_map.flatten(1, 2).mT).unflatten(
        -1, output_map.shape[1:3]
    )
    projected = projected.unflatten(1, attention_displacement.shape[1:-1]).transpose(-3, -2)
    attention_length = torch.linalg.vector_norm(attention_displacement, dim=-1, dtype=head_length.dtype)[..., None, :]
    cosine = safe_divide(vecdot_float32(mixed_values, projected), head_length * attention_length)
    return torch.stack([masked_mean(x.movedim(0, -3), valid) for x in (head_length, cosine)])


def recorded_head_outputs(
    trace: Trace | Traces, positions: list[int] | None = None
) -> list[Float[Tensor, "*b r he"]] | None:
    """The recorded head outputs of every layer at `positions` (default: all); None if not recorded or no kernel can read them."""
    blocks = trace.view.layer_heads
    outputs = [x for x in map(trace.outputs, range(len(blocks))) if x is not None]
    is_uniform = len({heads.W_O.shape for heads in blocks}) == 1 and all(heads.output_norm is None for heads in blocks)
    if not is_uniform or len(outputs) < len(blocks) or not HAS_TRITON or not outputs[0].is_cuda:
        return None
    return (
        outputs
        if positions is None or len(positions) == outputs[0].shape[-2]
        else [x[..., positions, :] for x in outputs]
    )


def output_speeds_and_cosines(
    view: View,
    outputs: Sequence[Float[Tensor, "*b n he"]],
    attention_displacement: Float[Tensor, "layer *b n d"],
    valid: ValidTokens,
) -> Float[Tensor, "2 *b layer h"]:
    """Speeds and cosines from the recorded head outputs."""
    head_length, products = lengths_and_products(view, outputs, attention_displacement)
    attention_length = torch.linalg.vector_norm(attention_displacement, dim=-1, dtype=torch.float32)[..., None, :]
    return torch.stack(
        [
            masked_mean(x.movedim(0, -3), valid)
            for x in (head_length, safe_divide(products, head_length * attention_length))
        ]
    )


def lengths_and_products(
    view: View,
    outputs: Sequence[Float[Tensor, "*b n he"]],
    displacements: Float[Tensor, "layer *b n d"] | Iterable[Float[Tensor, "*b n d"]],
) -> tuple[Float[Tensor, "layer *b h n"], Float[Tensor, "layer *b h n"]]:
    """‖Δ_h(x_i)‖ and ⟨Δ_h(x_i), y_i⟩ for every head from its recorded output, with one displacement y per layer."""
    from rheoscope.flow.kernels.head_dots import head_dots  # imports Triton, which is optional

    output_map = torch.stack([heads.W_O.detach() for heads in view.layer_heads]).to(outputs[0].dtype)
    gram, common, (*texts, n, _) = output_map @ output_map.mT, stacked_value_bias(view.layer_heads), outputs[0].shape
    common = None if common is None else common.to(output_map.dtype)
    results = torch.empty(
        2, len(output_map), *texts, output_map.shape[1], n, dtype=torch.float32, device=output_map.device
    )
    flat_results = results.reshape(2, len(output_map), -1, output_map.shape[1], n)
    for layer, (z, projected) in enumerate(
        zip(outputs, _project_on_heads(displacements, output_map.flatten(1, 2).mT), strict=True)
    ):
        bias = None if common is None else common[layer]
        head_dots(
            z.reshape(-1, n, z.shape[-1]),
            bias,
            gram[layer],
            projected.reshape(-1, n, z.shape[-1]),
            *flat_results[:, layer],
        )
    return results[0], results[1]


def _project_on_heads(
    displacements: Float[Tensor, "layer *b n d"] | Iterable[Float[Tensor, "*b n d"]],
    head_weights: Float[Tensor, "layer d he"],
) -> Iterable[Tensor]:
    """The displacements times the head weights of their layer, in one batched product if they are one tensor."""
    if isinstance(displacements, Tensor):
        return displacements.flatten(1, -2).to(head_weights.dtype) @ head_weights
    return (
        displacement.to(head_weights.dtype) @ weights
        for displacement, weights in zip(displacements, head_weights, strict=True)
    )

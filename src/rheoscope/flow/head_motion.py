"""How far does every head move the tokens, and how much of that is along what the whole attention does?"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_at_once
from rheoscope.attention.lower.kernels.triton_lowerings import TRITON
from rheoscope.space.head_contributions import Carried, dot
from rheoscope.space.head_outputs import all_in_common
from rheoscope.space.layer_stack import layer_by_layer
from rheoscope.space.masked_means import There, mean
from rheoscope.space.safe_arithmetic import exact, share
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View


def of_heads(
    trace: Trace | Traces,
    points: Float[Tensor, "*b p n d"],
    moved: Float[Tensor, "*b n s d"] | None,
    there: There = None,
    rows: list[int] | None = None,
) -> Float[Tensor, "2 *b layer h"]:
    """Length of every head's displacement, and its cosine with that of the whole attention; means over tokens.

    As many layers together as a device holds: a GPU waits for each thing that it is asked. Where the forward pass kept what heads
    gave, a kernel reads it there.
    """
    found, layers = [], range(trace.view.layers)
    given = kept_outputs(trace, rows)
    if given is not None and moved is not None:
        return of_outputs(trace.view, given, whole_steps(trace, points, moved, layers), there)
    some = max(1, numbers_at_once(points.device) // trace.carried(0).moved.numel())
    for part in (layers[low : low + some] for low in range(0, len(layers), some)):
        made = [trace.carried(layer) for layer in part]
        made = made if rows is None or len(rows) == made[0].moved.shape[-2] else [one.at(rows) for one in made]
        found.append(of_layers(made, whole_steps(trace, points, moved, part), there))
    return torch.cat(found, -2)


def whole_steps(
    trace: Trace | Traces,
    points: Float[Tensor, "*b p n d"],
    moved: Float[Tensor, "*b n s d"] | None,
    layers: Sequence[int],
) -> Float[Tensor, "layer *b n d"]:
    """What the attention of each layer does to the tokens as a whole."""
    if moved is not None:
        each = moved.shape[-2] // trace.view.layers  # steps of a layer; a slice copies nothing
        return moved[..., trace.where[layers[0]] :: each, :].movedim(-2, 0)[: len(layers)]
    ends = [(trace.middle[layer], trace.where[layer]) for layer in layers]
    return torch.stack([exact(points[..., end, :, :]) - exact(points[..., start, :, :]) for end, start in ends])


def of_layers(made: list[Carried], whole: Float[Tensor, "layer *b n d"], there: There) -> Float[Tensor, "2 *b layer h"]:
    """The same of some layers side by side."""
    moved = layer_by_layer([one.moved for one in made], beyond=0.0) if len(made) > 1 else made[0].moved[None]
    write = layer_by_layer([one.write.mT for one in made], beyond=0.0).mT.to(moved.dtype)
    inner_of_rows = (write @ write.mT).unflatten(0, (-1, *(1,) * (moved.ndim - 4)))
    length = dot(moved @ inner_of_rows, moved).clamp(min=0).sqrt()
    seen = (whole.to(moved.dtype).flatten(1, -2) @ write.flatten(1, 2).mT).unflatten(-1, write.shape[1:3])
    seen = seen.unflatten(1, whole.shape[1:-1]).transpose(-3, -2)
    far = torch.linalg.vector_norm(whole, dim=-1, dtype=length.dtype)[..., None, :]
    cosine = share(dot(moved, seen), length * far)
    return torch.stack([mean(x.movedim(0, -3), there) for x in (length, cosine)])


def kept_outputs(trace: Trace | Traces, rows: list[int] | None = None) -> list[Float[Tensor, "*b r he"]] | None:
    """What the heads of every layer gave to the tokens `rows` (all, unless said), where the forward pass kept it and a kernel reads it."""
    blocks = trace.view.blocks
    found = [x for x in map(trace.outputs, range(len(blocks))) if x is not None]
    plain = len({heads.W_O.shape for heads in blocks}) == 1 and all(heads.after is None for heads in blocks)
    if not plain or len(found) < len(blocks) or not TRITON or not found[0].is_cuda:
        return None
    return found if rows is None or len(rows) == found[0].shape[-2] else [x[..., rows, :] for x in found]


def of_outputs(
    view: View, outputs: Sequence[Float[Tensor, "*b n he"]], whole: Float[Tensor, "layer *b n d"], there: There
) -> Float[Tensor, "2 *b layer h"]:
    """The same from what heads gave."""
    length, along = lengths_and_products(view, outputs, whole)
    far = torch.linalg.vector_norm(whole, dim=-1, dtype=torch.float32)[..., None, :]
    return torch.stack([mean(x.movedim(0, -3), there) for x in (length, share(along, length * far))])


def lengths_and_products(
    view: View,
    outputs: Sequence[Float[Tensor, "*b n he"]],
    ways: Float[Tensor, "layer *b n d"] | Iterable[Float[Tensor, "*b n d"]],
) -> tuple[Float[Tensor, "layer *b h n"], Float[Tensor, "layer *b h n"]]:
    """‖Δ_h(x_i)‖ and ⟨Δ_h(x_i), y_i⟩ of every head from what it gave, y another displacement for each layer: by a kernel."""
    from rheoscope.flow.kernels.head_dots import head_dots  # Triton, which not every machine has

    write = torch.stack([heads.W_O.detach() for heads in view.blocks]).to(outputs[0].dtype)
    gram, common, (*texts, n, _) = write @ write.mT, all_in_common(view.blocks), outputs[0].shape
    common = None if common is None else common.to(write.dtype)
    found = torch.empty(2, len(write), *texts, write.shape[1], n, dtype=torch.float32, device=write.device)
    told = found.reshape(2, len(write), -1, write.shape[1], n)
    for layer, (z, seen) in enumerate(zip(outputs, _seen(ways, write.flatten(1, 2).mT), strict=True)):
        bias = None if common is None else common[layer]
        head_dots(z.reshape(-1, n, z.shape[-1]), bias, gram[layer], seen.reshape(-1, n, z.shape[-1]), *told[:, layer])
    return found[0], found[1]


def _seen(
    ways: Float[Tensor, "layer *b n d"] | Iterable[Float[Tensor, "*b n d"]], read: Float[Tensor, "layer d he"]
) -> Iterable[Tensor]:
    """Displacements as the heads of their layer see them: of all layers in one product where they lie side by side."""
    if isinstance(ways, Tensor):
        return ways.flatten(1, -2).to(read.dtype) @ read
    return (way.to(read.dtype) @ one for way, one in zip(ways, read, strict=True))

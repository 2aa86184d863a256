"""How two models' heads of the same number differ in what they do: attention weights, updates of tokens and what these say.

The second model's head reads the first model's points. What earlier layers changed is then no part of the difference, so a
head with equal weights differs by exactly 0. For `realised_…` every model reads its own points.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.space.components import mlp_step
from rheoscope.space.head import Heads
from rheoscope.space.predictions import next_token_logits
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

MAX_NUMBERS = 2**24
"""The largest number of attention weights, or of coordinates of updates, that are held for each model."""
HEAD_FIELDS = (
    "attention",
    "displacement",
    "displacement_cosine",
    "stream_change",
    "logit_change",
    "realised_attention",
    "realised_displacement",
)


@dataclass(frozen=True, eq=False)
class HeadsOnCloud:
    """All heads of a layer on one cloud: their queries and keys, and the factored updates of every token."""

    heads: Heads
    queries: Float[Tensor, "1 h n k"]
    keys: Float[Tensor, "1 g n k"]
    mixed_values: Float[Tensor, "h n e"]
    output_map: Float[Tensor, "h e d"]

    def weights(self, head_slice: slice) -> Float[Tensor, "c n n"]:
        """The attention weights of some heads."""
        indices = list(range(self.heads.n_heads))[head_slice]
        kv_indices = [self.heads.kv_head(head) for head in indices]
        mechanism: Mechanism = self.heads.mechanism.select_heads(indices)
        return mechanism.weights(self.queries[:, indices], self.keys[:, kv_indices])[0]

    def displacements(self, head_slice: slice) -> Float[Tensor, "c n d"]:
        """Δ_h of some heads, without the constants of values, which belong to no head."""
        return at_least_float32(self.mixed_values[head_slice]) @ self.output_map[head_slice]


def heads_on_cloud(view: View, layer: int, x: Float[Tensor, "n d"]) -> HeadsOnCloud:
    """The heads of a layer on a cloud, which may come from another model."""
    heads = view.heads_of(layer)
    x = x.to(heads.W_O)
    queries, keys, _ = heads.qkv(x)
    factored = heads.factored_displacements(view.to_model_precision(x))
    return HeadsOnCloud(heads, queries, keys, factored.mixed_values, at_least_float32(factored.output_map))


def head_changes(first: Trace, second: Trace) -> dict[str, Float[Tensor, "layer h"]]:
    """The fields of `HEAD_FIELDS` for one text in two models with the same coordinates, heads and tokens."""
    directions = readout_directions(first)
    layers = [layer_changes(first, second, layer, directions) for layer in range(first.view.layers)]
    return {name: torch.stack([layer[name] for layer in layers]) for name in layers[0]}


def layer_changes(
    first: Trace, second: Trace, layer: int, directions: Float[Tensor, "n d"] | None
) -> dict[str, Float[Tensor, " h"]]:
    """The same for the heads of one layer."""
    on_first = heads_on_cloud(first.view, layer, first.layer_input(layer))
    on_same = heads_on_cloud(second.view, layer, first.layer_input(layer))
    on_own = heads_on_cloud(second.view, layer, second.layer_input(layer))
    norms = at_least_float32(first.points[first.mid_steps[layer]]).norm(dim=-1)
    compare = partial(compare_heads, on_first, on_same, on_own, norms, directions)
    slices = [compare(head_slice) for head_slice in head_slices(on_first)]
    return {name: torch.cat([part[name] for part in slices]).double().cpu() for name in slices[0]}


def head_slices(on_cloud: HeadsOnCloud) -> Iterator[slice]:
    """Slices of heads whose weights and updates fit in memory."""
    n_heads, n, d = on_cloud.heads.n_heads, on_cloud.queries.shape[-2], on_cloud.output_map.shape[-1]
    size = max(1, MAX_NUMBERS // (n * max(n, d)))
    return (slice(start, min(start + size, n_heads)) for start in range(0, n_heads, size))


def compare_heads(
    on_first: HeadsOnCloud,
    on_same: HeadsOnCloud,
    on_own: HeadsOnCloud,
    norms: Float[Tensor, " n"],
    directions: Float[Tensor, "n d"] | None,
    head_slice: slice,
) -> dict[str, Float[Tensor, " c"]]:
    """All fields of some heads. `norms` are the lengths of the points that the first model's attention makes."""
    weights = on_first.weights(head_slice)
    updates = on_first.displacements(head_slice)
    same_weights, own_weights = (on.weights(head_slice).to(weights) for on in (on_same, on_own))
    same_updates, own_updates = (on.displacements(head_slice).to(updates) for on in (on_same, on_own))
    difference = same_updates - updates
    values = {
        "attention": total_variation(weights, same_weights),
        "displacement": relative_difference(updates, same_updates),
        "displacement_cosine": cosine(updates, same_updates),
        "stream_change": safe_divide(difference.norm(dim=-1), norms.to(updates)).mean(-1),
        "realised_attention": total_variation(weights, own_weights),
        "realised_displacement": relative_difference(updates, own_updates),
    }
    if directions is not None:
        values["logit_change"] = (difference * directions.to(updates)).sum(-1).abs().mean(-1)
    return values


def total_variation(p: Float[Tensor, "c n m"], q: Float[Tensor, "c n m"]) -> Float[Tensor, " c"]:
    """Half the sum of |p − q| along rows, averaged over rows: the share of attention that moved to other keys.

    >>> total_variation(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.25, 0.75]]])).item()
    0.75
    """
    return (p - q).abs().sum(-1).mean(-1) / 2


def relative_difference(x: Float[Tensor, "*c n d"], y: Float[Tensor, "*c n d"]) -> Float[Tensor, "*c"]:
    """‖y − x‖ / √((‖x‖² + ‖y‖²)/2) over all tokens; 0 for equal clouds, √2 for orthogonal ones of equal size.

    >>> round(relative_difference(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])).item(), 4)
    1.4142
    """
    size = (x.square().sum((-2, -1)) + y.square().sum((-2, -1))) / 2
    return safe_divide((y - x).square().sum((-2, -1)).sqrt(), size.sqrt())


def cosine(x: Float[Tensor, "c n d"], y: Float[Tensor, "c n d"]) -> Float[Tensor, " c"]:
    """cos(x, y) over all tokens as 1 − ½‖x/‖x‖ − y/‖y‖‖², which is exactly 1 for equal clouds.

    >>> x = torch.tensor([[[0.1, 0.2]], [[0.0, 1.0]]])
    >>> cosine(x, x.flip(0)).allclose(torch.tensor(0.8944), atol=1e-4), cosine(x, x).tolist()
    (True, [1.0, 1.0])
    """
    u, v = (safe_divide(z, z.square().sum((-2, -1), keepdim=True).sqrt()) for z in (x, y))
    return 1 - (u - v).square().sum((-2, -1)) / 2


def readout_directions(trace: Trace) -> Float[Tensor, "n d"] | None:
    """For every token, the direction in which a written vector raises the logit of the likeliest next token above the mean logit.

    The scale of the final norm is fixed. None for a model without an unembedding.
    """
    view, norm = trace.view, trace.view.final_norm
    if view.unembed is None:
        return None
    x = at_least_float32(trace.points[-1])
    block = max(1, MAX_NUMBERS // view.unembed.shape[-1])
    targets = torch.cat([next_token_logits(view, points).argmax(-1) for points in x.split(block)])
    directions = (view.unembed[:, targets].mT - view.unembed.mean(-1)).to(x.dtype)
    gained = directions if norm.gain is None else directions * norm.gain.to(x.dtype)
    return norm.centre(gained) * norm.scale(x)


def mlp_changes(first: Trace, second: Trace) -> Float[Tensor, " layer"]:
    """The relative difference of both MLPs of every layer on the first model's points."""
    return torch.stack([_mlp_change(first, second, layer) for layer in range(first.view.layers)]).double().cpu()


def _mlp_change(first: Trace, second: Trace, layer: int) -> Float[Tensor, ""]:
    is_parallel = first.steps[first.mid_steps[layer]] in first.unread_steps
    x = first.layer_input(layer) if is_parallel else first.points[mlp_step(first, layer) - 1]
    updates, other = first.view.mlps[layer](x), second.view.mlps[layer](x.to(second.points))
    return relative_difference(at_least_float32(updates), at_least_float32(other).to(updates.device))

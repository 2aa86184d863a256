"""Direct logit attribution of the rows of a growing text: components, source tokens, and pairs of a head and a source token.

logit_i = mean logit + sum_c ⟨c, u_i⟩          c: embedding, heads, MLPs, biases
⟨L3.H1, u_i⟩ = sum_j ⟨α_ij x̂_j F, u_i⟩         j: the tokens up to i; for cross-attention, the tokens of the source
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.generation.logit_directions import LogitDirections, Unembedding
from rheoscope.flow.generation.source_contributions import KeysValues, SourceContributions, source_contributions
from rheoscope.space.components import NORM_NAMES, embedding_parts
from rheoscope.space.head import Heads
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace

N_PAIRS = 5
"""The number of pairs of a head and a source token that every row lists."""


class Pair(NamedTuple):
    """What a head carries from a source token to a logit. `is_cross`: the source token is one of the source text."""

    layer: int
    head: int
    source: int
    is_cross: bool
    value: float

    @property
    def head_name(self) -> str:
        """The name of the head as a component.

        >>> Pair(3, 1, 7, False, 0.5).head_name, Pair(0, 2, 7, True, 0.5).head_name
        ('L3.H1', 'L0.cross.H2')
        """
        return f"L{self.layer}.{'cross.' if self.is_cross else ''}H{self.head}"


@dataclass(frozen=True, eq=False)
class RowAttribution:
    """The logits of r targets as sums.

    `components` (c, r) and `mean_logits` (r) add up to the logits before a cap. `sources` (r, n) are the sums over all heads by
    source token, and `cross_sources` (r, s) those of cross-attention by token of the source. `errors` (r) are the differences
    between the heads and the attention that the network itself computed.
    """

    names: tuple[str, ...]
    components: Float[Tensor, "c r"]
    mean_logits: Float[Tensor, " r"]
    sources: Float[Tensor, "r n"]
    cross_sources: Float[Tensor, "r s"]
    pairs: list[list[Pair]]
    errors: Float[Tensor, " r"]


@dataclass(frozen=True, eq=False)
class AttentionStep:
    """One step that attention writes: its layer, and whether it is cross-attention."""

    layer: int
    is_cross: bool

    @property
    def prefix(self) -> str:
        return f"L{self.layer}.cross" if self.is_cross else f"L{self.layer}"


class GrowingAttribution:
    """Attributes the last rows of a text that grows. Each token is projected to keys and values once, as in the cache of a model.

    Memory: the keys and values of every layer, as many numbers as the model's own cache.
    """

    @torch.no_grad()
    def __init__(self, trace: Trace, capacity: int) -> None:
        view = trace.view
        self.view, self.unembedding, self.n_read = view, Unembedding.of(view), 0
        self.stores = [KeysValues(heads, capacity) for heads in view.layer_heads]
        self.biases = [_value_bias(heads) for heads in view.layer_heads]
        self.has_position_part = "position" in embedding_parts(trace, list(range(len(trace))))
        self.memory_keys = [
            cross.source_heads.qkv(view.to_model_precision(_memory(trace)))[1:] for cross in view.cross_heads
        ]

    @torch.no_grad()
    def attribute(self, trace: Trace, targets: Int[Tensor, " r"]) -> RowAttribution:
        """The logits of `targets`, the tokens that the last r rows of the text so far predict."""
        n, rows = len(trace), range(len(trace) - len(targets), len(trace))
        points = at_least_float32(trace.points[:, rows.start :])
        to = self.unembedding.directions(points[-1], targets.to(points.device))
        along = (points * to.directions).sum(-1)
        parts, errors = self._embedding(trace, rows, along[0], to), torch.zeros_like(along[0])
        sources, cross_sources = along.new_zeros(len(rows), n), along.new_zeros(len(rows), _n_memory(trace))
        strongest: list[tuple[AttentionStep, Tensor, Tensor]] = []
        for index, step in enumerate(trace.steps[1:], start=1):
            written, attention = along[index] - along[index - 1], _attention_step(trace, index)
            if attention is None:
                parts[f"L{step.layer}.{NORM_NAMES.get(trace.steps[index - 1].kind, 'mlp')}"] = written
                continue
            split = self._split(trace, attention, index, rows, to)
            by_head = split.by_source.sum(-1)
            parts |= {f"{attention.prefix}.H{head}": values for head, values in enumerate(by_head)}
            parts[f"{attention.prefix}.bias"] = split.constants
            errors = torch.maximum(errors, (by_head.sum(0) + split.constants - written).abs())
            total = cross_sources if attention.is_cross else sources
            total += split.by_source.sum(0)
            strongest.append((attention, *_largest(split.by_source)))
        self.n_read = n
        names, components = tuple(parts), torch.stack(list(parts.values()))
        return RowAttribution(names, components, to.mean_logits, sources, cross_sources, _merge(strongest), errors)

    def _embedding(
        self, trace: Trace, rows: range, start: Float[Tensor, " r"], to: LogitDirections
    ) -> dict[str, Float[Tensor, " r"]]:
        """The contributions of the first points, and those of the biases behind the last ones."""
        parts = {"embed": start}
        if self.has_position_part:
            token_points = at_least_float32(self.view.token_embeddings(trace.ids[rows.start :]))
            token_part = (token_points * to.directions).sum(-1)
            parts = {"embed": token_part, "position": start - token_part}
        return parts | to.constants

    def _split(
        self, trace: Trace, attention: AttentionStep, index: int, rows: range, to: LogitDirections
    ) -> SourceContributions:
        layer = attention.layer
        if attention.is_cross:
            cross = self.view.cross_heads[layer]
            x = trace.points[index - 1, rows.start :]
            q = cross.target_heads.qkv(self.view.to_model_precision(x))[0]
            k, v = self.memory_keys[layer]
            bias = _value_bias(cross.source_heads)
            return source_contributions(cross.target_heads, q, k, at_least_float32(v), x, to.directions, bias)
        heads, x = self.view.layer_heads[layer], trace.layer_input(layer)
        q, k, v = heads.qkv(self.view.to_model_precision(x[min(self.n_read, rows.start) :]))
        n_known = max(0, self.n_read - rows.start)
        k, values = self.stores[layer].extend(k[..., n_known:, :], v[..., n_known:, :])
        return source_contributions(
            heads, q[..., -len(rows) :, :], k, values, x[rows.start :], to.directions, self.biases[layer]
        )


def _attention_step(trace: Trace, index: int) -> AttentionStep | None:
    """The attention that writes a step; None for an MLP or a norm."""
    step, previous = trace.steps[index], trace.steps[index - 1]
    assert step.layer is not None, "only the first step has no layer"
    if index == trace.mid_steps[step.layer]:
        return AttentionStep(step.layer, is_cross=False)
    is_cross = step.is_cross and previous.kind != "cross_sum"
    return AttentionStep(step.layer, is_cross=True) if is_cross else None


def _value_bias(heads: Heads) -> Float[Tensor, "h e"] | None:
    return heads.value_bias if heads.mechanism.value.is_identity else None


def _memory(trace: Trace) -> Float[Tensor, "s d"]:
    assert trace.memory is not None, "the target of a pair has a memory"
    return trace.memory


def _n_memory(trace: Trace) -> int:
    return 0 if trace.memory is None else len(trace.memory)


def _largest(by_source: Float[Tensor, "h r n"]) -> tuple[Float[Tensor, "r k"], Int[Tensor, "r k 2"]]:
    """The values of every row that are largest in size, and the head and the source token of each."""
    flat = by_source.transpose(0, 1).flatten(1)
    indices, n = flat.abs().topk(min(N_PAIRS, flat.shape[-1])).indices, by_source.shape[-1]
    return flat.gather(-1, indices), torch.stack([indices // n, indices % n], -1)


def _merge(strongest: list[tuple[AttentionStep, Tensor, Tensor]]) -> list[list[Pair]]:
    """The largest pairs of every row over all layers, the largest first."""
    values = torch.cat([values for _, values, _ in strongest], -1).cpu()
    steps = [attention for attention, layer_values, _ in strongest for _ in range(layer_values.shape[-1])]
    places = torch.cat([places for _, _, places in strongest], 1).tolist()
    order = values.abs().topk(min(N_PAIRS, values.shape[-1])).indices.tolist()
    return [
        [
            Pair(steps[i].layer, places[row][i][0], places[row][i][1], steps[i].is_cross, float(values[row, i]))
            for i in indices
        ]
        for row, indices in enumerate(order)
    ]

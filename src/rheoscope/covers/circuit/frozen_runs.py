"""Runs in which every head writes a given output: what later heads read depends on the chosen outputs, MLPs and norms alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import repeat_kv_heads
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.circuit.edges import EMBED, READOUT, ROLES, Node
from rheoscope.covers.patch.pairs import PairBatch
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads, single_head_mechanism
from rheoscope.space.model import LayerEdit
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

Written = Mapping[Node, Float[Tensor, "p n _"]]
"""What some nodes write in place of the base text's: outputs of heads, or points of the embedding."""
Projections = tuple[Float[Tensor, "b h n k"], Float[Tensor, "b h n k"], Float[Tensor, "b h n e"]]
"""Queries, keys and values of every head, with one key and one value for each query head."""


@dataclass(frozen=True, eq=False)
class FrozenRuns:
    """Runs of base texts in which every head writes what it writes there, except for some nodes in every row."""

    batch: PairBatch
    base: Traces

    @property
    def view(self) -> View:
        return self.base.view

    @cached_property
    def projections(self) -> list[Projections]:
        """The queries, keys and values of the base texts, for every layer."""
        return [project(heads, self.base.layer_input(layer)) for layer, heads in enumerate(self.view.layer_heads)]

    @cached_property
    def outputs(self) -> list[Float[Tensor, "p h n e"]]:
        """The outputs of the heads on the base texts, for every layer."""
        return [
            heads.mechanism.attend(*projections)
            for heads, projections in zip(self.view.layer_heads, self.projections, strict=True)
        ]

    def written(self, node: Node) -> Float[Tensor, "p n _"]:
        """What a node writes on the base texts: the points of the embedding, or the output of a head."""
        return self.base.points_at(0) if node == EMBED else self.outputs[node.layer][:, node.head]

    def run(
        self, rows: Sequence[Written], layers: Sequence[int]
    ) -> tuple[dict[int, Float[Tensor, "c p n d"]], Float[Tensor, "c p v"]]:
        """For every row: the points that the heads of some layers read, and the log probabilities."""
        model, n_rows, points = self.batch.model, len(rows), dict[int, Tensor]()
        embed = self._rows(rows, EMBED, self.written(EMBED))
        points |= {layer: embed for layer in layers if layer == 0}
        steps = {str(self.base.steps[self.base.input_steps[layer]]): layer for layer in layers if layer}
        hooks: dict[str, Any] = {label: partial(_record, points, layer) for label, layer in steps.items()}
        hooks[str(self.base.steps[0])] = lambda x: embed.to(x)
        edits = {layer: self._frozen_edit(rows, layer) for layer in range(self.view.layers)}
        logits = model.run_batch(self.base.ids.repeat(n_rows, 1), edit=edits, hooks=hooks)[:, self.batch.token]
        log_probs = logits.double().log_softmax(-1)
        by_row = {layer: x.unflatten(0, (n_rows, -1)) for layer, x in points.items()}
        return by_row, log_probs.unflatten(0, (n_rows, -1))

    def read_points(self, rows: Sequence[Written], layer: int) -> Float[Tensor, "c p n d"]:
        """The points that the heads of one layer read, for every row. Nothing behind them is computed."""
        embed = self._rows(rows, EMBED, self.written(EMBED))
        if layer == 0:
            return embed.unflatten(0, (len(rows), -1))
        label = str(self.base.steps[self.base.input_steps[layer]])
        hooks: dict[str, Any] = {str(self.base.steps[0]): lambda x: embed.to(x), label: _stop_with}
        edits = {earlier: self._frozen_edit(rows, earlier) for earlier in range(layer)}
        try:
            self.batch.model.run_batch(self.base.ids.repeat(len(rows), 1), edit=edits, hooks=hooks)
        except _ReadPoints as stop:
            return stop.points.unflatten(0, (len(rows), -1))
        raise AssertionError(f"no module reads {label}")

    def _frozen_edit(self, rows: Sequence[Written], layer: int) -> LayerEdit:
        def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
            heads = [self._rows(rows, Node(layer, head), self.outputs[layer][:, head]) for head in range(out.shape[1])]
            return torch.stack(heads, 1).to(out)

        return edit

    def _rows(self, rows: Sequence[Written], node: Node, base: Float[Tensor, "p n w"]) -> Float[Tensor, "b n w"]:
        """What a node writes in every row: the row's own, or that of the base texts."""
        return torch.cat([row.get(node, base).to(base) for row in rows])


class _ReadPoints(Exception):
    """Ends a run whose remaining layers nobody reads."""

    def __init__(self, points: Float[Tensor, "b n d"]) -> None:
        super().__init__()
        self.points = points


def _stop_with(x: Tensor) -> Tensor:
    raise _ReadPoints(x)


def _record(points: dict[int, Tensor], layer: int, x: Tensor) -> Tensor:
    points[layer] = x
    return x


def project(heads: Heads, x: Float[Tensor, "b n d"]) -> Projections:
    """Queries, keys and values of some clouds, with one key and one value for each query head."""
    q, k, v = (at_least_float32(projection) for projection in heads.qkv(x))
    return q, repeat_kv_heads(k, heads.n_heads), repeat_kv_heads(v, heads.n_heads)


def head_output(
    heads: Heads, head: int, q: Float[Tensor, "b n k"], k: Float[Tensor, "b n k"], v: Float[Tensor, "b n e"]
) -> Float[Tensor, "b n e"]:
    """The output of one head from its queries, keys and values."""
    return single_head_mechanism(heads.mechanism, head).attend(q[:, None], k[:, None], v[:, None])[:, 0]


def role_index(role: str) -> int:
    """The index of a role among queries, keys and values.

    >>> role_index("k")
    1
    """
    assert role != READOUT
    return ROLES.index(role)


def check_frozen_heads(view: View) -> None:
    """Raise for models whose head outputs have factors that depend on the token: freezing them would not freeze what they write."""
    if any(heads.scales_outputs for heads in view.layer_heads):
        raise RheoscopeError(
            Message(
                "{model} scales the outputs of its heads by a gate or a norm, so no edge acts through M or F alone",
                model=view.facts.get("model"),
            )
        )

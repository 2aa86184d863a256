"""Path patching: the effect of a single edge, exactly and as a gradient estimate for all edges at once.

sender (donor's output) ── stream and MLPs, all other heads as in the base run ──► q, k or v of the receiver ──► the rest of the model
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.circuit.edges import READOUT, ROLES, Edge, all_edges, senders_of
from rheoscope.covers.circuit.frozen_runs import FrozenRuns, Projections, head_output, project, role_index
from rheoscope.covers.patch.gradients import output_gradients
from rheoscope.covers.patch.pairs import PairBatch
from rheoscope.covers.patch.patched_runs import TOKENS_PER_RUN, PatchedRuns, both_directions
from rheoscope.space.head import Heads

Effects = dict[Edge, Float[Tensor, " _"]]
"""The metric of every pair for some edges."""


@dataclass(frozen=True, eq=False)
class PathEffects:
    """Single edges from a donor's run in a base run."""

    runs: PatchedRuns
    frozen: FrozenRuns
    donor: FrozenRuns

    @staticmethod
    def both_directions(batch: PairBatch) -> "tuple[PathEffects, PathEffects]":
        """Edges that restore (from the clean text in the corrupt one) and edges that disrupt (the opposite)."""
        restore, disrupt = both_directions(batch)
        corrupt, clean = FrozenRuns(batch, batch.corrupt), FrozenRuns(batch, batch.clean)
        return PathEffects(restore, corrupt, clean), PathEffects(disrupt, clean, corrupt)

    def exact(self, edges: Iterable[Edge], advance: Callable[[], object]) -> Effects:
        """The metric of every pair with one edge from the donor, for every edge."""
        metrics: Effects = {}
        outputs: dict[int, dict[Edge, Tensor]] = {}
        for own_edges, points, log_probs in self._sender_runs(edges):
            for edge in own_edges:
                if edge.role == READOUT:
                    metrics[edge] = self.runs.measure(log_probs)
                    advance()
                else:
                    read = self._projections(points[edge.receiver.layer], edge.receiver.layer)
                    outputs.setdefault(edge.receiver.layer, {})[edge] = self._receiver_output(edge, read)
        for layer, layer_outputs in outputs.items():
            heads = [edge.receiver.head for edge in layer_outputs]
            rows = self.runs.with_outputs(layer, heads, torch.stack(list(layer_outputs.values()), 1))
            for edge, row in zip(layer_outputs, rows, strict=True):
                metrics[edge] = row
                advance()
        return metrics

    def estimates(self, advance: Callable[[], object]) -> Effects:
        """The metric of every pair for all edges: the exact change of q, k or v times the gradient of the metric there."""
        view, metrics = self.frozen.view, Effects()
        for own_edges, points, log_probs in self._sender_runs(all_edges(h.n_heads for h in view.layer_heads)):
            changes = {layer: self._changes(x, layer) for layer, x in points.items()}
            for edge in own_edges:
                if edge.role == READOUT:
                    metrics[edge] = self.runs.measure(log_probs)
                else:
                    change = changes[edge.receiver.layer][role_index(edge.role)][:, edge.receiver.head]
                    metrics[edge] = self.runs.base_metric + change
            advance()
        return metrics

    def _changes(self, points: Float[Tensor, "p n d"], layer: int) -> list[Float[Tensor, "p h"]]:
        """⟨gradient, change⟩ of the queries, keys and values of every head of a layer."""
        read = self._projections(points, layer)
        return [
            ((new - base) * gradient).double().sum((-2, -1))
            for new, base, gradient in zip(read, self.frozen.projections[layer], self.gradients[layer], strict=True)
        ]

    def _sender_runs(
        self, edges: Iterable[Edge]
    ) -> Iterator[tuple[list[Edge], dict[int, Float[Tensor, "p n d"]], Float[Tensor, "p v"]]]:
        """The edges of every sender, the points that later layers read if it alone writes the donor's, and the log probabilities."""
        groups = list(senders_of(edges))
        size = max(1, TOKENS_PER_RUN // self.frozen.base.ids.numel())
        n_layers = self.frozen.view.layers
        for start in range(0, len(groups), size):
            chunk = groups[start : start + size]
            layers = sorted({edge.receiver.layer for _, own in chunk for edge in own if edge.receiver.layer < n_layers})
            points, log_probs = self.frozen.run([{sender: self.donor.written(sender)} for sender, _ in chunk], layers)
            for index, (_, own_edges) in enumerate(chunk):
                yield own_edges, {layer: x[index] for layer, x in points.items()}, log_probs[index]

    def _projections(self, points: Float[Tensor, "p n d"], layer: int) -> Projections:
        return project(self.frozen.view.layer_heads[layer], points)

    def _receiver_output(self, edge: Edge, read: Projections) -> Float[Tensor, "p n e"]:
        """The output of the receiver if the edge's role reads the patched stream."""
        layer, head = edge.receiver
        projections = [
            (read if role == edge.role else self.frozen.projections[layer])[role_index(role)][:, head] for role in ROLES
        ]
        return head_output(self.frozen.view.layer_heads[layer], head, *projections)

    @cached_property
    def gradients(self) -> list[Projections]:
        """The gradient of the metric with respect to the queries, keys and values of every head, in the base run."""
        blocks = zip(self.frozen.view.layer_heads, self.frozen.projections, output_gradients(self.runs), strict=True)
        return [projection_gradients(heads, projections, gradient) for heads, projections, gradient in blocks]


def projection_gradients(
    heads: Heads, projections: Projections, output_gradient: Float[Tensor, "p h n e"]
) -> Projections:
    """The gradient with respect to queries, keys and values, from that with respect to the outputs of the heads."""
    with torch.enable_grad():
        q, k, v = (x.detach().requires_grad_() for x in projections)
        outputs = heads.mechanism.attend(q, k, v)
        q_gradient, k_gradient, v_gradient = torch.autograd.grad(
            outputs, (q, k, v), output_gradient.to(outputs), materialize_grads=True
        )
    return q_gradient, k_gradient, v_gradient

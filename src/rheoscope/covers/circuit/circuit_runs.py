"""The metric when only a circuit is kept: every head reads the clean text through its edges, and the corrupt text otherwise."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor, stack

from rheoscope.covers.circuit.edges import EMBED, READOUT, ROLES, Circuit, Node, upstream
from rheoscope.covers.circuit.frozen_runs import FrozenRuns, Projections, head_output, project, role_index
from rheoscope.covers.patch.pairs import PairBatch
from rheoscope.covers.patch.patched_runs import TOKENS_PER_RUN

Part = tuple[Node, Circuit]
"""A node and the edges upstream of it. Circuits that agree there share its output."""
Stream = frozenset[Part]
"""The senders that write their own output into a stream, each with the edges upstream of it."""


@dataclass(frozen=True, eq=False)
class CircuitRuns:
    """Circuits on a batch of pairs. Outputs are kept by the part of the circuit that they depend on."""

    batch: PairBatch
    frozen: FrozenRuns
    _outputs: dict[Part, Float[Tensor, "p n e"]] = field(default_factory=dict, init=False, repr=False)
    _metrics: dict[Circuit, Float[Tensor, " p"]] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def of(batch: PairBatch) -> "CircuitRuns":
        """The runs whose base is the corrupt text of every pair."""
        return CircuitRuns(batch, FrozenRuns(batch, batch.corrupt))

    def metrics(self, circuits: Sequence[Circuit]) -> Float[Tensor, "c p"]:
        """The metric of every pair with only each circuit kept."""
        logits = Node(self.frozen.view.layers)
        parts = [upstream(circuit, logits) for circuit in circuits]
        for layer in range(self.frozen.view.layers):
            self._run_layer(layer, parts)
        missing = {part: stream_of(part, logits, READOUT) for part in parts if part not in self._metrics}
        streams = dict.fromkeys(missing.values())
        log_probs = {
            stream: row
            for chunk in self._chunks(list(streams))
            for stream, row in zip(chunk, self.frozen.run([self._written(s) for s in chunk], [])[1], strict=True)
        }
        for part, stream in missing.items():
            self._metrics[part] = self.batch.measure(log_probs[stream])
        return stack([self._metrics[part] for part in parts])

    def _run_layer(self, layer: int, circuits: Sequence[Circuit]) -> None:
        """Compute the outputs of all heads of a layer that some circuit needs."""
        receivers = {
            (edge.receiver, upstream(c, edge.receiver)) for c in circuits for edge in c if edge.receiver.layer == layer
        }
        missing = sorted((part for part in receivers if part not in self._outputs), key=lambda part: part[0])
        streams = {
            (part, role): stream_of(part[1], part[0], role)
            for part in missing
            for role in ROLES
            if any(edge.receiver == part[0] and edge.role == role for edge in part[1])
        }
        heads, projections = self.frozen.view.layer_heads[layer], dict[Stream, Projections]()
        for chunk in self._chunks(list(dict.fromkeys(streams.values()))):
            points = self.frozen.read_points([self._written(stream) for stream in chunk], layer)
            projections |= {stream: project(heads, x) for stream, x in zip(chunk, points, strict=True)}
        for part in missing:
            read = [
                projections[streams[part, role]][role_index(role)][:, part[0].head]
                if (part, role) in streams
                else self.frozen.projections[layer][role_index(role)][:, part[0].head]
                for role in ROLES
            ]
            self._outputs[part] = head_output(heads, part[0].head, *read)

    def _written(self, stream: Stream) -> dict[Node, Tensor]:
        """What the senders of a stream write. Senders without edges upstream write what they write on the corrupt text."""
        clean = {EMBED: self.batch.clean.points_at(0)}
        return {
            node: clean[node] if node == EMBED else self._outputs[node, part]
            for node, part in stream
            if node == EMBED or part
        }

    def _chunks(self, streams: list[Stream]) -> Iterator[list[Stream]]:
        size = max(1, TOKENS_PER_RUN // self.batch.clean.ids.numel())
        return (streams[start : start + size] for start in range(0, len(streams), size))


def stream_of(circuit: Circuit, receiver: Node, role: Hashable) -> Stream:
    """The senders of a receiver through one role."""
    senders = [edge.sender for edge in circuit if edge.receiver == receiver and edge.role == role]
    return frozenset((sender, upstream(circuit, sender)) for sender in senders)

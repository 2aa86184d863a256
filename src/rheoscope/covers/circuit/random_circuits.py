"""Random circuits: edges on random paths from the embedding to the logits, the null of a circuit's faithfulness."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from rheoscope.covers.circuit.edges import EMBED, READOUT, Circuit, Edge, Node, all_edges

EdgesOf = Mapping[Node, Sequence[Edge]]


def random_circuits(heads_per_layer: Iterable[int], n_edges: int, n_circuits: int, seed: int) -> list[Circuit]:
    """Circuits of at least `n_edges` edges: paths through random edges are added until there are as many.

    >>> circuits = random_circuits([2, 2], n_edges=5, n_circuits=3, seed=0)
    >>> len(circuits), min(map(len, circuits))
    (3, 5)
    """
    edges, draw = all_edges(heads_per_layer), Random(seed)
    into, out_of = defaultdict[Node, list[Edge]](list), defaultdict[Node, list[Edge]](list)
    for edge in edges:
        into[edge.receiver].append(edge)
        out_of[edge.sender].append(edge)
    return [random_circuit(edges, into, out_of, n_edges, draw) for _ in range(n_circuits)]


def random_circuit(edges: Sequence[Edge], into: EdgesOf, out_of: EdgesOf, n_edges: int, draw: Random) -> Circuit:
    """One such circuit. Every edge is on a path, so that none is without effect by construction."""
    circuit: set[Edge] = set()
    while len(circuit) < n_edges:
        circuit |= random_path(draw.choice(edges), into, out_of, draw)
    return frozenset(circuit)


def random_path(edge: Edge, into: EdgesOf, out_of: EdgesOf, draw: Random) -> set[Edge]:
    """An edge, random edges from the embedding to its sender, and random edges from its receiver to the logits."""
    path = {edge}
    first = last = edge
    while first.sender != EMBED:
        first = draw.choice(into[first.sender])
        path.add(first)
    while last.role != READOUT:
        last = draw.choice(out_of[last.receiver])
        path.add(last)
    return path

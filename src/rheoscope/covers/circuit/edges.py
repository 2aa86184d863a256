"""Edges between the embedding, heads and the logits: a graph of who reads whom, through which projection."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rheoscope.messages.message import Message

ROLES = ("q", "k", "v")
"""A head reads another one through its queries or keys (M), or through its values (F)."""
READOUT = "logits"
"""The role of edges to the logits."""
THROUGH = {"q": "M", "k": "M", "v": "F", READOUT: READOUT}
"""Role → the operator that the effect of an edge passes."""


class Node(NamedTuple):
    """A head. The embedding is layer −1, the logits are the layer after the last one."""

    layer: int
    head: int = 0


class Edge(NamedTuple):
    """What a node writes, as another one reads it through a role, along the stream and the MLPs but through no other head."""

    sender: Node
    receiver: Node
    role: str


EMBED = Node(-1)
Circuit = frozenset[Edge]


def node_name(node: Node, n_layers: int) -> str:
    """The name of a node.

    >>> node_name(EMBED, 6), node_name(Node(2, 3), 6), node_name(Node(6), 6)
    ('embed', 'L2.H3', 'logits')
    """
    if node == EMBED:
        return "embed"
    return READOUT if node.layer == n_layers else f"L{node.layer}.H{node.head}"


def edge_name(edge: Edge, n_layers: int) -> str:
    """The name of an edge.

    >>> edge_name(Edge(Node(0, 1), Node(2, 3), "k"), 6), edge_name(Edge(EMBED, Node(6), "logits"), 6)
    ('L0.H1 → L2.H3.k', 'embed → logits')
    """
    suffix = "" if edge.role == READOUT else f".{edge.role}"
    return f"{node_name(edge.sender, n_layers)} → {node_name(edge.receiver, n_layers)}{suffix}"


def through_name(role: str) -> Message:
    """What the effect of an edge passes, for people."""
    names = {
        "q": Message("M (queries)"),
        "k": Message("M (keys)"),
        "v": Message("F (values)"),
        READOUT: Message("to the logits"),
    }
    return names[role]


def all_edges(heads_per_layer: Iterable[int]) -> list[Edge]:
    """Every edge from an earlier node to a later one.

    >>> len(all_edges([2, 2])), all_edges([1])[0]
    (29, Edge(sender=Node(layer=-1, head=0), receiver=Node(layer=0, head=0), role='q'))
    """
    heads = [Node(layer, head) for layer, n_heads in enumerate(heads_per_layer) for head in range(n_heads)]
    logits = Node(heads[-1].layer + 1)
    to_heads = [
        Edge(sender, receiver, role)
        for receiver in heads
        for role in ROLES
        for sender in (EMBED, *heads)
        if sender.layer < receiver.layer
    ]
    return [*to_heads, *(Edge(sender, logits, READOUT) for sender in (EMBED, *heads))]


def upstream(circuit: Circuit, node: Node) -> Circuit:
    """The edges on paths that end at a node. What the node computes depends on these alone.

    >>> first, second = Edge(EMBED, Node(0, 1), "v"), Edge(Node(0, 1), Node(1, 0), "k")
    >>> upstream(frozenset({first, second}), Node(1, 0)) == {first, second}, upstream(frozenset({second}), Node(0, 1))
    (True, frozenset())
    """
    reached, edges = {node}, set()
    for edge in sorted(circuit, key=lambda edge: -edge.receiver.layer):
        if edge.receiver in reached:
            reached.add(edge.sender)
            edges.add(edge)
    return frozenset(edges)


def connected(edges: Iterable[Edge], n_layers: int) -> Circuit:
    """The edges on paths from the embedding to the logits.

    >>> path = [Edge(EMBED, Node(0, 1), "v"), Edge(Node(0, 1), Node(1), "logits")]
    >>> connected([*path, Edge(EMBED, Node(0, 0), "q")], 1) == set(path)
    True
    """
    towards_logits = upstream(frozenset(edges), Node(n_layers))
    reached, kept_edges = {EMBED}, set()
    for edge in sorted(towards_logits, key=lambda edge: edge.receiver.layer):
        if edge.sender in reached:
            reached.add(edge.receiver)
            kept_edges.add(edge)
    return frozenset(kept_edges)


def senders_of(edges: Iterable[Edge]) -> Iterator[tuple[Node, list[Edge]]]:
    """The edges of every sender, earlier senders first."""
    by_sender: dict[Node, list[Edge]] = {}
    for edge in sorted(edges):
        by_sender.setdefault(edge.sender, []).append(edge)
    return iter(by_sender.items())

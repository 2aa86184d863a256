"""The search for a circuit: estimates of all edges, exact effects of the candidates, the strongest connected ones, then removal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.circuit.candidates import (
    Ranking,
    choose_candidates,
    composition_ranking,
    score_ranking,
    strongest_effect,
)
from rheoscope.covers.circuit.circuit_runs import CircuitRuns
from rheoscope.covers.circuit.edges import Circuit, Edge, all_edges, connected
from rheoscope.covers.circuit.path_effects import PathEffects
from rheoscope.covers.circuit.random_circuits import random_circuits
from rheoscope.covers.patch.analysis import join_changes
from rheoscope.covers.patch.pairs import PairBatch
from rheoscope.running.progress import count_steps
from rheoscope.space.safe_arithmetic import safe_divide

Changes = dict[Edge, Float[Tensor, "2 _"]]
"""How far every edge moves the metric of every pair towards the donor's, in both directions."""
MAX_SCORED_TEXTS = 4
"""Texts whose attention scores are attributed."""
Advance = Callable[[], object]


@dataclass(frozen=True, eq=False)
class Search:
    """A circuit, and what was measured on the way.

    `removed[e]` are the metrics of every pair without edge e of the circuit, `kept_roles` those with the edges of some roles alone.
    `random` are those of random circuits with as many edges.
    """

    edges: tuple[Edge, ...]
    exact: Changes
    estimates: Changes
    compositions: Ranking
    metrics: Float[Tensor, "2 p"]
    retained: Float[Tensor, " p"]
    removed: Float[Tensor, "e p"]
    through_F: Float[Tensor, " p"]
    through_M: Float[Tensor, " p"]
    random: Float[Tensor, "draw p"]
    n_edges: int

    @property
    def total(self) -> Float[Tensor, " p"]:
        """The change of the metric by the whole text."""
        return self.metrics[0] - self.metrics[1]


@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search: those of `circuit` with the same names."""

    edges: int
    tries: int
    min_effect: float
    draws: int
    seed: int


def search_circuit(batches: Sequence[PairBatch], settings: SearchSettings) -> Search:
    """A circuit of at most `edges` edges, without those whose removal changes its faithfulness by less than `min_effect`."""
    view, tries = batches[0].clean.view, settings.tries
    metrics = torch.cat([batch.metrics for batch in batches], 1)
    effects = [PathEffects.both_directions(batch) for batch in batches]
    n_senders = 1 + view.layers * view.heads
    n_removals = settings.edges * (settings.edges + 1) // 2
    advance = count_steps(len(batches) * 2 * (n_senders + 3 * tries) + n_removals + settings.draws)
    estimates = join_changes(batches, [[paths.estimates(advance) for paths in both] for both in effects])
    compositions = composition_ranking(view)
    texts = [trace for batch in batches for trace in batch.clean][:MAX_SCORED_TEXTS]
    rankings = [pooled_strength(estimates, metrics), compositions, score_ranking(texts)]
    tried = choose_candidates(rankings, tries)
    exact = join_changes(batches, [[paths.exact(tried, advance) for paths in both] for both in effects])
    runs = [CircuitRuns.of(batch) for batch in batches]
    edges = strongest_connected(pooled_strength(exact, metrics), settings.edges, view.layers)
    circuit = prune(runs, edges, metrics, settings.min_effect, advance)
    n_heads = [heads.n_heads for heads in view.layer_heads]
    null_circuits = random_circuits(n_heads, len(circuit), settings.draws, settings.seed)
    return Search(
        edges=tuple(sorted(circuit)),
        exact=exact,
        estimates=estimates,
        compositions=compositions,
        metrics=metrics,
        random=stack_metrics(runs, [[circuit] for circuit in null_circuits], metrics, advance),
        n_edges=len(all_edges(n_heads)),
        **circuit_metrics(runs, circuit, metrics),
    )


def circuit_metrics(
    runs: Sequence[CircuitRuns], circuit: Circuit, metrics: Float[Tensor, "2 p"]
) -> dict[str, Float[Tensor, "*e p"]]:
    """The metrics of a circuit: `retained`, with the edges of some roles alone, and with each edge `removed`."""
    by_role = [frozenset(edge for edge in circuit if edge.role not in roles) for roles in ("qk", "v")]
    retained, through_F, through_M = kept_metrics(runs, [circuit, *by_role])
    removed = stack_metrics(runs, [[circuit - {edge} for edge in sorted(circuit)]], metrics)
    return {"retained": retained, "through_F": through_F, "through_M": through_M, "removed": removed}


def pooled_strength(changes: Changes, metrics: Float[Tensor, "2 p"]) -> dict[Edge, float]:
    """The effect of every edge over all pairs, the larger one of both directions."""
    if not changes:
        return {}
    sums = torch.stack([change.sum(1) for change in changes.values()], 1)
    total = (metrics[0] - metrics[1]).sum()
    strengths = strongest_effect(safe_divide(sums, total.abs())).nan_to_num()
    return dict(zip(changes, strengths.tolist(), strict=True))


def strongest_connected(strengths: Ranking, max_edges: int, n_layers: int) -> Circuit:
    """The largest set of at most `max_edges` edges on paths from the embedding to the logits, added in order of strength."""
    order = sorted(strengths, key=lambda edge: (-strengths[edge], edge))
    circuit: Circuit = frozenset()
    for n_added in range(1, len(order) + 1):
        next_circuit = connected(order[:n_added], n_layers)
        if len(next_circuit) > max_edges:
            return circuit
        circuit = next_circuit
    return circuit


def prune(
    runs: Sequence[CircuitRuns], circuit: Circuit, metrics: Float[Tensor, "2 p"], min_effect: float, advance: Advance
) -> Circuit:
    """The circuit after edges are removed, one at a time, while the weakest changes the faithfulness by less than `min_effect`."""
    n_layers = runs[0].frozen.view.layers
    total = (metrics[0] - metrics[1]).sum()
    while circuit:
        smaller = [connected(circuit - {edge}, n_layers) for edge in sorted(circuit)]
        retained, *without = kept_metrics(runs, [circuit, *smaller]).sum(1)
        losses = (torch.stack([retained - metric for metric in without]) / total).abs()
        weakest = int(losses.argmin())
        for _ in smaller:
            advance()
        if losses[weakest] >= min_effect:
            return circuit
        circuit = smaller[weakest]
    return circuit


def kept_metrics(runs: Sequence[CircuitRuns], circuits: Sequence[Circuit]) -> Float[Tensor, "c p"]:
    """The metric of every pair with only each circuit retained."""
    return torch.cat([batch_runs.metrics(circuits) for batch_runs in runs], 1)


def stack_metrics(
    runs: Sequence[CircuitRuns],
    groups: Sequence[Sequence[Circuit]],
    metrics: Float[Tensor, "2 p"],
    advance: Advance = lambda: None,
) -> Float[Tensor, "c p"]:
    """The same for groups of circuits, one group after the other. There may be none."""
    rows = [metrics[:0]]
    for circuits in groups:
        rows += [kept_metrics(runs, circuits)] if circuits else []
        advance()
    return torch.cat(rows)

"""Tests of `circuit`: hand-written hooks on five architectures, laws of the kept circuit, planted circuits, and refused models."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.covers.circuit.circuit_runs import CircuitRuns
from rheoscope.covers.circuit.edges import EMBED, Edge, Node, all_edges, connected
from rheoscope.covers.circuit.path_effects import PathEffects
from rheoscope.covers.circuit.random_circuits import random_circuits
from rheoscope.covers.patch.over_pairs import as_pairs
from rheoscope.covers.patch.pairs import PairBatch, batch_pairs
from rheoscope.shapes import RheoscopeError
from tests.cases import default, double, network, text
from tests.covers.planted_circuits import circuit_pairs, plant_induction, planted_edges

CLEAN, CORRUPT = text().tolist(), text(1).tolist()
HEADS = 4
ROLES = ("q", "k", "v")


def pair_batch(name: str, pairs: Any = ((CLEAN, CORRUPT),)) -> PairBatch:
    [batch] = batch_pairs(double(name), as_pairs(pairs), "", "logit_diff", -1, 4096)
    return batch


class Place:
    """Where a network holds what the heads of a layer read and write: modules and columns."""

    def __init__(self, block: str, projection: str, reads: Callable[[str, int, int], tuple[str, slice]]) -> None:
        self.block, self.projection, self.reads = block, projection, reads


def separate(role: str, head: int, width: int) -> tuple[str, slice]:
    """Two heads share their keys and values."""
    index = head if role == "q" else head // 2
    return f"self_attn.{role}_proj", slice(index * width, (index + 1) * width)


def fused(role: str, head: int, width: int) -> tuple[str, slice]:
    start = (ROLES.index(role) * HEADS + head) * width
    return "attn.c_attn", slice(start, start + width)


def interleaved(role: str, head: int, width: int) -> tuple[str, slice]:
    start = (3 * head + ROLES.index(role)) * width
    return "attention.query_key_value", slice(start, start + width)


PLACES = {
    "gpt2": Place("transformer.h.{}", "attn.c_proj", fused),
    "llama": Place("model.layers.{}", "self_attn.o_proj", separate),
    "gemma3": Place("model.layers.{}", "self_attn.o_proj", separate),
    "qwen3": Place("model.layers.{}", "self_attn.o_proj", separate),
    "neox": Place("gpt_neox.layers.{}", "attention.dense", interleaved),
}


class PlainPaths:
    """Path patching by forward hooks on the network alone."""

    def __init__(self, name: str) -> None:
        self.network, self.place = network(name, torch.float64).eval(), PLACES[name]
        self.n_layers = double(name).view.layers

    def module(self, layer: int, name: str) -> Any:
        return self.network.get_submodule(self.place.block.format(layer)).get_submodule(name)

    @contextmanager
    def hooks(self, changes: dict[Any, Callable[[Tensor], Tensor]], side: str) -> Iterator[None]:
        with ExitStack() as stack:
            for module, change in changes.items():
                handle = (
                    module.register_forward_pre_hook(lambda module, args, f=change: (f(args[0]), *args[1:]))
                    if side == "in"
                    else module.register_forward_hook(lambda module, args, out, f=change: f(out))
                )
                stack.callback(handle.remove)
            yield

    def log_probs(self, ids: list[int]) -> Tensor:
        return self.network(torch.tensor([ids])).logits[0, -1].log_softmax(-1)

    def head_outputs(self, ids: list[int]) -> list[Tensor]:
        """What the output projection of every layer reads."""
        seen: dict[int, Tensor] = {}
        modules = {
            self.module(layer, self.place.projection): lambda x, layer=layer: seen.setdefault(layer, x.clone())
            for layer in range(self.n_layers)
        }
        with self.hooks(modules, "in"):
            self.log_probs(ids)
        return [seen[layer] for layer in range(self.n_layers)]

    def path(self, base: list[int], donor: list[int], edge: Edge) -> Tensor:
        """The log probabilities of the base text with one edge from the donor."""
        outputs = self.head_outputs(base)
        width = outputs[0].shape[-1] // HEADS
        if edge.sender != EMBED:
            columns = slice(edge.sender.head * width, (edge.sender.head + 1) * width)
            outputs[edge.sender.layer][..., columns] = self.head_outputs(donor)[edge.sender.layer][..., columns]
        frozen = {
            self.module(layer, self.place.projection): lambda x, layer=layer: outputs[layer]
            for layer in range(self.n_layers)
        }
        seen: list[Tensor] = []
        if edge.role == "logits":
            with self.hooks(frozen, "in"):
                return self.log_probs(donor if edge.sender == EMBED else base)
        name, columns = self.place.reads(edge.role, edge.receiver.head, width)
        read_module = self.module(edge.receiver.layer, name)
        with (
            self.hooks(frozen, "in"),
            self.hooks({read_module: lambda x: (seen.append(x[..., columns].clone()), x)[1]}, "out"),
        ):
            self.log_probs(donor if edge.sender == EMBED else base)
        return self.log_probs_with_head(base, edge.receiver, read_module, columns, seen[0])

    def log_probs_with_head(
        self, base: list[int], node: Node, read_module: Any, columns: slice, read: Tensor
    ) -> Tensor:
        """The log probabilities if this head alone has what it computes from `read`; other heads may share its keys."""
        with self.hooks({read_module: lambda x: written_into(x, columns, read)}, "out"):
            outputs = self.head_outputs(base)[node.layer]
        width = outputs.shape[-1] // HEADS
        own = slice(node.head * width, (node.head + 1) * width)
        projection = self.module(node.layer, self.place.projection)
        with self.hooks({projection: lambda x: written_into(x, own, outputs[..., own])}, "in"):
            return self.log_probs(base)


def written_into(x: Tensor, columns: slice, values: Tensor) -> Tensor:
    changed = x.clone()
    changed[..., columns] = values
    return changed


@pytest.mark.parametrize("name", PLACES)
@torch.no_grad()
def test_path_patching_equals_hand_written_hooks(name: str) -> None:
    plain, batch = PlainPaths(name), pair_batch(name)
    logits, receiver = Node(plain.n_layers), Node(1, 2)
    edges = [Edge(sender, receiver, role) for sender in (EMBED, Node(0, 1)) for role in ROLES]
    edges += [Edge(EMBED, logits, "logits"), Edge(Node(0, 1), logits, "logits")]
    texts = (CORRUPT, CLEAN), (CLEAN, CORRUPT)
    for paths, (base, donor) in zip(PathEffects.both_directions(batch), texts, strict=True):
        exact = paths.exact(edges, lambda: None)
        for edge in edges:
            expected = batch.measure(plain.path(base, donor, edge)[None])
            assert exact[edge].tolist() == pytest.approx(expected.tolist(), abs=1e-6), edge


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "neox", "own_alibi"])
@torch.no_grad()
def test_all_edges_are_the_clean_text_and_none_the_other(name: str) -> None:
    batch = pair_batch(name, [(CLEAN, CORRUPT), (CORRUPT, text(2).tolist())])
    edges = all_edges(heads.n_heads for heads in batch.clean.view.layer_heads)
    everything, nothing, through_F = CircuitRuns.of(batch).metrics(
        [frozenset(edges), frozenset(), frozenset(edge for edge in edges if edge.role not in "qk")]
    )
    assert everything.tolist() == pytest.approx(batch.metrics[0].tolist(), abs=1e-9)
    assert nothing.tolist() == pytest.approx(batch.metrics[1].tolist(), abs=1e-9)
    assert float((through_F - everything).abs().min()) > 1e-6


@torch.no_grad()
def test_a_kept_chain_equals_its_steps_by_hand() -> None:
    """embed → L0.H1.v, L0.H1 → L1.H2.k, L1.H2 → logits."""
    plain, batch = PlainPaths("gpt2"), pair_batch("gpt2")
    chain = [Edge(EMBED, Node(0, 1), "v"), Edge(Node(0, 1), Node(1, 2), "k"), Edge(Node(1, 2), Node(2), "logits")]
    outputs = plain.head_outputs(CORRUPT)
    width = outputs[0].shape[-1] // HEADS
    projection = plain.place.projection

    def frozen() -> Any:
        return plain.hooks({plain.module(layer, projection): lambda x, y=outputs[layer]: y for layer in (0, 1)}, "in")

    def output_of(layer: int, head: int, role: str, ids: list[int]) -> Tensor:
        """The output of a head on the corrupt text whose role reads the frozen run of `ids`."""
        name, columns = plain.place.reads(role, head, width)
        seen: list[Tensor] = []
        with frozen(), plain.hooks({plain.module(layer, name): lambda x: (seen.append(x.clone()), x)[1]}, "out"):
            plain.log_probs(ids)

        def write(x: Tensor) -> Tensor:
            return torch.cat([x[..., : columns.start], seen[0][..., columns], x[..., columns.stop :]], -1)

        own = slice(head * width, (head + 1) * width)
        with plain.hooks({plain.module(layer, name): write}, "out"):
            return plain.head_outputs(CORRUPT)[layer][..., own]

    first = output_of(0, 1, "v", CLEAN)
    outputs[0] = torch.cat([outputs[0][..., :width], first, outputs[0][..., 2 * width :]], -1)
    second = output_of(1, 2, "k", CORRUPT)
    outputs[0] = plain.head_outputs(CORRUPT)[0]
    outputs[1] = torch.cat([outputs[1][..., : 2 * width], second, outputs[1][..., 3 * width :]], -1)
    with frozen():
        expected = batch.measure(plain.log_probs(CORRUPT)[None])
    assert CircuitRuns.of(batch).metrics([frozenset(chain)])[0].tolist() == pytest.approx(expected.tolist(), abs=1e-9)


@torch.no_grad()
def test_estimates_agree_with_exact_effects_of_small_differences() -> None:
    """Where the donor differs little from the base, its effect is linear: estimates are exact to first order."""
    paths, _ = PathEffects.both_directions(pair_batch("gpt2"))
    base, donor = paths.frozen.outputs[0], paths.donor.outputs[0]
    donor[:] = base + 1e-5 * (donor - base)
    edges = [edge for edge in all_edges([HEADS, HEADS]) if edge.sender != EMBED and edge.role != "logits"]
    exact, estimates = (
        np.array([float(metrics[edge] - paths.runs.base_metric) for edge in edges])
        for metrics in (paths.exact(edges, lambda: None), paths.estimates(lambda: None))
    )
    assert np.abs(exact).max() > 1e-8
    assert estimates == pytest.approx(exact, rel=1e-2, abs=1e-3 * np.abs(exact).max())


@pytest.mark.parametrize("kind", ["value", "key", "query", "all"])
def test_planted_circuits_are_recovered(kind: str) -> None:
    edges = []
    for seed in range(3):
        planted = plant_induction(seed)
        result = rs.circuit_of_pairs(planted.model, circuit_pairs(kind, seed))
        expected, names = planted_edges(kind, planted), set(result.edge.values.tolist())
        edges.append((len(names & expected), len(names), len(expected)))
        assert float(result.faithfulness) > 0.9 > 0.6 > float(result.faithfulness_null_draws.max())
    shared, recovered, planted_total = np.sum(edges, 0)
    assert shared / recovered >= 0.9
    assert shared / planted_total >= 0.9


def test_a_circuit_of_a_text_says_what_it_acts_through() -> None:
    model = default()
    result = rs.circuit(
        model, model.trace("The men who live here"), "The man who live here", " are| is", edges=8, tries=10
    )
    edges = dict(zip(result.edge.values.tolist(), result.through.values.tolist(), strict=True))
    assert edges["L5.H1 → logits"] == "logits"
    assert edges["embed → L2.H3.v"] == edges["L2.H3 → L5.H1.v"] == "F"
    assert float(result.faithfulness_F) > 0.3 > 0.1 > float(result.faithfulness_M)
    assert float(result.estimate_correlation) > 0.9
    assert result.removal.values.tolist() == sorted(result.removal.values.tolist(), reverse=True)
    assert int(result.edges_tried) <= 30 < int(result.edges_total)


def test_one_pair_gives_the_circuit_of_its_text_and_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = double("gpt2"), {"edges": 6, "tries": 12, "metric": "kl"}
    single = rs.circuit(model, model.trace(CLEAN), CORRUPT, **settings)
    result = rs.circuit_of_pairs(model, [(CLEAN, CORRUPT)], **settings)
    assert result.edge.values.tolist() == single.edge.values.tolist()
    for name in single.data_vars:
        assert result[name].values == pytest.approx(single[name].values, abs=1e-9, nan_ok=True), name
    pairs = [(CLEAN, CORRUPT), (CORRUPT, text(2).tolist())]
    together = rs.circuit_of_pairs(model, pairs, **settings)
    monkeypatch.setattr("rheoscope.covers.circuit.analysis.TOKENS_PER_RUN", len(CLEAN))
    one_by_one = rs.circuit_of_pairs(model, pairs, **settings)
    for name in together.data_vars:
        assert one_by_one[name].values == pytest.approx(together[name].values, abs=1e-9, nan_ok=True), name


def test_a_model_without_predictions_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="has no unembedding, expected a language model"):
        rs.circuit(double("bert"), double("bert").trace(CLEAN))


def test_a_model_whose_heads_are_gated_is_refused() -> None:
    model = double("own_gated")
    with pytest.raises(RheoscopeError, match="scales the outputs of its heads by a gate or a norm"):
        rs.circuit(model, model.trace(CLEAN), CORRUPT)


def test_random_circuits_have_as_many_edges_and_lie_on_paths() -> None:
    circuits = random_circuits([3, 2, 3], n_edges=12, n_circuits=20, seed=0)
    assert circuits == random_circuits([3, 2, 3], n_edges=12, n_circuits=20, seed=0)
    assert len(set(circuits)) == 20
    for edges in circuits:
        assert 12 <= len(edges) < 16
        assert connected(edges, 3) == edges
    assert random_circuits([3, 2, 3], n_edges=0, n_circuits=1, seed=0) == [frozenset()]
    edge_total = len(all_edges([2, 2]))
    assert len(random_circuits([2, 2], edge_total, 1, seed=0)[0]) == edge_total


def test_random_circuits_are_measured_as_the_circuit_is() -> None:
    model, batch = double("gpt2"), pair_batch("gpt2")
    result = rs.circuit(model, model.trace(CLEAN), CORRUPT, edges=9, tries=12, draws=3)
    circuits = random_circuits([HEADS, HEADS], result.sizes["edge"], 3, seed=0)
    expected = (CircuitRuns.of(batch).metrics(circuits)[:, 0] - batch.metrics[1]) / (
        batch.metrics[0] - batch.metrics[1]
    )
    assert result.faithfulness_null_draws.values == pytest.approx(expected.tolist(), abs=1e-9)
    assert rs.circuit(model, model.trace(CLEAN), CORRUPT, edges=9, tries=12, draws=0).sizes["draw"] == 0

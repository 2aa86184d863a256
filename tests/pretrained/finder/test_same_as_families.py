"""The finder gives the same View as the files of the families, which people wrote: in float64, to 1e-6."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.pretrained import families
from rheoscope.pretrained.build_view import describe_model
from rheoscope.pretrained.families import FAMILIES
from rheoscope.pretrained.hf_model import Pretrained
from rheoscope.running.stream import taps
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import Norm
from tests.pretrained.cases import EVERY, KINDS, gap, network, once, randomised, text
from tests.pretrained.variants import VARIANTS

TOLERANCE = 1e-6


@once
def built(name: str) -> Any:
    """The network of a case or of a variant, in float64."""
    return network(name, torch.float64) if name in EVERY else randomised(VARIANTS[name]()).double()


def described(name: str, by_finder: bool) -> Pretrained:
    """The model of a network by the file of its family, or by the finder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(families, "FAMILIES", {} if by_finder else FAMILIES)
        model = describe_model(built(name), None, name)
    assert (model.view.facts["family"] == "found") == by_finder
    return model


@once
def both(name: str) -> tuple[Pretrained, Pretrained]:
    """The model of the finder, and that of the family."""
    return described(name, by_finder=True), described(name, by_finder=False)


every = pytest.mark.parametrize("name", [name for name in (*KINDS, *VARIANTS) if name != "gpt2 upcast"])
"""GPT-2 cannot upcast in float64."""


@every
def test_the_finder_reads_and_changes_a_network_at_the_same_points(name: str) -> None:
    recorded, written = (model.description for model in both(name))
    assert [tap.step for tap in taps(recorded)] == [tap.step for tap in taps(written)]
    assert [tap.module for tap in taps(recorded) if tap.side == "in"] == [
        tap.module for tap in taps(written) if tap.side == "in"
    ]
    assert recorded.output_projections == written.output_projections
    assert recorded.attention_modules == written.attention_modules


@every
def test_the_finder_gives_the_view_of_the_family(name: str) -> None:
    recorded_model, written_model = both(name)
    recorded, written = recorded_model.view, written_model.view
    assert recorded_model.description.is_encoder == written_model.description.is_encoder
    assert {**recorded.facts, "family": ""} == {**written.facts, "family": ""}
    assert (recorded.context_length, recorded.logit_cap, recorded.dtype) == (
        written.context_length, written.logit_cap, written.dtype,
    )  # fmt: skip
    ids = text()
    assert_same(recorded.token_embeddings(ids), written.token_embeddings(ids))
    points = written_model.trace(ids).points
    assert_same(recorded_model.trace(ids).points, points)
    assert_same_norms(recorded.final_norm, written.final_norm, points[-1])
    for name_of_map in ("unembed", "unembed_bias"):
        assert_same(getattr(recorded, name_of_map), getattr(written, name_of_map))
    assert_same_functions(recorded.prediction_head, written.prediction_head, points[-1])
    trace = written_model.trace(ids)
    for layer, heads in enumerate(zip(recorded.layer_heads, written.layer_heads, strict=True)):
        assert_same_heads(*heads, trace.layer_input(layer))
        assert_same_functions(recorded.mlps[layer], written.mlps[layer], trace.layer_input(layer))


def assert_same_heads(recorded: Heads, written: Heads, points: Tensor) -> None:
    """The same M at several distances, F, biases, norms, masks and positions; hence the same scores, weights and displacements."""
    assert recorded.n_heads == written.n_heads
    assert type(recorded.mechanism.score) is type(written.mechanism.score)
    for raw in (False, True):
        for offset in (0, 3, -7):
            assert_same(dense(recorded.M(raw)(offset)), dense(written.M(raw)(offset)))
        assert_same(dense(recorded.F(raw)), dense(written.F(raw)))
    assert_same(query_bias(recorded), query_bias(written))
    for bias in ("b_K", "b_V", "b_O"):
        assert_same(getattr(recorded, bias), getattr(written, bias))
    assert_same_norms(recorded.norm, written.norm, points)
    for norm, x in (("q_norm", 0), ("k_norm", 1), ("output_norm", None)):
        rows = points if x is None else written.project(written.norm.apply(points[None]))[x]
        assert_same_norms(getattr(recorded, norm), getattr(written, norm), rows)
    for head in range(recorded.n_heads):
        assert_same(recorded.scores(points, head), written.scores(points, head))
    assert_same(recorded.all_weights(points), written.all_weights(points))
    assert_same(recorded.displacements(points), written.displacements(points))
    assert_same(recorded.bias(points), written.bias(points))
    positions = torch.arange(40)
    assert torch.equal(recorded.mechanism.mask(positions, positions), written.mechanism.mask(positions, positions))


def query_bias(heads: Heads) -> Tensor | None:
    """The bias of queries times the scale, which the network may apply to queries or to scores (OPT)."""
    return None if heads.b_Q is None else heads.b_Q * heads.scale


def assert_same_norms(recorded: Norm | None, written: Norm | None, x: Tensor) -> None:
    """The same gain, bias and constant."""
    assert (recorded is None) == (written is None)
    if recorded is None or written is None:
        return
    assert (recorded.eps, recorded.subtracts_mean) == (pytest.approx(written.eps), written.subtracts_mean)
    assert_same(recorded.gain, written.gain)
    assert_same(recorded.bias, written.bias)
    assert_same(recorded.normed(x), written.normed(x))


def assert_same_functions(
    recorded: Callable[[Tensor], Tensor] | None, written: Callable[[Tensor], Tensor] | None, x: Tensor
) -> None:
    assert (recorded is None) == (written is None)
    if recorded is not None and written is not None:
        assert_same(recorded(x), written(x))


def assert_same(recorded: Tensor | None, written: Tensor | None) -> None:
    """Equal to 1e-6 of the largest number. None stands for 0."""
    if recorded is None or written is None:
        present = written if recorded is None else recorded
        assert present is None or not bool(present.any())
        return
    assert gap(recorded, written) <= TOLERANCE * max(1.0, float(written.detach().abs().max()))


def dense(factored: Any) -> Tensor:
    return factored.left @ factored.right

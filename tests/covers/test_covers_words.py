"""Tests of the lines of the story about heads: which are at work, and which pairs a projection separates or merges."""

import numpy as np
import pytest
import xarray as xr

import rheoscope as rs
from rheoscope.catalogue import analysis_by_name
from rheoscope.covers.distorted_pairs.words import first_pair, seen_through
from rheoscope.covers.head_types.words import N_HEADS, TYPE_NAMES, heads_at_work, writing_heads
from rheoscope.messages.numbers import format_number
from rheoscope.picture.token_labels import display_token
from tests.report.cases import TEXT, flow_results, model


def test_the_heads_at_work_are_those_that_contribute_most() -> None:
    results = flow_results()
    lens, types = results.datasets["readout"], results.datasets["head_types"]
    heads = writing_heads(lens.component.values, lens.attribution.values)[:N_HEADS]
    sentences, uniform = str(heads_at_work(results)).rsplit("; equal weights would be ", 1)
    assert len(sentences.split(" · L")) == N_HEADS
    trace = model().trace(TEXT)
    assert uniform == format_number(1 / len(trace))
    for layer, head in heads:
        weights = trace.weights(layer, head)[-1]
        key, kind = int(weights.argmax()), TYPE_NAMES[str(types.type.values[layer, head])]
        expected = f"L{layer}.H{head} reads {display_token(trace.tokens[key])} at {key} ("
        assert f"{expected}{format_number(float(weights.max()))} of its weight; {kind})" in sentences


def test_every_type_of_a_head_has_a_name() -> None:
    kinds = {str(kind) for kind in flow_results().datasets["head_types"].type.values.ravel()}
    definition = analysis_by_name("head_types").fields["type"].definition
    assert kinds <= set(TYPE_NAMES), definition


def test_negative_contributions_count_by_their_size() -> None:
    components = np.array(["L0.H0", "embed", "L1.H3", "L1.mlp", "L10.H12"])
    assert writing_heads(components, np.array([1.0, 9.0, -2.0, 5.0, 1.5])) == [(1, 3), (10, 12), (0, 0)]
    assert writing_heads(np.array(["embed", "L0.mlp"]), np.ones(2)) == []


def test_the_head_that_preserves_distances_least_is_shown_with_its_pairs() -> None:
    distortion = flow_results().datasets["distortion"]
    rsa = distortion.rsa.values.copy()
    image = [str(name) for name in distortion.image.values].index("key")
    place = [slice(None)] * rsa.ndim
    place[distortion.rsa.get_axis_num("image")] = image
    rsa[tuple(place)] = 0.6
    layer_and_head = [0] * rsa.ndim
    layer_and_head[distortion.rsa.get_axis_num("image")] = image
    layer_and_head[distortion.rsa.get_axis_num("layer")], layer_and_head[distortion.rsa.get_axis_num("head")] = 2, 1
    rsa[tuple(layer_and_head)] = 0.12
    line = seen_through(flow_results().with_result("distortion", distortion.assign(rsa=distortion.rsa.copy(data=rsa))))
    pairs = rs.distorted_pairs(model().trace(TEXT), layer=2, head=1, image="key", top=40)
    separated, merged = (first_pair(pairs.sel(kind=kind)) for kind in ("torn", "glued"))
    assert line.startswith(f"as keys of L2.H1, {separated} are separated (near in E) and {merged} merged (far in E); ")
    assert line.endswith("distances before and after correlate by .12, in all heads by .58")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([" a", " b"], ["a", " c"], "·b / ·c"),
        ([" a", " b"], [" a", " b"], "·a / ·a"),
    ],
)
def test_a_pair_of_different_tokens_is_preferred(first: list[str], second: list[str], expected: str) -> None:
    pairs = xr.Dataset({"earlier_token_text": ("pair", first), "later_token_text": ("pair", second)})
    assert str(first_pair(pairs)) == expected

"""Tests of the lines of the story about heads: which are at work, and which pairs a projection separates or merges."""

import numpy as np
import pytest
import xarray as xr

import rheoscope as rs
from rheoscope.catalogue import analysis_by_name
from rheoscope.covers.distorted_pairs.words import first_pair, seen_through
from rheoscope.covers.head_types.head_list import TYPE_NAMES
from rheoscope.covers.head_types.reading_arcs import N_HEADS
from rheoscope.covers.head_types.words import heads_at_work
from rheoscope.messages.numbers import format_number
from rheoscope.picture.token_labels import display_token
from rheoscope.space.components import heads_by_contribution
from tests.report.cases import TEXT, flow_results, model


def test_the_heads_at_work_are_those_that_contribute_most() -> None:
    results = flow_results()
    lens, types = results.datasets["readout"], results.datasets["head_types"]
    heads = heads_by_contribution(lens.component.values, lens.attribution.values)[:N_HEADS]
    sentences, uniform = str(heads_at_work(results)).rsplit("; equal weights would be ", 1)
    assert len(sentences.split(" · L")) == N_HEADS
    trace = model().trace(TEXT)
    assert uniform == f"1/{len(trace)}"
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
    assert heads_by_contribution(components, np.array([1.0, 9.0, -2.0, 5.0, 1.5])) == [(1, 3), (10, 12), (0, 0)]
    assert heads_by_contribution(np.array(["embed", "L0.mlp"]), np.ones(2)) == []


def test_the_pairs_of_the_first_head_at_work_are_shown_with_their_ranks() -> None:
    lens = flow_results().datasets["readout"]
    layer, head = heads_by_contribution(lens.component.values, lens.attribution.values)[0]
    pairs = rs.distorted_pairs(model().trace(TEXT), layer=layer, head=head, projection="key", top=40)
    separated, merged = (first_pair(pairs.sel(kind=kind)) for kind in ("separated", "merged"))
    line = str(seen_through(flow_results()))
    assert line.startswith(f"as keys of L{layer}.H{head}, {separated.names} are separated and {merged.names} merged; ")
    assert line.endswith(f"{separated.ranks} and {merged.ranks} of all pairs")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([" a", " b"], ["a", " c"], "·b / ·c"),
        ([" a", " b"], [" a", " b"], "·a / ·a"),
    ],
)
def test_a_pair_of_different_tokens_is_preferred(first: list[str], second: list[str], expected: str) -> None:
    texts = {"earlier_token_text": ("pair", first), "later_token_text": ("pair", second)}
    ranks = {f"distance_rank_{when}": ("pair", [0.02, share]) for when, share in (("before", 0.04), ("after", 0.9))}
    pair = first_pair(xr.Dataset(texts | ranks))
    assert str(pair.names) == expected
    assert str(pair.ranks) == ("4 % → 90 %" if first != second else "2 % → 2 %")

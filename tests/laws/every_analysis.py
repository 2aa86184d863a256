"""Tests of every analysis: a change of the weights that leaves the logits unchanged leaves every field unchanged.

A number that depends on the gauge is no property of the model. All gauges of a model are applied at once. If a field changes,
every gauge is applied alone to name the cause. every_move.py tests that every gauge alone leaves the logits unchanged.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from torch import Tensor, tensor

import rheoscope as rs
from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.model_parts import ModelRotary
from tests.cases import BIDIRECTIONAL, CAUSAL, double, model, text
from tests.laws.moves import (
    GAUGES,
    KINDS,
    assert_same_fields,
    assert_unchanged,
    distinct_tokens,
    fold_gains,
    gauges,
    head_permutation,
    is_tied,
    marked_fields,
    model_after,
    move_key_bias,
    move_unembedding,
    permute_heads,
    rotate_axes,
)
from tests.pretrained.cases import once


def five_texts() -> list[Tensor]:
    return [text(seed) for seed in range(5)]


Call = Callable[[Any], Any]
"""A function from a model to a Dataset."""
BY_HEAD = {"distorted_pairs", "score_attribution"}
"""Analyses of one head, which are run for all four heads of a layer."""
TWO_SENSES = {
    str(token): {"a": [[3, 4, token], [5, 6, 9, token]], "b": [[token + 1, 30, token], [21, 12 + token, token]]}
    for token in (7, 9, 14, 17, 20)
}
"""Sentences of token ids for as many words as a confidence interval needs."""
GROUPS = {str(token): [[token], [token + 1], [token + 15]] for token in (7, 9, 11, 13, 15)}
SETTINGS: dict[str, dict[str, Any]] = {
    "frames": {"n_frames": 3},
    "readout": {"draws": 20},
    "trajectory": {"draws": 20},
    "transport": {"draws": 5, "step_draws": 2},
    "rollout": {"probes": 4},
    "massive_tokens": {"norm_ratio": 1.02},
    "agreement": {"draws": 0, "min_keys": 4},
    "prefix_stability": {"prefixes": [[7, 19, 4], [30, 5, 5, 21]], "min_keys": 3},
    "operators": {"draws": 3},
    "distortion": {"n_neighbours": 3, "draws": 2},
    "stack": {"draws": 2},
    "composition": {"top": 1},
    "head_types": {"local_window": 2},
    "heat": {"draws": 3, "times": (1, 4)},
    "density_clusters": {"min_cluster_size": 2},
    "purity": {"draws": 20},
    "senses": {"word_list": TWO_SENSES, "draws": 20},
    "relatedness": {"word_list": GROUPS, "carrier_sentences": [[3, 4], [19, 5, 6]], "draws": 20},
    "relation_swap": {"draws": 0},
    "charts": {"n_neighbours": 4, "draws": 2},
    "distorted_pairs": {"layer": 1},
    "score_attribution": {"layer": 1},
    "fixed_point": {"layers": [1], "iterations": 6, "applications": 3, "draws": 20},
    "boundary": {"layers": [1], "iterations": 6, "applications": 3},
    "reversed_attention": {"target": 7},
    "circuit": {"edges": 16, "tries": 1000, "min_effect": 0.0, "draws": 0},
    "attention_patching": {"target": 7, "etas": (-0.1, 0.0)},
    "surgery": {"M": "symmetric", "F": "rank 3", "comparisons": rs.Comparisons(("mean", "uniform"))},
    "decay": {"M": "symmetric"},
    "faithfulness": {"targets": [5, 6, 7, 8, 9], "fractions": (0.0, 0.5), "draws": 1},
}
"""Settings that differ from the defaults. Random controls depend on the gauge, and the texts are short."""
ROTATED_SETTINGS = SETTINGS | {
    name: SETTINGS[name] | {"iterations": 64, "tolerance": 1e-5} for name in ("fixed_point", "boundary")
}
"""Settings for rotated axes. A random start differs there, so the iterations equal the coordinates of two tokens."""
TEXTS: dict[str, Callable[[], Any]] = {
    "transport": distinct_tokens,
    "distorted_pairs": distinct_tokens,
    "fixed_point": lambda: text(n=2),
    "boundary": lambda: [[3, 9, 12, 5], [8, 12, 5]],
    "surgery": five_texts,
    "decay": five_texts,
    "faithfulness": five_texts,
}
"""Inputs of the analyses that do not use one text with a repeated token."""
COMPARABLE: dict[str, Callable[[Any], Any]] = {
    "purity": lambda dataset: dataset.drop_vars("purity_z"),  # undefined if no type occurs twice
    "composition": lambda dataset: dataset.drop_dims("kind"),
    "patch_estimates": lambda dataset: dataset.drop_dims("sampled_head").drop_vars(["head_correlation", "head_error"]),
    "score_attribution": lambda dataset: dataset.drop_vars("weight"),
    "decay": lambda dataset: dataset.drop_sel(change="isotropic"),
    "faithfulness": lambda dataset: dataset.drop_sel(ranking="random", other_ranking="random"),
}
"""The comparable part of a result: no random draws, no lists of the largest values and no empty fields."""


def for_all_heads(make: Callable[[int], Any]) -> Any:
    """The result of an analysis of one head for all four heads, along a new axis."""
    import xarray as xr

    return xr.concat([make(head) for head in range(4)], "head")


@cache
def traced(model: Any, ids: tuple[int, ...]) -> Any:
    """The trace of a text, computed once for all analyses."""
    return model.trace(tensor(ids))


def call(
    name: str, settings: dict[str, dict[str, Any]] = SETTINGS, texts: dict[str, Callable[[], Any]] = TEXTS
) -> Call:
    """A function that runs an analysis of the catalogue on a model."""
    analysis, make_text = analysis_by_name(name), texts.get(name, text)

    def run(model: Any) -> Any:
        ids = make_text()
        subjects = {
            "view": lambda: model.view,
            "model": lambda: model,
            "trace": lambda: traced(model, tuple(ids.tolist())),
        }
        subjects |= dict.fromkeys(("text", "texts"), lambda: ids)
        arguments = {subject: subjects[subject]() for subject in analysis.subjects} | settings.get(name, {})
        if name in BY_HEAD:
            return for_all_heads(lambda head: analysis.ask(**arguments, head=head))
        return analysis.ask(**arguments)

    return lambda model: COMPARABLE.get(name, lambda dataset: dataset)(run(model))


def labelled(name: str, x: Tensor) -> Any:
    """A map over queries and keys as a Dataset."""
    field = Field(("query", "key"), "a map")
    return Analysis(name, "A map?", lambda trace: None, "trace", {"map": field}).label({"map": x}, {}, {})


OTHER_FUNCTIONS: dict[str, Call] = {
    "over_texts": lambda model: rs.over_texts(
        rs.agreement, [model.trace(text(seed)) for seed in range(4)], draws=0, min_keys=4, splits=4
    ),
    "score_attribution of a score": lambda model: for_all_heads(
        lambda head: rs.score_attribution(model.trace(text()), layer=1, head=head, query=9, key=8)
    ),
    "path_weights": lambda model: for_all_heads(
        lambda head: labelled("path_weights", rs.path_weights(model.trace(text()), [(0, head), (1, head)]))
    ),
    "reversed_map": lambda model: for_all_heads(
        lambda head: labelled("reversed_map", rs.reversed_map(model, model.trace(text()), 1, head, target=7))
    ),
    "surgery of each head": lambda model: rs.surgery(
        model, five_texts(), heads=model.view.head_indices(1), per_head=True, **SETTINGS["surgery"]
    ),
    "trace_under": lambda model: rs.trajectory(rs.trace_under(model, text(), M="symmetric", F="rank 3")),
}
"""Public functions that are not analyses of the catalogue, and analyses with other settings."""


def call_of(name: str, settings: dict[str, dict[str, Any]] = SETTINGS) -> Call:
    """The function under test of this name: an analysis of the catalogue, or another function."""
    return OTHER_FUNCTIONS[name] if name in OTHER_FUNCTIONS else call(name, settings)


WITHOUT_MODEL = {"Comparisons", "Pair", "read_pairs"}
WITH_DICTIONARY = {"feature_map", "feature_quality"}
"""They need a dictionary: tests/covers/test_features.py tests their laws."""
GENERATES = {"generate"}
"""tests/flow/test_generation.py tests its laws."""
OVER_PAIRS = {"patch_pairs", "circuit_of_pairs"}
"""Sums over pairs of numbers that are tested for one pair."""
SLOW = {"patch", "circuit", "patch_estimates", "relation_swap", "rollout", "fixed_point", "boundary", "reversed_attention",
           "attention_patching", "surgery", "decay", "faithfulness", "reversed_map", "surgery of each head", "trace_under"}  # fmt: skip
"""Functions that run the model many times, or backwards. They are tested on few models."""
SCORES_THEMSELVES = {"score_attribution of a score": [move_key_bias], "readout": [move_unembedding]}
"""Scores depend on the key bias, unlike weights. tests/covers/test_score_attribution.py tests this.

The model's own logit depends on a constant of the unembedding. The next test checks all other fields of the readout.
"""

SORTS = ["gpt2_by_depth", "llama", "qwen3", "gemma3", "neox", "own_biased"]
ODD = ["bert", "own_encoder_buckets", "own_alibi"]
"""Together with SORTS, these models have every feature (see `features`). Each analysis is tested on one of them in turn, because
only code that all analyses share depends on their special features."""
ALL_GAUGES = ["qwen3", "own_biased"]
"""Models that have all gauges between them. Each function is tested on both, and on one other model of SORTS in turn."""
TWO_GROUPINGS = ["own_biased", "qwen3"]
"""A model without and one with grouped heads. Each analysis is tested on one of them in turn, slow ones with groups."""
TWO_ROTATED = ["llama", "qwen3"]
"""A model without and one with QK-norms. Each analysis is tested on one of them in turn, slow ones with norms."""
MAY_STAY_EQUAL = {"cluster_count_null", "cluster_count_null_sd", "coordinate", "correlation", "correlation_null",
          "jacobian_norm_error", "jacobian_radius_error", "boundary", "boundary_error", "jacobian", "jacobian_error",
          "correlation_error"}  # fmt: skip
"""Fields that depend on the basis of E and may still be equal after a rotation."""
BY_NUMBER = {
    "head_order", "recovered_random",
    *(f"mean_{name}_null_draws" for name in ("symmetry", "copying", "alignment", "positive_share")),
}  # fmt: skip
"""Fields that contain head numbers or are drawn by head number."""


@once
def original_result(analysis: str, name: str) -> Any:
    return call_of(analysis)(double(name))


def permuted_heads(dataset: Any, permutation: list[int]) -> Any:
    """The result with permuted heads in every layer, also where heads are components named by their number."""
    heads = [dim for dim in ("head", "other") if dim in dataset.dims and dataset[dim].dtype.kind != "U"]
    dims: dict[str, Any] = dict.fromkeys(heads, permutation)
    for dim in {"head_from", "head_to"} & set(dataset.dims):
        dims[dim] = [first + head for first in range(0, dataset.sizes[dim], len(permutation)) for head in permutation]
    dataset = dataset.isel(dims)
    for dim in {"component", "from", "to"} & set(dataset.dims):
        names = [str(name) for name in dataset[dim].values]
        permuted_names = [re.sub(r"H(\d+)$", lambda head: f"H{permutation[int(head[1])]}", name) for name in names]
        dataset = dataset.sel({dim: permuted_names}).assign_coords({dim: names})
    return dataset


def on_models(models: Callable[[str], list[str]], models_if_slow: Callable[[str], list[str]]) -> Any:
    """Parametrise a test over every function and its models; slow functions have fewer models."""
    return pytest.mark.parametrize(
        ("analysis", "name"),
        [
            (analysis, name)
            for analysis in (*ANALYSIS_MODULES, *OTHER_FUNCTIONS)
            for name in (models_if_slow if analysis in SLOW else models)(analysis)
        ],
    )


def one_in_turn(names: list[str]) -> Callable[[str], list[str]]:
    """A function that assigns the models to the analyses in turn, so that all of them are used."""
    return lambda analysis: [names[[*ANALYSIS_MODULES, *OTHER_FUNCTIONS].index(analysis) % len(names)]]


def models_with_all_gauges(analysis: str) -> list[str]:
    """The models with all gauges, and one other in turn."""
    others = [name for name in SORTS if name not in ALL_GAUGES]
    peers = sorted(SLOW) if analysis in SLOW else [*ANALYSIS_MODULES, *OTHER_FUNCTIONS]
    return [*ALL_GAUGES, others[peers.index(analysis) % len(others)]]


@on_models(lambda analysis: [*models_with_all_gauges(analysis), *one_in_turn(ODD)(analysis)], models_with_all_gauges)
def test_no_gauge_changes_a_field(analysis: str, name: str) -> None:
    """Law 1. A field that is marked as dependent on the gauge has an invariant counterpart."""
    moves = [move for move in gauges(name) if move not in SCORES_THEMSELVES.get(analysis, [])]
    assert_unchanged(call_of(analysis), original_result(analysis, name), name, moves)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_only_the_logit_depends_on_a_constant_of_the_unembedding(name: str) -> None:
    result, original = call_of("readout")(model_after(name, move_unembedding)), original_result("readout", name)
    assert_same_fields(result, original, ignored={"logit"})
    assert abs(float(result.logit - original.logit)) > 0.1


@on_models(one_in_turn(TWO_GROUPINGS), lambda analysis: ["qwen3"])
def test_permuting_heads_permutes_every_field(analysis: str, name: str) -> None:
    """Law 1: the fields of a head do not depend on its number."""
    result, original = call_of(analysis)(model_after(name, permute_heads)), original_result(analysis, name)
    assert_same_fields(
        result, permuted_heads(original, head_permutation(double(name).view.layer_heads[0])), ignored=BY_NUMBER
    )


@on_models(one_in_turn(TWO_ROTATED), lambda analysis: ["qwen3"])
def test_rotating_the_axes_changes_only_the_marked_fields(analysis: str, name: str) -> None:
    """Law 2."""
    before, after = (
        call_of(analysis, ROTATED_SETTINGS)(model_after(name, *moves))
        for moves in ((fold_gains,), (fold_gains, rotate_axes))
    )
    marked = marked_fields("basis", before)
    assert_same_fields(after, before, ignored=marked)
    for field in marked:
        assert field in MAY_STAY_EQUAL or float(abs(after[field] - before[field]).max()) > 1e-3, field


# Completeness of this file


def test_every_public_function_of_flow_and_covers_is_tested() -> None:
    """The functions of the theory bench are excepted, because they have no model."""
    homes = {
        name: home
        for name, home in rs._PUBLIC_MODULES.items()
        if home.startswith(("rheoscope.flow", "rheoscope.covers"))
    }
    assert {name for name, home in homes.items() if ".dynamics." not in home} <= {
        *OTHER_FUNCTIONS,
        *WITHOUT_MODEL,
        *WITH_DICTIONARY,
        *GENERATES,
        *OVER_PAIRS,
    }
    assert {*SETTINGS, *TEXTS, *COMPARABLE, *BY_HEAD} <= set(ANALYSIS_MODULES)
    fields = {field for name in ANALYSIS_MODULES for field in analysis_by_name(name).fields}
    assert fields >= BY_NUMBER | MAY_STAY_EQUAL


def features(name: str) -> set[str]:
    """The features of a model that an analysis can depend on."""
    loaded, ids = double(name), text(n=5)
    view, block, trace = loaded.view, loaded.view.layer_heads[0], loaded.trace(ids)
    width, position = block.W_Q.shape[-1], block.mechanism.position
    is_fixed = not isinstance(position, ModelRotary) or position.rotation_matrix(5, width, block.W_Q).diagonal().eq(1)
    tied = None if view.unembed is None else is_tied(loaded)
    values = {
        "position": type(position).__name__,
        "rotates": "none" if is_fixed is True else "some" if bool(is_fixed.any()) else "all",
        "grouped": len(block.W_K) < block.n_heads,
        "wide heads": width * block.n_heads != view.width,
        "scales": len({heads.scale for heads in view.layer_heads}) > 1,
        "norm": (block.norm.gain is not None, block.norm.subtracts_mean),
        "final norm": view.final_norm.eps is not None,
        "parallel": bool(trace.unread_steps),
        "after the sum": any(step.kind == "attn_sum" for step in trace.steps),
        "bidirectional": name in BIDIRECTIONAL,
        "unembedding": {None: "none", True: "tied", False: "free"}[tied],
        **{part: getattr(block, part) is not None for part in ("q_norm", "output_norm", "b_Q", "b_K", "b_V", "b_O")},
    }
    return {f"{feature}: {value}" for feature, value in values.items()} | {
        f"mask: {type(heads.mechanism.mask).__name__}" for heads in view.layer_heads
    }


def test_the_tested_models_have_every_feature_of_all_models() -> None:
    tested = set().union(*(features(name) for name in (*SORTS, *ODD)))
    assert {name: features(name) - tested for name in KINDS if features(name) - tested} == {}
    assert {move for name in ALL_GAUGES for move in gauges(name)} == set(GAUGES)
    assert set().union(*map(models_with_all_gauges, SLOW)) == set(SORTS)
    assert set().union(*map(models_with_all_gauges, {*ANALYSIS_MODULES, *OTHER_FUNCTIONS} - SLOW)) == set(SORTS)
    assert {len(double(name).view.layer_heads[0].W_K) for name in TWO_GROUPINGS} == {2, 4}


def test_the_error_names_the_gauges_that_change_a_field() -> None:
    """The entries of a weight matrix depend on the gauge."""

    def entries(weight: str) -> Callable[[Any], Any]:
        return lambda model: labelled("entries", getattr(model.view.layer_heads[0], weight).flatten(0, -2))

    for weight, culprits in (("W_V", "move_ov, move_gains"), ("W_Q", "move_qk, move_gains"), ("W_O", "move_ov")):
        with pytest.raises(AssertionError, match=f"^map is off by .*\nchanged by {culprits}$"):
            assert_unchanged(entries(weight), entries(weight)(double("llama")), "llama", gauges("llama"))


# Law 5: results of a token do not depend on later tokens

PER_TOKEN: dict[str, Callable[[Any, int], Any]] = {
    "trajectory": lambda trace, token: rs.trajectory(trace, keep_massive=True)[
        ["speed", "relative_speed", "turning", "path_length", "chord", "straightness", "straightness_null"]
    ].isel(token=slice(0, token)),
    "readout": lambda trace, token: rs.readout(trace, token=token - 1),
}
"""Analysis → its results of the tokens before `token`."""


@pytest.mark.parametrize("analysis", PER_TOKEN)
@pytest.mark.parametrize("name", [name for name in (*SORTS, *ODD) if name in CAUSAL])
def test_no_result_of_a_token_depends_on_later_tokens(analysis: str, name: str) -> None:
    """every_family.py tests the points themselves on every model."""
    token, edited = 9, text()
    edited[token] = (edited[token] - 2) % 37 + 3
    original, after_edit = (PER_TOKEN[analysis](model(name).trace(ids), token) for ids in (text(), edited))
    for field in original.data_vars:
        assert np.array_equal(original[field].values, after_edit[field].values), field

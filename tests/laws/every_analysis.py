"""One battery for every analysis: a move that leaves the logits unchanged leaves every reported field unchanged.

A number that moves under a gauge says nothing of the model. All the gauges of a model move at once; where a field moves with
them, each is tried alone, to name it. That each alone leaves the logits as they are, on every family, is every_move.py.
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
    different,
    fold,
    gauges,
    holds_still,
    is_tied,
    marked_as,
    move_key_bias,
    moved,
    order,
    reorder,
    same,
    turn,
)
from tests.pretrained.cases import once


def five() -> list[Tensor]:
    return [text(at) for at in range(5)]


Call = Callable[[Any], Any]
"""From a model to a Dataset."""
BY_HEAD = {"distorted_pairs", "score_attribution"}
"""Analyses of one head: all four heads of a layer are asked, side by side."""
TWO_SENSES = {
    str(word): {"a": [[3, 4, word], [5, 6, 9, word]], "b": [[word + 1, 30, word], [21, 12 + word, word]]}
    for word in (7, 9, 14, 17, 20)
}
"""Words in sentences of token ids, as many as an interval needs."""
GROUPS = {str(word): [[word], [word + 1], [word + 15]] for word in (7, 9, 11, 13, 15)}
SETTINGS: dict[str, dict[str, Any]] = {
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
    "fixed_point": {"layers": [1], "iterations": 6},
    "boundary": {"layers": [1], "iterations": 6},
    "reversed_attention": {"target": 7},
    "attention_patching": {"target": 7, "etas": (-0.1, 0.0)},
    "surgery": {"M": "symmetric", "F": "rank 3", "comparisons": rs.Comparisons(("mean", "uniform"))},
    "decay": {"M": "symmetric"},
    "faithfulness": {"targets": [5, 6, 7, 8, 9], "fractions": (0.0, 0.5)},
}
"""What the battery asks otherwise than by default: random controls are other numbers in another gauge, and models read little."""
TURNED = SETTINGS | {name: {"layers": [1], "iterations": 64} for name in ("fixed_point", "boundary")}
"""The same in other axes, where a random start is another one: as many steps as two tokens have coordinates."""
TEXTS: dict[str, Callable[[], Any]] = {
    "transport": different,
    "distorted_pairs": different,
    "fixed_point": lambda: text(n=2),
    "boundary": lambda: [[3, 9, 12, 5], [8, 12, 5]],
    "surgery": five,
    "decay": five,
    "faithfulness": five,
}
"""What the battery asks about, where not one text with a token twice."""
COMPARABLE: dict[str, Callable[[Any], Any]] = {
    "purity": lambda found: found.drop_vars("purity_z"),  # none where every type is alone
    "composition": lambda found: found.drop_dims("kind"),
    "score_attribution": lambda found: found.drop_vars("weight"),
    "decay": lambda found: found.drop_sel(change="isotropic"),
    "faithfulness": lambda found: found.drop_sel(ranking="random", other_ranking="random"),
}
"""What of an answer is no draw, no list of the largest and not empty."""


def of_heads(make: Callable[[int], Any]) -> Any:
    """An analysis of one head, of all four side by side."""
    import xarray as xr

    return xr.concat([make(head) for head in range(4)], "head")


@cache
def traced(model: Any, ids: tuple[int, ...]) -> Any:
    """A text in a model: all that is asked of a trace is asked of the same one."""
    return model.trace(tensor(ids))


def call(name: str, settings: dict[str, dict[str, Any]] = SETTINGS) -> Call:
    """Any analysis of the catalogue, asked of its subject."""
    one, about = analysis_by_name(name), TEXTS.get(name, text)

    def asked(model: Any) -> Any:
        ids = about()
        given = {
            "view": lambda: model.view,
            "model": lambda: model,
            "trace": lambda: traced(model, tuple(ids.tolist())),
        }
        given |= dict.fromkeys(("text", "texts"), lambda: ids)
        asking = {first: given[first]() for first in one.subjects} | settings.get(name, {})
        if name in BY_HEAD:
            return of_heads(lambda head: one.ask(**asking, head=head))
        return one.ask(**asking)

    return lambda model: COMPARABLE.get(name, lambda found: found)(asked(model))


def labelled(name: str, x: Tensor) -> Any:
    """A map of weights as a Dataset."""
    field = Field(("query", "key"), "a map")
    return Analysis(name, "A map?", lambda trace: None, "trace", {"map": field}).label({"map": x}, {}, {})


BESIDES: dict[str, Call] = {
    "over_texts": lambda model: rs.over_texts(
        rs.agreement, [model.trace(text(at)) for at in range(3)], draws=0, min_keys=4, resamples=20, splits=4
    ),
    "score_attribution of a score": lambda model: of_heads(
        lambda head: rs.score_attribution(model.trace(text()), layer=1, head=head, query=9, key=8)
    ),
    "path_weights": lambda model: of_heads(
        lambda head: labelled("path_weights", rs.path_weights(model.trace(text()), [(0, head), (1, head)]))
    ),
    "reversed_map": lambda model: of_heads(
        lambda head: labelled("reversed_map", rs.reversed_map(model, model.trace(text()), 1, head, target=7))
    ),
    "surgery of each head": lambda model: rs.surgery(
        model, five(), heads=model.view.head_indices(1), per_head=True, **SETTINGS["surgery"]
    ),
    "trace_under": lambda model: rs.trajectory(rs.trace_under(model, text(), M="symmetric", F="rank 3")),
}
"""What is asked besides the analyses of the catalogue: the same in other ways, and maps."""


def calls(settings: dict[str, dict[str, Any]] = SETTINGS) -> dict[str, Call]:
    """All that the battery asks. An analysis is here because it is in the catalogue."""
    return {name: call(name, settings) for name in ANALYSIS_MODULES} | BESIDES


RUNNING = {"relation_swap", "rollout", "fixed_point", "boundary", "reversed_attention", "attention_patching", "surgery", "decay",
           "faithfulness", "reversed_map", "surgery of each head", "trace_under"}  # fmt: skip
"""Those that run the model many times, or backwards: tried on few models."""
NO_ANSWER = {("readout", "bert")}
"""Nothing to read out without an unembedding."""
SCORES_THEMSELVES = {"score_attribution of a score": [move_key_bias]}
"""Scores that are no weights move with the biases of keys: tests/covers/test_score_attribution.py."""

SORTS = ["gpt2_by_depth", "llama", "qwen3", "gemma3", "neox", "own_biased"]
ODD = ["bert", "own_encoder_buckets", "own_alibi"]
"""With the sorts, all that a model can be made of (`features`): what two models share is tried on one of them. An analysis is tried
on one of these, in turn: what is odd about them is seen by the parts that all analyses share."""
ALL_GAUGES = ["qwen3", "own_biased"]
"""Between them every gauge there is: what runs long is tried on both, and on one other sort in turn."""
TWO_GROUPINGS = ["own_biased", "gemma3"]
"""An analysis knows of the order of heads by their number and their groups alone: tried on one or the other, what runs long with groups."""
TWO_TURNED = ["llama", "qwen3"]
"""Of axes it knows by what reads and writes E: without QK-norms or with them; what runs long is tried with them."""
COUNTS = {"cluster_count_null", "cluster_count_null_sd", "coordinate", "correlation", "correlation_null",
          "jacobian_norm_error", "jacobian_radius_error"}  # fmt: skip
"""Fields that depend on the basis of E and may stay as they are by chance."""
BY_NUMBER = {
    "order", "recovered_random",
    *(f"mean_{name}_null_draws" for name in ("symmetry", "copying", "alignment", "positive_share", "mismatch")),
}  # fmt: skip
"""Fields that name heads by their number, or draw them by it."""


@once
def plainly(analysis: str, name: str) -> Any:
    return calls()[analysis](double(name))


def in_order(found: Any, order: list[int]) -> Any:
    """The same answer with the heads of every layer in another order, also where they are components by name."""
    heads = [dim for dim in ("head", "other") if dim in found.dims and found[dim].dtype.kind != "U"]
    dims: dict[str, Any] = dict.fromkeys(heads, order)
    for dim in {"head_from", "head_to"} & set(found.dims):
        dims[dim] = [first + at for first in range(0, found.sizes[dim], len(order)) for at in order]
    found = found.isel(dims)
    for dim in {"component", "from", "to"} & set(found.dims):
        old = [str(name) for name in found[dim].values]
        new = [re.sub(r"H(\d+)$", lambda at: f"H{order[int(at[1])]}", name) for name in old]
        found = found.sel({dim: new}).assign_coords({dim: old})
    return found


def on(usual: Callable[[str], list[str]], running: Callable[[str], list[str]]) -> Any:
    """Every analysis on models that it has an answer for; those that run long on a few."""
    return pytest.mark.parametrize(
        ("analysis", "name"),
        [
            (analysis, name)
            for analysis in (*ANALYSIS_MODULES, *BESIDES)
            for name in (running if analysis in RUNNING else usual)(analysis)
            if (analysis, name) not in NO_ANSWER
        ],
    )


def one_of(names: list[str]) -> Callable[[str], list[str]]:
    """One after the other, so that all of them are taken."""
    return lambda analysis: [names[[*ANALYSIS_MODULES, *BESIDES].index(analysis) % len(names)]]


def in_turn(analysis: str) -> list[str]:
    others = [name for name in SORTS if name not in ALL_GAUGES]
    return [*ALL_GAUGES, others[sorted(RUNNING).index(analysis) % len(others)]]


@on(lambda analysis: [*SORTS, *one_of(ODD)(analysis)], in_turn)
def test_no_gauge_moves_a_field(analysis: str, name: str) -> None:
    """Law 1; what is marked as dependent on the coordinates of a head stands beside an invariant field."""
    moves = [move for move in gauges(name) if move not in SCORES_THEMSELVES.get(analysis, [])]
    holds_still(calls()[analysis], plainly(analysis, name), name, moves)


@on(one_of(TWO_GROUPINGS), lambda analysis: ["gemma3"])
def test_heads_in_another_order_are_the_same_heads(analysis: str, name: str) -> None:
    """Law 1: every field of a head goes with the head."""
    found, plain = calls()[analysis](moved(name, reorder)), plainly(analysis, name)
    same(found, in_order(plain, order(double(name).view.layer_heads[0])), but=BY_NUMBER)


@on(one_of(TWO_TURNED), lambda analysis: ["qwen3"])
def test_turning_the_axes_moves_no_field_but_the_marked_ones(analysis: str, name: str) -> None:
    """Law 2."""
    before, after = (calls(TURNED)[analysis](moved(name, *moves)) for moves in ((fold,), (fold, turn)))
    marked = marked_as("basis", before)
    same(after, before, but=marked)
    for field in marked:
        assert field in COUNTS or float(abs(after[field] - before[field]).max()) > 1e-3, field


# The battery itself


def test_every_function_of_the_rooms_is_in_the_battery() -> None:
    """What the package offers of flow/ and covers/ besides analyses; the theory bench has no model whose weights could be moved."""
    homes = {
        name: home
        for name, home in rs._PUBLIC_MODULES.items()
        if home.startswith(("rheoscope.flow", "rheoscope.covers"))
    }
    assert {name for name, home in homes.items() if ".dynamics." not in home} <= {*BESIDES, "Comparisons"}
    assert {*SETTINGS, *TEXTS, *COMPARABLE, *BY_HEAD} <= set(ANALYSIS_MODULES)


def features(name: str) -> set[str]:
    """All that distinguishes one model from another, as an analysis may see it."""
    made, ids = double(name), text(n=5)
    view, block, trace = made.view, made.view.layer_heads[0], made.trace(ids)
    width, position = block.W_Q.shape[-1], block.mechanism.position
    still = not isinstance(position, ModelRotary) or position.rotation_matrix(5, width, block.W_Q).diagonal().eq(1)
    tied = None if view.unembed is None else is_tied(made)
    facts = {
        "position": type(position).__name__,
        "turns": "none" if still is True else "some" if bool(still.any()) else "all",
        "grouped": len(block.W_K) < block.n_heads,
        "wide heads": width * block.n_heads != view.width,
        "scales": len({heads.scale for heads in view.layer_heads}) > 1,
        "norm": (block.norm.gain is not None, block.norm.subtracts_mean),
        "final norm": view.final_norm.eps is not None,
        "parallel": bool(trace.unread_steps),
        "after the sum": any(step.kind == "attn_sum" for step in trace.steps),
        "both ways": name in BIDIRECTIONAL,
        "unembedding": {None: "none", True: "tied", False: "free"}[tied],
        **{part: getattr(block, part) is not None for part in ("q_norm", "output_norm", "b_Q", "b_K", "b_V", "b_O")},
    }
    return {f"{what}: {how}" for what, how in facts.items()} | {
        f"mask: {type(heads.mechanism.mask).__name__}" for heads in view.layer_heads
    }


def test_no_model_is_made_of_anything_that_the_battery_does_not_try() -> None:
    tried = set().union(*(features(name) for name in (*SORTS, *ODD)))
    assert {name: features(name) - tried for name in KINDS if features(name) - tried} == {}
    assert {move for name in ALL_GAUGES for move in gauges(name)} == set(GAUGES)
    assert set().union(*map(in_turn, RUNNING)) == set(SORTS)
    assert {len(double(name).view.layer_heads[0].W_K) for name in TWO_GROUPINGS} == {2, 4}


def test_the_culprit_is_named() -> None:
    """A matrix of weights is no property of the model: it moves with whatever its factors are written against."""

    def entries(which: str) -> Callable[[Any], Any]:
        return lambda model: labelled("entries", getattr(model.view.layer_heads[0], which).flatten(0, -2))

    for which, culprits in (("W_V", "move_ov, move_gains"), ("W_Q", "move_qk, move_gains"), ("W_O", "move_ov")):
        with pytest.raises(AssertionError, match=f"^map is off by .*\nmoved by {culprits}$"):
            holds_still(entries(which), entries(which)(double("llama")), "llama", gauges("llama"))


# Law 5: the past does not see the future

PER_TOKEN: dict[str, Callable[[Any, int], Any]] = {
    "trajectory": lambda trace, at: rs.trajectory(trace, keep_massive=True)[
        ["speed", "relative_speed", "turning", "path_length", "chord", "straightness", "straightness_null"]
    ].isel(token=slice(0, at)),
    "readout": lambda trace, at: rs.readout(trace, token=at - 1),
}
"""Name → its results of tokens before `at`."""


@pytest.mark.parametrize("analysis", PER_TOKEN)
@pytest.mark.parametrize("name", [name for name in (*SORTS, *ODD) if name in CAUSAL])
def test_no_result_of_a_token_sees_what_comes_after_it(analysis: str, name: str) -> None:
    """Nor do the points themselves: every_family.py, of every model."""
    at, after = 9, text()
    after[at] = (after[at] - 2) % 37 + 3
    one, other = (PER_TOKEN[analysis](model(name).trace(ids), at) for ids in (text(), after))
    for field in one.data_vars:
        assert np.array_equal(one[field].values, other[field].values), field

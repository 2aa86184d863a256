"""One battery for every analysis: a move that leaves the logits unchanged leaves every reported field unchanged.

A number that moves under a gauge says nothing of the model. All the gauges of a model move at once; where a field moves with
them, each is tried alone, to name it. That each alone leaves the logits as they are, on every family, is every_move.py.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import rheoscope as rs
from rheoscope.space.dataset import dataset
from rheoscope.space.head import Turned
from tests.cases import BIDIRECTIONAL, CAUSAL, double, model, text
from tests.laws.moves import (
    GAUGES,
    KINDS,
    different,
    fold,
    gauges,
    holds_still,
    is_tied,
    move_key_bias,
    moved,
    order,
    reorder,
    same,
    turn,
)
from tests.pretrained.cases import once


def of_heads(make: Callable[[int], Any]) -> Any:
    """An analysis of one head, of all four side by side."""
    import xarray as xr

    return xr.concat([make(head) for head in range(4)], "head")


def purity(trace: Any) -> Any:
    return rs.purity(trace, rs.clusters(trace), draws=20)


def labelled(analysis: str, x: Tensor) -> Any:
    """A map of weights as a Dataset."""
    return dataset({"map": (("query", "key"), x)}, {"map": "a map"}, {}, {"analysis": analysis})


def faithful(model: Any) -> Any:
    prompts = [text(at) for at in range(5)]
    return rs.faithfulness(model, prompts, [5, 6, 7, 8, 9], kept=(0.0, 0.5)).drop_sel(ranking="random", rival="random")


def several(model: Any) -> Any:
    """Agreement over texts; a correlation of halves and the null are of draws that are not made here."""
    each = [rs.agreement(model.view, model.trace(text(at)), draws=0, least=4) for at in range(3)]
    return rs.agreement_over_texts(each, resamples=20, splits=4)


ANALYSES: dict[str, Callable[[Any], Any]] = {
    "operators": lambda model: rs.operators(model.view),
    "scores": lambda model: rs.scores(model.trace(text())),
    "trajectory": lambda model: rs.trajectory(model.trace(text())),
    "transport": lambda model: rs.transport(model.trace(different())),
    "kept": lambda model: rs.kept(model.trace(text())),
    "clusters": lambda model: rs.clusters(model.trace(text())),
    "massive": lambda model: rs.massive(model.trace(text()), times=1.02),
    "readout": lambda model: rs.readout(model.view, model.trace(text())),
    "energy": lambda model: rs.energy(model.view, model.trace(text())),
    "agreement": lambda model: rs.agreement(model.view, model.trace(text()), draws=0, least=4),
    "agreement_over_texts": several,
    "prefix_stability": lambda model: rs.prefix_stability(model, text(), [[7, 19, 4], [30, 5, 5, 21]], least=3),
    "distortion": lambda model: rs.distortion(model.view, model.trace(text()), k=3, draws=2),
    "stack": lambda model: rs.stack(model.view, model.trace(text()), draws=2),
    "composition": lambda model: rs.composition(model.view, top=1).drop_dims("kind"),
    "head_types": lambda model: rs.head_types(model, model.trace(text()), window=2),
    "density_clusters": lambda model: rs.density_clusters(model.trace(text()), least=2),
    "purity": lambda model: purity(model.trace(text())),
    "torn": lambda model: of_heads(lambda head: rs.torn(model.view, model.trace(different()), 1, head)),
    "why": lambda model: of_heads(lambda head: rs.why(model.view, model.trace(text()), 1, head).drop_vars("weight")),
    "why of a score": lambda model: of_heads(lambda head: rs.why(model.view, model.trace(text()), 1, head, 9, 8)),
    "path_weights": lambda model: of_heads(
        lambda head: labelled("path_weights", rs.path_weights(model.trace(text()), [(0, head), (1, head)]))
    ),
    "fixed_point": lambda model: rs.fixed_point(model, model.trace(text(n=2)), [1], iterations=64),
    "boundary": lambda model: rs.boundary(model, [[3, 9, 12, 5], [8, 12, 5]], [1], iterations=64),
    "rollout": lambda model: rs.rollout(model, model.trace(text())),
    "reversed_attention": lambda model: rs.reversed_attention(model, model.trace(text()), target=7),
    "reversed_map": lambda model: of_heads(
        lambda head: labelled("reversed_map", rs.reversed_map(model, model.trace(text()), 1, head, target=7))
    ),
    "attention_patching": lambda model: rs.attention_patching(model, model.trace(text()), 7, (-0.1, 0.0)),
    "surgery": lambda model: rs.surgery(
        model, [text(at) for at in range(5)], M="symmetric", F="rank 3", against=rs.Against(("mean", "uniform"))
    ),
    "surgery_by_head": lambda model: rs.surgery_by_head(
        model, [text(at) for at in range(5)], 1, M="symmetric", F="rank 3", against=rs.Against(("mean", "uniform"))
    ),
    "decay": lambda model: rs.decay(model, [text(at) for at in range(5)], 0, M="symmetric").drop_sel(
        change="isotropic"
    ),
    "operated": lambda model: rs.trajectory(rs.operated(model, text(), M="symmetric", F="rank 3")),
    "faithfulness": lambda model: faithful(model),
}
"""Name → what it gives for a model. A new analysis is tested by a new line here."""
RUNNING = {
    "fixed_point", "boundary", "rollout", "reversed_attention", "reversed_map", "attention_patching", "surgery", "operated",
    "surgery_by_head", "decay", "faithfulness",
}  # fmt: skip
"""Those that run the model many times, or backwards: tried on one model of each sort."""
NO_ANSWER = {("readout", "bert")}
"""Nothing to read out without an unembedding."""
SCORES_THEMSELVES = {"why of a score": [move_key_bias]}
"""Scores that are no weights move with the biases of keys: tests/covers/test_why.py."""

SORTS = ["gpt2_by_depth", "llama", "qwen3", "gemma3", "neox", "own_biased"]
ODD = ["bert", "own_encoder_buckets", "own_alibi"]
"""With the sorts, all that a model can be made of (`features`): what two models share is tried on one of them."""
TWO_GROUPINGS = ["own_biased", "gemma3"]
"""An analysis knows of the order of heads by their number and their groups alone."""
TWO_TURNED = ["llama", "qwen3"]
"""Of axes it knows by what reads and writes E: with and without QK-norms."""
COORDINATES = {
    "directionality", "layer_directionality", "effective_rank_null", "effective_rank_null_sd", "cluster_count_null",
    "cluster_count_null_sd", "participation_ratio_null", "intrinsic_dimension_null", "coordinate", "coordinate_share",
    "boundary", "jacobian", "correlation", "correlation_null",
} | {
    f"{name}_null"
    for name in ("spread", "neighbours", "trustworthiness", "continuity", "rsa", "cka", "recovered", "recovered_cka")
}  # fmt: skip
"""Fields marked as dependent on the basis of E: what they are, or the draws they are means of."""
COUNTS = {"cluster_count_null", "cluster_count_null_sd", "coordinate", "correlation", "correlation_null"}
"""Those of them that may stay as they are by chance."""
BY_NUMBER = {"order", "recovered_random"}
"""Fields that name heads by their number, or draw them by it."""


@once
def plainly(analysis: str, name: str) -> Any:
    return ANALYSES[analysis](double(name))


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


def on(names: list[str]) -> Any:
    """Every analysis on every model of a list that it has an answer for."""
    return pytest.mark.parametrize(
        ("analysis", "name"),
        [
            (analysis, name)
            for analysis in ANALYSES
            for name in names
            if (name in SORTS or analysis not in RUNNING) and (analysis, name) not in NO_ANSWER
        ],
    )


@on([*SORTS, *ODD])
def test_no_gauge_moves_a_field(analysis: str, name: str) -> None:
    """Law 1; what is marked as dependent on the coordinates of a head stands beside an invariant field."""
    moves = [move for move in gauges(name) if move not in SCORES_THEMSELVES.get(analysis, [])]
    holds_still(ANALYSES[analysis], plainly(analysis, name), name, moves)


@on(TWO_GROUPINGS)
def test_heads_in_another_order_are_the_same_heads(analysis: str, name: str) -> None:
    """Law 1: every field of a head goes with the head."""
    found, plain = ANALYSES[analysis](moved(name, reorder)), plainly(analysis, name)
    same(found, in_order(plain, order(double(name).view.blocks[0])), but=BY_NUMBER)


@on(TWO_TURNED)
def test_turning_the_axes_moves_no_field_but_the_marked_ones(analysis: str, name: str) -> None:
    """Law 2."""
    before, after = (ANALYSES[analysis](moved(name, *moves)) for moves in ((fold,), (fold, turn)))
    marked = {str(field) for field in before.data_vars if "basis" in before[field].attrs["definition"]}
    assert marked <= COORDINATES
    same(after, before, but=marked)
    for field in marked:
        assert field in COUNTS or float(abs(after[field] - before[field]).max()) > 1e-3, field


# The battery itself


def test_every_analysis_is_in_the_battery() -> None:
    """All that the package offers of flow/ and covers/; the theory bench has no model whose weights could be written otherwise."""
    homes = {name: home for name, home in rs._HOME.items() if home.startswith(("rheoscope.flow", "rheoscope.covers"))}
    parts = {"Against", "pieces"}  # of other analyses
    assert {name for name, home in homes.items() if ".dynamics." not in home} <= set(ANALYSES) | parts


def features(name: str) -> set[str]:
    """All that distinguishes one model from another, as an analysis may see it."""
    made, ids = double(name), text(n=5)
    view, block, trace = made.view, made.view.blocks[0], made.trace(ids)
    width, position = block.W_Q.shape[-1], block.mechanism.position
    still = not isinstance(position, Turned) or position.rotation(5, width, block.W_Q).diagonal().eq(1)
    tied = None if view.unembed is None else is_tied(made)
    facts = {
        "position": type(position).__name__,
        "turns": "none" if still is True else "some" if bool(still.any()) else "all",
        "grouped": len(block.W_K) < block.count,
        "wide heads": width * block.count != view.width,
        "scales": len({heads.scale for heads in view.blocks}) > 1,
        "norm": (block.norm.gain is not None, block.norm.centred),
        "final norm": view.final_norm.eps is not None,
        "parallel": bool(trace.not_read),
        "after the sum": any(step.endswith("attn_sum") for step in trace.steps),
        "both ways": name in BIDIRECTIONAL,
        "unembedding": {None: "none", True: "tied", False: "free"}[tied],
        **{part: getattr(block, part) is not None for part in ("q_norm", "after", "b_Q", "b_K", "b_V", "b_O")},
    }
    return {f"{what}: {how}" for what, how in facts.items()} | {
        f"mask: {type(heads.mechanism.mask).__name__}" for heads in view.blocks
    }


def test_no_model_is_made_of_anything_that_the_battery_does_not_try() -> None:
    tried = set().union(*(features(name) for name in (*SORTS, *ODD)))
    assert {name: features(name) - tried for name in KINDS if features(name) - tried} == {}
    assert {move for name in SORTS for move in gauges(name)} == set(GAUGES)
    assert {len(double(name).view.blocks[0].W_K) for name in TWO_GROUPINGS} == {2, 4}


def test_the_culprit_is_named() -> None:
    """A matrix of weights is no property of the model: it moves with whatever its factors are written against."""

    def entries(which: str) -> Callable[[Any], Any]:
        return lambda model: labelled("entries", getattr(model.view.blocks[0], which).flatten(0, -2))

    for which, culprits in (("W_V", "move_ov, move_gains"), ("W_Q", "move_qk, move_gains"), ("W_O", "move_ov")):
        with pytest.raises(AssertionError, match=f"^map is off by .*\nmoved by {culprits}$"):
            holds_still(entries(which), entries(which)(double("llama")), "llama", gauges("llama"))


# Law 5: the past does not see the future

PER_TOKEN: dict[str, Callable[[Any, int], Any]] = {
    "trajectory": lambda trace, at: rs.trajectory(trace, keep_massive=True)[
        ["speed", "relative_speed", "turning", "path_length", "chord", "straightness", "straightness_null"]
    ].isel(token=slice(0, at)),
    "readout": lambda trace, at: rs.readout(trace.view, trace, token=at - 1),
}
"""Name → its results of tokens before `at`."""


@pytest.mark.parametrize("analysis", PER_TOKEN)
@pytest.mark.parametrize("name", CAUSAL)
def test_no_result_of_a_token_sees_what_comes_after_it(analysis: str, name: str) -> None:
    at, after = 9, text()
    after[at] = (after[at] - 2) % 37 + 3
    one, other = (PER_TOKEN[analysis](model(name).trace(ids), at) for ids in (text(), after))
    for field in one.data_vars:
        assert np.array_equal(one[field].values, other[field].values), field

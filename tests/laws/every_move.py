"""One battery for every move of weights: each alone, on every family, leaves what the model says and does as it is.

What analyses report is then asked under all moves at once (every_analysis.py).
"""

import pytest

from rheoscope.space.trace import Trace
from tests.cases import distance, double, gap, text, traced
from tests.laws.moves import (
    F64,
    GAUGES,
    KINDS,
    ORDERED,
    TURNABLE,
    Move,
    axes,
    fold,
    gauges,
    move_key_bias,
    move_qk_norms,
    move_unembedding,
    move_value_bias,
    moved,
    order,
    probabilities,
    reorder,
    turn,
)


@pytest.mark.parametrize("name", KINDS)
def test_a_gauge_moves_weights_but_nothing_that_the_model_says(name: str) -> None:
    plain = double(name)
    for move in gauges(name):
        other = moved(name, move)
        assert other.view.facts["weights"] != plain.view.facts["weights"], move.__name__
        assert gap(probabilities(other), probabilities(plain)) <= 2e-5, move.__name__
        trace = other.trace(text())
        for layer in range(plain.view.layers):
            stays(move, layer, trace, traced(name, F64))


def stays(move: Move, layer: int, one: Trace, two: Trace) -> None:
    """Weights and displacements; under a key's bias scores move by a constant a row, under a value's bias heads share out anew."""
    for head in (0, one.view.heads - 1):
        assert gap(one.weights(layer, head), two.weights(layer, head)) <= 1e-5, move.__name__
        if move is move_key_bias:
            lost = one.scores(layer, head) - two.scores(layer, head)
            assert gap(lost, lost[:, :1].expand_as(lost)) <= 1e-9
    if move is move_value_bias:
        whole = [trace.displacements(layer).sum(0) + trace.bias(layer) for trace in (one, two)]
        assert distance(*whole) <= 1e-9
    else:
        assert distance(one.displacements(layer), two.displacements(layer)) <= 1e-5, move.__name__


@pytest.mark.parametrize("name", ORDERED)
def test_heads_in_another_order_are_the_same_heads(name: str) -> None:
    plain, other = double(name), moved(name, reorder)
    at = order(plain.view.layer_heads[0])
    assert at != [0, 1, 2, 3]
    assert gap(probabilities(other), probabilities(plain)) <= 2e-5
    one, two = other.trace(text()), traced(name, F64)
    for layer in range(plain.view.layers):
        assert distance(one.displacements(layer), two.displacements(layer)[at]) <= 1e-5
        assert gap(one.weights(layer, 1), two.weights(layer, at[1])) <= 1e-5


@pytest.mark.parametrize("name", TURNABLE)
def test_turned_axes_turn_the_points_and_nothing_else(name: str) -> None:
    folded, turned, Q = moved(name, fold), moved(name, fold, turn), axes()
    for other in (folded, turned):
        assert gap(probabilities(other), probabilities(double(name))) <= 2e-5
    one, two = turned.trace(text()), folded.trace(text())
    assert distance(one.points, two.points @ Q) <= 1e-5
    for layer in range(turned.view.layers):
        assert gap(one.weights(layer, 2), two.weights(layer, 2)) <= 1e-5
        assert distance(one.displacements(layer), two.displacements(layer) @ Q) <= 1e-5


def test_every_move_is_tried_on_every_model_that_has_it() -> None:
    had = {move: [name for name in KINDS if move in gauges(name)] for move in GAUGES}
    assert all(had.values())
    assert all(gauges(name) for name in KINDS)
    assert had[move_qk_norms] == ["qwen3", "gemma3"]
    assert {"gpt2_by_depth", "llama", "neox"} <= set(had[move_unembedding])

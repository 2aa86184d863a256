"""Tests of every move of `moves.py` alone on every model: logits, weights and displacements are unchanged.

every_analysis.py tests the results of analyses under all moves at once.
"""

import pytest

from rheoscope.space.trace import Trace
from tests.cases import distance, gap, text, traced
from tests.laws.moves import (
    F64,
    GAUGES,
    KINDS,
    PERMUTABLE,
    ROTATABLE,
    Move,
    fold_gains,
    gauges,
    head_permutation,
    log_probabilities,
    model_after,
    move_key_bias,
    move_qk_norms,
    move_unembedding,
    move_value_bias,
    permute_heads,
    random_rotation,
    rotate_axes,
)


@pytest.mark.parametrize("name", KINDS)
def test_a_gauge_changes_weights_but_not_the_behaviour_of_the_model(name: str) -> None:
    original = traced(name, F64)
    for move in gauges(name):
        trace = model_after(name, move).trace(text(), logits=True)
        assert trace.view.facts["weights"] != original.view.facts["weights"], move.__name__
        assert gap(log_probabilities(trace), log_probabilities(original)) <= 2e-5, move.__name__
        for layer in range(original.view.layers):
            assert_attention_unchanged(move, layer, trace, original)


def assert_attention_unchanged(move: Move, layer: int, trace: Trace, original: Trace) -> None:
    """Assert that weights and displacements of a layer are unchanged.

    A key bias adds a constant to every row of scores. A value bias changes the displacements of heads, but not their sum.
    """
    for head in (0, trace.view.heads - 1):
        assert gap(trace.weights(layer, head), original.weights(layer, head)) <= 1e-5, move.__name__
        if move is move_key_bias:
            shift = trace.scores(layer, head) - original.scores(layer, head)
            assert gap(shift, shift[:, :1].expand_as(shift)) <= 1e-9
    if move is move_value_bias:
        sums = [side.displacements(layer).sum(0) + side.bias(layer) for side in (trace, original)]
        assert distance(*sums) <= 1e-9
    else:
        assert distance(trace.displacements(layer), original.displacements(layer)) <= 1e-5, move.__name__


@pytest.mark.parametrize("name", PERMUTABLE)
def test_permuting_heads_permutes_their_weights_and_displacements(name: str) -> None:
    original, trace = traced(name, F64), model_after(name, permute_heads).trace(text(), logits=True)
    permutation = head_permutation(original.view.layer_heads[0])
    assert permutation != [0, 1, 2, 3]
    assert gap(log_probabilities(trace), log_probabilities(original)) <= 2e-5
    for layer in range(original.view.layers):
        assert distance(trace.displacements(layer), original.displacements(layer)[permutation]) <= 1e-5
        assert gap(trace.weights(layer, 1), original.weights(layer, permutation[1])) <= 1e-5


@pytest.mark.parametrize("name", ROTATABLE)
def test_rotating_the_axes_rotates_points_and_leaves_weights_unchanged(name: str) -> None:
    folded, rotated = (
        model_after(name, *moves).trace(text(), logits=True) for moves in ((fold_gains,), (fold_gains, rotate_axes))
    )
    for trace in (folded, rotated):
        assert gap(log_probabilities(trace), log_probabilities(traced(name, F64))) <= 2e-5
    Q = random_rotation()
    assert distance(rotated.points, folded.points @ Q) <= 1e-5
    for layer in range(rotated.view.layers):
        assert gap(rotated.weights(layer, 2), folded.weights(layer, 2)) <= 1e-5
        assert distance(rotated.displacements(layer), folded.displacements(layer) @ Q) <= 1e-5


def test_every_gauge_applies_to_some_model_and_every_model_has_one() -> None:
    models = {move: [name for name in KINDS if move in gauges(name)] for move in GAUGES}
    assert all(models.values())
    assert all(gauges(name) for name in KINDS)
    assert models[move_qk_norms] == ["qwen3", "gemma3"]
    assert {"gpt2_by_depth", "llama", "neox"} <= set(models[move_unembedding])

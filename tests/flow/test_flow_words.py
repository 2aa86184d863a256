"""Tests of the lines of the story about the flow: movement, destination and groups."""

from typing import Any

import numpy as np
import pytest

from rheoscope.flow.clusters.words import N_GROUPS, N_TYPES, group_text, groups
from rheoscope.flow.trajectory.words import bars, movement, relative_path_length
from rheoscope.flow.transport.words import destination
from rheoscope.messages.numbers import format_number
from rheoscope.picture.token_labels import display_token
from rheoscope.space.results import Results
from tests.report.cases import flow_results


def results_with(name: str, dataset: Any) -> Results:
    return flow_results().with_result(name, dataset)


def test_the_movement_has_one_bar_per_layer_and_names_the_largest() -> None:
    trajectory = flow_results().datasets["trajectory"]
    speed = np.ones(trajectory.relative_speed.shape)
    speed[6:8] = 3.5  # layer 3
    planted = trajectory.assign(relative_speed=trajectory.relative_speed.copy(data=speed))
    line = movement(results_with("trajectory", planted))
    assert relative_path_length(planted, 3) == 7
    assert line.startswith("embed ▃▃▃█▃▃ L5, most in L3 (7 times the norm of a token); straightness ")
    straight, null = (format_number(float(planted[name].mean())) for name in ("straightness", "straightness_null"))
    assert line.endswith(f"straightness {straight} (random directions {null})")


def test_bars_of_a_text_without_movement_are_empty() -> None:
    assert bars(np.zeros(4)) == "▁▁▁▁"


def test_the_destination_has_both_shares_with_their_nulls() -> None:
    transport = flow_results().datasets["transport"]
    share, share_null = transport.identity_share_strided.copy(), transport.identity_share_null_strided.copy()
    share[-1, -1], share_null[-1, -1] = 0.25, 0.004
    draws = np.linspace(0, 0.2, transport.sizes["draw"])
    planted = transport.assign(
        next_type_share=0.37,
        next_token_accuracy=0.5,
        next_type_share_mispredicted=0.21,
        next_type_share_mispredicted_null=0.02,
        next_type_share_null_draws=("draw", draws),
        identity_share_strided=share,
        identity_share_null_strided=share_null,
    )
    line = destination(results_with("transport", planted))
    assert line.startswith("37 % of the tokens end where their next token is (permuted partners ")
    assert "; 25 % keep their place (permuted displacements < 1 %); " in line
    assert "; where the prediction is wrong, 21 % end at their next token (permuted partners 2 %); " in line
    assert line.endswith("50 % of next tokens predicted")
    low, high = line.split("partners ")[1].split(" %")[0].split(" to ")
    assert 0 <= int(low) <= 2
    assert 18 <= int(high) <= 20


@pytest.mark.parametrize("null", [np.nan, 0.0, 1.0])
def test_the_destination_has_no_share_that_no_permutation_could_change(null: float) -> None:
    """All predictions are right, or one is wrong: its token is the only partner."""
    planted = (
        flow_results()
        .datasets["transport"]
        .assign(next_token_accuracy=0.94, next_type_share_mispredicted=null, next_type_share_mispredicted_null=null)
    )
    line = destination(results_with("transport", planted))
    assert "where the prediction is wrong" not in line
    assert line.endswith("embeddings, 94 % of next tokens predicted")


def test_the_destination_states_whether_embeddings_are_tied() -> None:
    transport = flow_results().datasets["transport"]
    for tied, condition in ((1, "; tied embeddings, "), (0, "; untied embeddings, ")):
        assert condition in destination(results_with("transport", transport.assign_attrs(tied_embedding=tied)))
    unpredicted = transport.drop_vars("next_token_accuracy").assign_attrs(tied_embedding=0)
    assert destination(results_with("transport", unpredicted)).endswith("; untied embeddings")


def test_the_largest_groups_come_first_and_single_tokens_are_left_out() -> None:
    clusters = flow_results().datasets["clusters"]
    n_tokens = clusters.sizes["token"]
    labels = clusters.label.values.copy()
    labels[-1] = np.arange(n_tokens) + 10
    labels[-1, [1, 2]], labels[-1, [3, 4, 5]] = 1, 2
    counts = clusters.cluster_count.values.copy()
    counts[0], counts[-1] = 3, n_tokens - 3
    planted = clusters.assign(
        label=clusters.label.copy(data=labels), cluster_count=clusters.cluster_count.copy(data=counts)
    )
    line = groups(results_with("clusters", planted))
    texts = [display_token(str(text)) for text in clusters.token_text.values]
    assert line.startswith(f"{group_text(texts[3:6])} {group_text(texts[1:3])}; {n_tokens - 3} clusters of {n_tokens}")
    assert f"({3} at the embedding, shuffled coordinates " in line
    alone = planted.assign(label=clusters.label.copy(data=np.tile(np.arange(n_tokens), (len(labels), 1))))
    assert groups(results_with("clusters", alone)).startswith("no two tokens are close; ")
    all_pairs = planted.assign(label=clusters.label.copy(data=np.tile(np.arange(n_tokens) // 2, (len(labels), 1))))
    assert groups(results_with("clusters", all_pairs)).split(";")[0].count("{") == N_GROUPS


def test_a_group_names_a_few_types() -> None:
    assert group_text(["a", "b", "a", "c", "d", "e"]) == "{a ×2, b, c, d, …}"
    assert group_text(["a"] * N_TYPES) == f"{{a ×{N_TYPES}}}"


def test_a_result_without_draws_has_no_null_range() -> None:
    clusters = flow_results().datasets["clusters"].drop_vars("cluster_count_null")
    assert "shuffled coordinates none" in groups(results_with("clusters", clusters))

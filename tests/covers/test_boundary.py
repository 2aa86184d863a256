"""Boundary: equal prefixes, causality, dense references, and a planted point of convergence."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rheoscope as rs
from rheoscope.covers.boundary.analysis import find_shared_tokens, hold_others_fixed, with_reorderings
from rheoscope.covers.fixed_point.analysis import layer_map
from tests.cases import default, double
from tests.covers.cases import random_model
from tests.covers.test_fixed_point import dense_jacobian
from tests.covers.test_jacobian_estimates import dense_projection
from tests.pretrained.cases import random

F64 = torch.float64
ENDING = [7, 21, 9, 30]
TEXTS = [[5, 11, 4, *ENDING], [5, 8, 17, *ENDING]]
MODELS = ["gpt2", "gemma3", "neox", "own_sigmoid"]
"""Two position encodings, a sliding window, a parallel block, and weights that do not sum to 1."""
MAPS = ["gpt2", "llama", "gemma3", "qwen3", "neox", "opt", "own", "own_metric", "own_sigmoid"]


@pytest.mark.parametrize("name", MODELS)
def test_an_equal_boundary_gives_equal_values_and_angle_zero(name: str) -> None:
    result = rs.boundary(double(name), [TEXTS[0], TEXTS[0], TEXTS[1]], applications=2, iterations=2)
    for field in result.data_vars:
        if "text" in result[field].dims:
            assert np.array_equal(result[field][0], result[field][1]), field
    for field in ("input_angle", "input_angle_token", "final_angle", "final_angle_token"):
        assert not result[field][:2].any(), field
    assert float(result.final_angle[2].min()) > 0
    assert float(result.input_angle[2, 1]) > 0


@pytest.mark.parametrize("name", MAPS)
def test_tokens_before_the_boundary_are_bit_identical_in_a_causal_model(name: str) -> None:
    result = rs.boundary(double(name), [[3, 9, 4, 12, *ENDING], [3, 9, 4, 8, *ENDING]], applications=2, iterations=0)
    is_before = ~result.after_boundary.values
    assert is_before.tolist() == [True] * 3 + [False] * 4
    for field in ("input_angle_token", "final_angle_token"):
        assert not result[field].values[..., is_before].any(), field
    second_layer_angles = result.input_angle_token.isel(layer=1).values[1, ~is_before]
    assert float(second_layer_angles[:3].min()) > 0  # within the sliding window
    assert float(result.final_angle_token.values[1][:, ~is_before][:, :3].min()) > 0


def test_tokens_before_the_boundary_change_in_a_bidirectional_model() -> None:
    result = rs.boundary(
        double("own_encoder_buckets"), [[3, 9, 12, *ENDING], [3, 9, 8, *ENDING]], applications=1, iterations=0
    )
    assert float(result.input_angle_token.isel(layer=1).values[1, :2].min()) > 0


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_it_equals_dense_twins(name: str) -> None:
    """Reference: the points, an orbit with the boundary reset at each step, and a block of the dense Jacobian."""
    model, texts = double(name), [[5, 6, *ENDING], [8, 13, 17, *ENDING]]
    result = rs.boundary(model, texts, layers=[1], applications=3, tolerance=1e-5, keep_massive=True)
    directions = []
    for text_index, ids in enumerate(texts):
        trace = model.trace(ids)
        T, x, n_fixed = layer_map(trace, 1), trace.layer_input(1), len(ids) - 4
        J = dense_jacobian(T, x).detach().reshape(len(ids), 32, len(ids), 32)[n_fixed:, :, n_fixed:]
        text_result = result.isel(text=text_index, layer=0)
        norm = torch.linalg.matrix_norm(J.reshape(128, 128), 2)
        assert float(text_result.jacobian_norm) == pytest.approx(float(norm), rel=1e-4)
        projections = [dense_projection(T, x, n_fixed + i) for i in range(4)]
        block_radii = [torch.linalg.eigvals(P @ J[i, :, i] @ P).abs().amax() for i, P in enumerate(projections)]
        assert float(text_result.jacobian_radius) == pytest.approx(float(max(block_radii)), rel=1e-4)
        residual = ((T(x) - x)[n_fixed:].norm() / x[n_fixed:].norm()).detach()
        assert float(text_result.residual) == pytest.approx(float(residual))
        orbit_point = x.clone()
        for _ in range(3):
            orbit_point[n_fixed:] = T(orbit_point)[n_fixed:].detach()
        directions.append([torch.nn.functional.normalize(y[n_fixed:].detach(), dim=-1) for y in (x, orbit_point)])
    for end, field in enumerate(("input_angle", "final_angle")):
        cosines = (directions[0][end] * directions[1][end]).sum(-1)
        assert result[f"{field}_token"].values[1, 0] == pytest.approx(cosines.clamp(-1, 1).arccos().numpy(), abs=1e-6)
        assert result[field].values[1, 0] == pytest.approx(float(cosines.arccos().mean()), abs=1e-6)
        table = (directions[0][end] @ directions[0][end].mT).clamp(-1, 1).arccos()
        pairs = table[*torch.triu_indices(4, 4, 1)]
        assert float(result[f"{field}_null"][0]) == pytest.approx(float(pairs.mean()), abs=1e-6)
    assert result.boundary.values.tolist() == ["".join(model.trace(ids).tokens[:-4]).strip() for ids in texts]
    assert result.token.values.tolist() == [2, 3, 4, 5]


def test_exchanging_two_texts_keeps_the_angles() -> None:
    first_result, other_result = (
        rs.boundary(double("llama"), order, applications=3, iterations=3) for order in (TEXTS, TEXTS[::-1])
    )
    for field in ("input_angle", "final_angle", "input_angle_token", "final_angle_token"):
        assert np.allclose(first_result[field][1], other_result[field][1], atol=1e-12)
    for field in ("residual", "jacobian_norm", "jacobian_radius", "repeated_rotation_angle"):
        assert np.array_equal(first_result[field].values, other_result[field].values[::-1]), field


@torch.no_grad()
def model_that_copies_the_first_token(strength: float) -> Any:
    """One head without an MLP: every token attends to the first token only, and adds it `strength` times.

    Queries read axis 0, which all tokens have. Keys read axis 1, which only the tokens 1 and 2 have.
    """
    model = random_model(width=16)
    heads = model.view.layer_heads[0]
    for W in (heads.W_Q, heads.W_K, heads.W_V, heads.W_O):
        W.zero_()
    heads.W_Q[0, 0, 0] = heads.W_K[0, 1, 0] = 200.0
    heads.W_V[0].copy_(torch.eye(16))
    heads.W_O[0].copy_(strength * torch.eye(16))
    for part in model.network.stack.blocks[0].ffn.parameters():
        part.zero_()
    rows = random(5, 300, 16)
    rows[:, 0], rows[:, 1] = 3.0, 0.0
    rows[1:3, 1] = 9.0
    model.view.embed.copy_(rows)
    return model


def test_tokens_converge_to_the_copied_first_token() -> None:
    model = model_that_copies_the_first_token(1e4)
    result = rs.boundary(model, [[1, 7, 8, 9], [2, 7, 8, 9], [1, 30, 7, 8, 9]], applications=12, iterations=0)
    first = torch.nn.functional.normalize(model.view.embed[1:3].double(), dim=-1)
    expected_angle = float((first[0] @ first[1]).detach().arccos())
    assert not result.input_angle.any()  # the first layer reads embeddings
    assert result.final_angle_token.values[1, 0] == pytest.approx(expected_angle, abs=1e-3)
    angle_between_tokens = float(result.final_angle_null[0])  # all tokens converge to one point per boundary
    assert float(result.final_angle[1, 0]) > 100 * angle_between_tokens
    assert float(result.final_angle[2, 0]) < 1e-3  # the same first token


def test_a_layer_without_attention_output_is_independent_of_the_boundary() -> None:
    model = model_that_copies_the_first_token(0.0)
    result = rs.boundary(model, [[1, 7, 8, 9], [2, 7, 8, 9]], iterations=4)
    for field in ("input_angle", "final_angle", "residual"):
        assert not result[field].any(), field
    assert result.jacobian_norm.values == pytest.approx(1)
    assert result.jacobian_radius.values == pytest.approx(1)


def test_a_single_text_is_compared_with_two_reorderings_of_its_first_half() -> None:
    model, ids = double("llama"), [5, 11, 4, 8, 17, 3, *ENDING]
    options: dict[str, Any] = {"layers": [1], "applications": 2, "iterations": 0}
    result = rs.boundary(model, ids, **options)
    assert result.sizes["text"] == 3
    assert result.equals(rs.boundary(model, torch.tensor(ids), **options))
    assert result.equals(
        rs.boundary(model, [ids.tolist() for ids in with_reorderings(torch.tensor(ids), 0)], **options)
    )
    assert float(result.input_angle[1:].min()) > 0
    other_result = rs.boundary(model, ids, **options, seed=1)
    assert not np.array_equal(result.input_angle, other_result.input_angle)


@given(ids=st.lists(st.integers(3, 9), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_reorderings_keep_the_tokens_the_start_and_the_end(ids: list[int], seed: int) -> None:
    half = max(3, len(ids) // 2)
    if len(set(ids[1 : min(half, len(ids) - 1)])) < 2:
        with pytest.raises(rs.RheoscopeError, match="no other order"):
            with_reorderings(torch.tensor(ids), seed)
        return
    original, *reorderings = (order.tolist() for order in with_reorderings(torch.tensor(ids), seed))
    assert original == ids
    assert len(reorderings) == 2
    for order in reorderings:
        assert order != ids
        assert (order[0], order[half:]) == (ids[0], ids[half:])
        assert sorted(order) == sorted(ids)


@settings(max_examples=15)
@given(
    start=st.lists(st.integers(3, 39), max_size=3),
    end=st.lists(st.integers(3, 39), min_size=1, max_size=4),
    middles=st.lists(st.lists(st.integers(3, 39), max_size=3), min_size=2, max_size=3),
)
def test_shared_tokens_are_the_same_in_every_text(start: list[int], end: list[int], middles: list[list[int]]) -> None:
    texts = [[*start, *middle, *end] for middle in middles]
    shared_positions, n_before = find_shared_tokens([double("gpt2").trace(ids) for ids in texts])
    shared_ids = [[ids[i] for i in positions.tolist()] for ids, positions in zip(texts, shared_positions, strict=True)]
    assert all(text_ids == shared_ids[0] for text_ids in shared_ids)
    assert len(shared_positions[0]) >= min(len(start) + len(end), min(map(len, texts)))
    for ids, positions in zip(texts, shared_positions, strict=True):
        assert positions[n_before:].tolist() == list(range(len(ids) - len(positions) + n_before, len(ids)))
    if all(ids == texts[0] for ids in texts):
        assert (n_before, len(shared_positions[0])) == (0, len(texts[0]))


def test_the_other_tokens_are_held_fixed() -> None:
    x, positions = random(0, 5, 3), torch.tensor([1, 3])
    T = hold_others_fixed(lambda x: x.cumsum(0), x, positions)
    shared_points = random(1, 2, 3)
    assert torch.allclose(
        T(shared_points), torch.stack([x[0] + shared_points[0], x[0] + shared_points[0] + x[2] + shared_points[1]])
    )


def test_massive_tokens_are_left_out_of_the_means() -> None:
    model = default()
    texts = [f"{first} to the cabinet are on the table" for first in ("The keys", "A dog and the way")]
    plain, with_massive = (
        rs.boundary(model, texts, layers=[3], applications=1, iterations=0, keep_massive=keep) for keep in (False, True)
    )
    assert plain.attrs["massive"] == [model.trace(text).massive_tokens() for text in texts]
    assert plain.input_angle_token.equals(with_massive.input_angle_token)
    after = plain.token.values[plain.after_boundary.values].tolist()
    included = [position for position in after if position not in plain.attrs["massive"][0]]
    assert float(plain.input_angle[1, 0]) == pytest.approx(
        float(plain.input_angle_token[1, 0].sel(token=included).mean()), rel=1e-5
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"texts": [5, 6]},
            r"the first half of this text of 2 tokens has no other order; use a longer text; type rs.boundary",
        ),
        ({"texts": [5, 7, 7, 7, 7, 6]}, "has no other order; use a longer text"),
        (
            {"texts": ["The keys", "The dog"]},
            r"the texts must end in the same token, got .*; type texts=",
        ),
        ({"texts": ["The keys", "A keys"], "layers": [99]}, "no layer 99"),
        (
            {"texts": ["The keys", "A keys"], "layers": []},
            r"layers must name at least one layer, got none; type layers=\[0\]",
        ),
        (
            {"texts": ["The keys", "A keys"], "applications": 0},
            "applications must lie between 1 and 10,000, got 0; type applications=1",
        ),
        ({"texts": ["The keys", ""]}, "text"),
    ],
)
def test_invalid_input_gives_a_one_line_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=message) as error:
        rs.boundary(default(), **options)
    assert "\n" not in str(error.value)


def test_a_post_norm_layer_is_refused() -> None:
    with pytest.raises(rs.RheoscopeError, match=r"layer 0 is not of the form x \+ attention \+ MLP"):
        rs.boundary(double("bert"), TEXTS)

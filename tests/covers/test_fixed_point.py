"""Fixed points: a layer that does nothing is one; norm, radius and boundary equal those of the dense Jacobian."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rheoscope as rs
from rheoscope.covers.fixed_point.analysis import (
    CONTROL_FIELDS,
    displacement_angles,
    layer_map,
    orbit,
    permutation_moments,
    permutation_null,
    repeated_rotation_angles,
)
from rheoscope.covers.fixed_point.jacobian import jacobian_norm, jacobian_products, jacobian_radius
from tests.cases import EVERY, POST_NORM, double, gap, traced
from tests.covers.cases import bare
from tests.pretrained.cases import random

F64 = torch.float64
MAPS = ["gpt2", "llama", "gemma3", "qwen3", "neox", "opt", "own", "own_metric", "own_sigmoid", "own_branch"]


def dense(T: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.functional.jacobian(T, x, vectorize=True).reshape(x.numel(), x.numel())


@torch.no_grad()
@pytest.mark.parametrize("name", MAPS)
def test_the_map_is_the_models_own(name: str) -> None:
    trace = traced(name, F64)
    for layer in range(trace.view.layers):
        x = trace.layer_input(layer)
        after = trace.points[[*trace.input_steps[1:], len(trace.steps) - 1][layer]]
        assert gap(layer_map(trace, layer)(x), after) <= 1e-4 * float(after.abs().max())


def small(name: str) -> tuple[Any, Any]:
    model = double(name)
    return model, model.trace([3, 9, 4, 7])


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "own_metric", "own_encoder_buckets"])
def test_norm_radius_and_boundary_equal_the_dense_jacobians(name: str) -> None:
    model, trace = small(name)
    found = rs.fixed_point(model, trace, layers=[1], iterations=64, keep_massive=True)
    x = trace.layer_input(1)
    J = dense(layer_map(trace, 1), x)
    assert found.jacobian_norm.item() == pytest.approx(float(torch.linalg.matrix_norm(J, 2)), rel=1e-4)
    eigenvalues = torch.linalg.eigvals(J).abs().amax()
    assert found.jacobian_radius.item() == pytest.approx(float(eigenvalues), rel=1e-4)
    last = J.reshape(4, 32, 4, 32)[-1]
    share = 1 - last[:, -1].square().sum() / last.square().sum()
    assert found.boundary.item() == pytest.approx(float(share), abs=0.15)
    assert found.jacobian_radius.item() <= found.jacobian_norm.item()


@pytest.mark.parametrize("name", [name for name in EVERY if name not in POST_NORM])
def test_products_with_J_and_with_its_transpose_are_of_one_matrix(name: str) -> None:
    """⟨w, J v⟩ = ⟨Jᵀ w, v⟩ for every mechanism: J v goes through the backward pass of the backward pass, which may be wrong alone."""
    _, trace = small(name)
    forward, back = jacobian_products(layer_map(trace, 1), trace.layer_input(1))
    for seed in range(4):
        v, w = random(seed, 4, 32), random(seed + 9, 4, 32)
        there = forward(v)
        assert abs(float((w * there).sum() - (back(w) * v).sum())) <= 1e-6 * float(there.norm() * w.norm())


@pytest.mark.parametrize("name", ["gpt2", "own_encoder_buckets"])
def test_the_stated_errors_are_how_far_off_norm_and_radius_may_be(name: str) -> None:
    """After few steps the dense Jacobian's numbers are off, and by no more than is said (the radius to first order)."""
    _, trace = small(name)
    T, x = layer_map(trace, 1), trace.layer_input(1)
    J, products = dense(T, x), jacobian_products(T, x)
    wanted = torch.linalg.matrix_norm(J, 2), torch.linalg.eigvals(J).abs().amax()
    above = []
    for seed in range(3):
        start = random(seed, *x.shape).to(x)
        for steps in (12, 20):
            longest, off = jacobian_norm(*products, start, steps)
            assert -1e-6 * float(wanted[0]) <= float(wanted[0] - longest) <= float(off)
            furthest, off = jacobian_radius(products[0], start, steps)
            assert abs(float(wanted[1] - furthest)) <= 2 * float(off)
            above.append(float(furthest - wanted[1]))
    assert float(off) <= 0.1 * float(wanted[1])
    assert max(abs(one) for one in above) > 1e-4  # not yet there: the errors have something to say


def test_the_radius_is_not_always_from_below() -> None:
    """Of a map that is not symmetric Arnoldi may say too much: a nilpotent one has radius 0."""
    N = torch.diag(torch.ones(7, dtype=F64), 1)
    forward, _ = jacobian_products(lambda x: x @ N, random(0, 1, 8))
    furthest, off = jacobian_radius(forward, random(1, 1, 8), 3)
    assert float(furthest) > 0.5
    assert float(off) > 0.4


def test_a_causal_jacobian_is_block_triangular() -> None:
    """Law: later tokens do not move earlier ones, so the radius is the largest over the diagonal blocks."""
    model, trace = small("llama")
    J = dense(layer_map(trace, 0), trace.layer_input(0)).reshape(4, 32, 4, 32)
    for i in range(4):
        for j in range(i + 1, 4):
            assert not J[i, :, j].any()
    blocks = max(float(torch.linalg.eigvals(J[i, :, i]).abs().amax()) for i in range(4))
    found = rs.fixed_point(model, trace, layers=[0], iterations=64)
    assert found.jacobian_radius.item() == pytest.approx(blocks, rel=1e-4)


def test_a_linear_map_has_the_known_numbers() -> None:
    A, x = random(0, 6, 6), random(1, 3, 6)
    start = random(2, 3, 6)
    forward, back = jacobian_products(lambda x: x @ A, x)
    assert gap(forward(start), start @ A) <= 1e-12
    assert gap(back(start), start @ A.mT) <= 1e-12
    assert float(jacobian_norm(forward, back, start, 18)[0]) == pytest.approx(float(torch.linalg.matrix_norm(A, 2)))
    assert float(jacobian_radius(forward, start, 18)[0]) == pytest.approx(float(torch.linalg.eigvals(A).abs().amax()))
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=F64)
    assert torch.allclose(
        repeated_rotation_angles(orbit(lambda x: 5 * x @ turn, random(3, 4, 2), 3), torch.arange(4)),
        torch.full((3,), np.pi / 2, dtype=F64),
    )
    still = repeated_rotation_angles(orbit(lambda x: 7 * x, random(3, 4, 2), 2), torch.arange(4))
    assert float(still.max()) <= 1e-15


@torch.no_grad()
def test_a_layer_that_does_nothing_is_a_fixed_point() -> None:
    model = bare(heads=2, depth=2)
    heads = model.view.layer_heads[0]
    heads.W_O.zero_()
    silent = replace(model.view, mlps=(torch.zeros_like, model.view.mlps[1]))
    trace = model.trace([3, 5, 8])
    points = trace.points.clone()
    points[trace.input_steps[1]] = points[0]
    trace = replace(trace, points=points, view=silent)
    found = rs.fixed_point(replace(model, view=silent), trace, layers=[0], iterations=4)
    assert found.residual.item() == 0
    assert not found.residual_token.any()
    assert found.repeated_rotation_angle.values == pytest.approx(0)
    assert (found.jacobian_norm.item(), found.jacobian_radius.item()) == pytest.approx((1, 1))
    assert found.boundary.item() == pytest.approx(0)


def test_residuals_are_those_of_the_points() -> None:
    trace = traced("gpt2", F64)
    found = rs.fixed_point(double("gpt2"), trace, layers=[1], applications=2, iterations=1, keep_massive=True)
    x, y = trace.points[trace.input_steps[1]], trace.points[-1]
    assert found.residual.item() == pytest.approx(float((y - x).norm() / x.norm()))
    assert np.allclose(found.residual_token[0], ((y - x).norm(dim=-1) / x.norm(dim=-1)))


@given(st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=20)
def test_the_null_is_the_mean_over_all_permutations_of_the_displacements(n: int, seed: int) -> None:
    """A slow twin: every permutation in turn, the angles by arccos."""
    x, moved = random(seed, n, 5), random(seed + 1, n, 5)
    means = []
    for order in permutations(range(n)):
        after = x + moved[list(order)]
        means.append(torch.cosine_similarity(x, after, dim=-1).clamp(-1, 1).arccos().mean())
    mean, sd = permutation_moments(displacement_angles(x, moved))
    every = torch.stack(means)
    assert float(mean) == pytest.approx(float(every.mean()))
    assert float(sd) == pytest.approx(float(every.std(correction=0)), abs=1e-9)
    alike = permutation_moments(displacement_angles(x, moved[:1].expand(n, -1)))
    assert float(alike[0]) == pytest.approx(float(displacement_angles(x, moved[:1].expand(n, -1)).diagonal().mean()))
    assert float(alike[1]) == pytest.approx(0, abs=1e-9)


def test_displacements_that_belong_to_their_tokens_are_told_from_permuted_ones() -> None:
    """A map that pulls every token along itself turns nothing; given to others, the same displacements turn them."""
    x = random(4, 12, 8)
    tables = torch.stack([displacement_angles(x, 2 * x), displacement_angles(x, random(5, 12, 8))])
    own = tables.diagonal(dim1=-2, dim2=-1).mean(-1)
    orders = torch.stack([torch.randperm(12, generator=torch.Generator().manual_seed(at)) for at in range(99)])
    assert float(permutation_null(own[:1], tables[:1], orders)["rotation_angle_p_value"]) == pytest.approx(1 / 100)
    assert float(permutation_null(own[1:], tables[1:], orders)["rotation_angle_p_value"]) > 0.05


def test_turn_is_the_first_settling_and_its_draws_are_of_one_permutation_for_all_layers() -> None:
    model, trace = double("gpt2"), traced("gpt2", F64)
    found = rs.fixed_point(model, trace, applications=2, iterations=1, draws=40)
    assert np.array_equal(found.rotation_angle, found.repeated_rotation_angle[:, 0])
    assert found.rotation_angle_null_draws.shape == (40, 2)
    z = (
        (found.rotation_angle_null_draws.mean("draw") - found.rotation_angle_null)
        / found.rotation_angle_null_sd
        * np.sqrt(40)
    )
    assert float(abs(z).max()) < 4
    assert 1 / 41 - 1e-12 <= float(found.rotation_angle_p_value) <= 1
    assert "rotation_angle_p_value" not in rs.fixed_point(model, trace, applications=1, iterations=1, draws=0)


def test_the_control_has_its_own_layers_on_the_same_text() -> None:
    model, trace = double("gpt2"), traced("gpt2", F64)
    given = {"layers": [1], "times": 2, "iterations": 3}
    found = rs.fixed_point(model, trace, control=trace, **given)
    assert found.attrs["control"] == f"{trace.facts['model']}, weights {trace.facts['weights']}"
    for name in CONTROL_FIELDS:
        assert np.array_equal(found[name], found[f"{name}_untrained"]), name
    with pytest.raises(rs.RheoscopeError, match=r"a control is the same text .*; type control=rs.load"):
        rs.fixed_point(model, trace, control=model.trace([3, 4, 5]))


def test_what_it_cannot_do_is_told_in_one_line() -> None:
    with pytest.raises(rs.RheoscopeError, match=r"layer 0 is no x \+ attention \+ MLP .*; type rs.trajectory"):
        rs.fixed_point(double("bert"), traced("bert", F64))
    with pytest.raises(rs.RheoscopeError, match="got layers=\\[\\], applications=8"):
        rs.fixed_point(double("gpt2"), traced("gpt2", F64), layers=[])
    with pytest.raises(rs.RheoscopeError, match="no layer 9"):
        rs.fixed_point(double("gpt2"), traced("gpt2", F64), layers=[9])


def test_a_trace_of_other_weights_is_refused() -> None:
    with pytest.raises(
        rs.RheoscopeError, match=r"this trace comes from weights .*, but the model has weights .*; type model.trace"
    ):
        rs.fixed_point(double("gpt2"), traced("llama", F64))

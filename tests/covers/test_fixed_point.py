"""Fixed points: the layer map, the dense Jacobian as reference, permutation nulls, controls and errors."""

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
from tests.covers.cases import random_model
from tests.pretrained.cases import random

F64 = torch.float64
MAPS = ["gpt2", "llama", "gemma3", "qwen3", "neox", "opt", "own", "own_metric", "own_sigmoid", "own_branch"]


def dense_jacobian(T: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.functional.jacobian(T, x, vectorize=True).reshape(x.numel(), x.numel())


@torch.no_grad()
@pytest.mark.parametrize("name", MAPS)
def test_the_layer_map_equals_the_models_layer(name: str) -> None:
    trace = traced(name, F64)
    for layer in range(trace.view.layers):
        x = trace.layer_input(layer)
        after = trace.points[[*trace.input_steps[1:], len(trace.steps) - 1][layer]]
        assert gap(layer_map(trace, layer)(x), after) <= 1e-4 * float(after.abs().max())


def model_and_short_trace(name: str) -> tuple[Any, Any]:
    model = double(name)
    return model, model.trace([3, 9, 4, 7])


@pytest.mark.parametrize("name", [name for name in EVERY if name not in POST_NORM])
def test_products_with_J_and_its_transpose_are_adjoint(name: str) -> None:
    """⟨w, J v⟩ = ⟨Jᵀ w, v⟩ for every mechanism. J v uses the double backward pass, Jᵀ w the backward pass."""
    _, trace = model_and_short_trace(name)
    forward, back = jacobian_products(layer_map(trace, 1), trace.layer_input(1))
    v, w = random(0, 4, 32), random(9, 4, 32)
    product = forward(v)
    assert abs(float((w * product).sum() - (back(w) * v).sum())) <= 1e-6 * float(product.norm() * w.norm())


@pytest.mark.parametrize("name", ["gpt2", "own_encoder_buckets"])
def test_norm_and_radius_lie_within_their_errors_after_few_iterations(name: str) -> None:
    """The error of the radius is a first-order estimate, so a factor of 2 is allowed."""
    _, trace = model_and_short_trace(name)
    T, x = layer_map(trace, 1), trace.layer_input(1)
    J, products = dense_jacobian(T, x), jacobian_products(T, x)
    expected_norm, expected_radius = torch.linalg.matrix_norm(J, 2), torch.linalg.eigvals(J).abs().amax()
    radius_errors = []
    for seed in range(3):
        start = random(seed, *x.shape).to(x)
        for steps in (12, 20):
            norm, error = jacobian_norm(*products, start, steps)
            assert -1e-6 * float(expected_norm) <= float(expected_norm - norm) <= float(error)
            radius, error = jacobian_radius(products[0], start, steps)
            assert abs(float(expected_radius - radius)) <= 2 * float(error)
            radius_errors.append(float(radius - expected_radius))
    assert float(error) <= 0.1 * float(expected_radius)
    assert max(map(abs, radius_errors)) > 1e-4  # the iteration has not converged, so the error matters


def test_arnoldi_can_overestimate_the_radius_of_a_nilpotent_map() -> None:
    """The radius is 0, and the error covers the overestimate."""
    N = torch.diag(torch.ones(7, dtype=F64), 1)
    forward, _ = jacobian_products(lambda x: x @ N, random(0, 1, 8))
    radius, error = jacobian_radius(forward, random(1, 1, 8), 3)
    assert float(radius) > 0.5
    assert float(error) > 0.4


def test_a_linear_map_has_the_norm_radius_and_angles_of_its_matrix() -> None:
    A, x = random(0, 6, 6), random(1, 3, 6)
    start = random(2, 3, 6)
    forward, back = jacobian_products(lambda x: x @ A, x)
    assert gap(forward(start), start @ A) <= 1e-12
    assert gap(back(start), start @ A.mT) <= 1e-12
    assert float(jacobian_norm(forward, back, start, 18)[0]) == pytest.approx(float(torch.linalg.matrix_norm(A, 2)))
    assert float(jacobian_radius(forward, start, 18)[0]) == pytest.approx(float(torch.linalg.eigvals(A).abs().amax()))
    quarter_rotation = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=F64)
    assert torch.allclose(
        repeated_rotation_angles(orbit(lambda x: 5 * x @ quarter_rotation, random(3, 4, 2), 3), torch.arange(4)),
        torch.full((3,), np.pi / 2, dtype=F64),
    )
    scale_angles = repeated_rotation_angles(orbit(lambda x: 7 * x, random(3, 4, 2), 2), torch.arange(4))
    assert float(scale_angles.max()) <= 1e-15


@torch.no_grad()
def test_a_layer_that_writes_nothing_is_a_fixed_point() -> None:
    model = random_model(heads=2, depth=2)
    heads = model.view.layer_heads[0]
    heads.W_O.zero_()
    silent_view = replace(model.view, mlps=(torch.zeros_like, model.view.mlps[1]))
    trace = model.trace([3, 5, 8])
    points = trace.points.clone()
    points[trace.input_steps[1]] = points[0]
    trace = replace(trace, points=points, view=silent_view)
    result = rs.fixed_point(replace(model, view=silent_view), trace, layers=[0], iterations=4)
    assert result.residual.item() == 0
    assert not result.residual_token.any()
    assert result.repeated_rotation_angle.values == pytest.approx(0)
    assert (result.jacobian_norm.item(), result.jacobian_radius.item()) == pytest.approx((1, 1))
    assert result.boundary.item() == pytest.approx(0)


def test_residuals_equal_those_of_the_points() -> None:
    trace = traced("gpt2", F64)
    result = rs.fixed_point(double("gpt2"), trace, layers=[1], applications=2, iterations=0, keep_massive=True)
    x, y = trace.points[trace.input_steps[1]], trace.points[-1]
    assert result.residual.item() == pytest.approx(float((y - x).norm() / x.norm()))
    assert np.allclose(result.residual_token[0], ((y - x).norm(dim=-1) / x.norm(dim=-1)))


@given(st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=20)
def test_the_null_moments_equal_an_enumeration_of_all_permutations(n: int, seed: int) -> None:
    x, displacement = random(seed, n, 5), random(seed + 1, n, 5)
    means = []
    for order in permutations(range(n)):
        after = x + displacement[list(order)]
        means.append(torch.cosine_similarity(x, after, dim=-1).clamp(-1, 1).arccos().mean())
    mean, sd = permutation_moments(displacement_angles(x, displacement))
    all_means = torch.stack(means)
    assert float(mean) == pytest.approx(float(all_means.mean()))
    assert float(sd) == pytest.approx(float(all_means.std(correction=0)), abs=1e-9)
    equal_displacements = displacement_angles(x, displacement[:1].expand(n, -1))
    mean, sd = permutation_moments(equal_displacements)
    assert float(mean) == pytest.approx(float(equal_displacements.diagonal().mean()))
    assert float(sd) == pytest.approx(0, abs=1e-9)


def test_radial_displacements_are_significant_and_random_displacements_are_not() -> None:
    """A displacement along the token itself rotates nothing, but it rotates other tokens."""
    x = random(4, 12, 8)
    tables = torch.stack([displacement_angles(x, 2 * x), displacement_angles(x, random(5, 12, 8))])
    mean_angles = tables.diagonal(dim1=-2, dim2=-1).mean(-1)
    orders = torch.stack([torch.randperm(12, generator=torch.Generator().manual_seed(seed)) for seed in range(99)])
    assert float(permutation_null(mean_angles[:1], tables[:1], orders)["rotation_angle_p_value"]) == pytest.approx(
        1 / 100
    )
    assert float(permutation_null(mean_angles[1:], tables[1:], orders)["rotation_angle_p_value"]) > 0.05


def test_the_rotation_angle_is_that_of_the_first_application_and_its_draws_match_the_null() -> None:
    model, trace = double("gpt2"), traced("gpt2", F64)
    result = rs.fixed_point(model, trace, applications=2, iterations=0, draws=40)
    assert np.array_equal(result.rotation_angle, result.repeated_rotation_angle[:, 0])
    assert result.rotation_angle_null_draws.shape == (40, 2)
    z = (
        (result.rotation_angle_null_draws.mean("draw") - result.rotation_angle_null)
        / result.rotation_angle_null_sd
        * np.sqrt(40)
    )
    assert float(abs(z).max()) < 4
    assert 1 / 41 - 1e-12 <= float(result.rotation_angle_p_value) <= 1
    assert "rotation_angle_p_value" not in rs.fixed_point(model, trace, applications=1, iterations=0, draws=0)


def test_a_control_adds_its_own_fields() -> None:
    model, trace = double("gpt2"), traced("gpt2", F64)
    options = {"layers": [1], "applications": 2, "iterations": 3}
    result = rs.fixed_point(model, trace, control=trace, **options)
    assert result.attrs["control"] == f"{trace.facts['model']}, weights {trace.facts['weights']}"
    for name in CONTROL_FIELDS:
        assert np.array_equal(result[name], result[f"{name}_untrained"]), name
    with pytest.raises(rs.RheoscopeError, match=r"the control must have .*; type control=rs.load"):
        rs.fixed_point(model, trace, control=model.trace([3, 4, 5]))


def test_post_norm_layers_and_invalid_layers_are_refused() -> None:
    with pytest.raises(
        rs.RheoscopeError, match=r"layer 0 is not of the form x \+ attention \+ MLP .*; type rs.trajectory"
    ):
        rs.fixed_point(double("bert"), traced("bert", F64))
    with pytest.raises(rs.RheoscopeError, match=r"at least one layer, got none; type layers=\[0\]"):
        rs.fixed_point(double("gpt2"), traced("gpt2", F64), layers=[])
    with pytest.raises(rs.RheoscopeError, match="no layer 9"):
        rs.fixed_point(double("gpt2"), traced("gpt2", F64), layers=[9])


def test_a_trace_of_other_weights_is_refused() -> None:
    with pytest.raises(
        rs.RheoscopeError, match=r"this trace comes from weights .*, but the model has weights .*; type model.trace"
    ):
        rs.fixed_point(double("gpt2"), traced("llama", F64))

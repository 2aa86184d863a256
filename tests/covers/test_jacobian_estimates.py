"""Norm, radius and shares of Jacobians: exact blocks, removed symmetries, and errors that cover the dense values."""

from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.covers.fixed_point.jacobian import jacobian_products, jacobian_radius
from rheoscope.covers.fixed_point.layer_map import LayerMap, layer_map
from rheoscope.covers.fixed_point.row_probes import jackknife_errors, probe_row
from rheoscope.covers.fixed_point.token_blocks import largest_block_radius, token_blocks
from tests.cases import double
from tests.pretrained.cases import random

F64 = torch.float64
TEXT = [3, 9, 4, 7]
CAUSAL = ["gpt2", "gemma3", "neox", "own_metric", "own_sigmoid"]
"""Positions in the embedding, grouped heads with norms, a parallel block, and weights that do not sum to 1."""


def dense_jacobian(T: Any, x: torch.Tensor) -> torch.Tensor:
    """J[i, :, j] = ∂T_i/∂x_j."""
    return torch.autograd.functional.jacobian(T, x, vectorize=True).detach()


def dense_projection(T: LayerMap, x: torch.Tensor, token: int) -> torch.Tensor:
    """The dense matrix that removes a token's symmetry directions."""
    preserved = [torch.ones_like(x[token])] * T.preserves_constant + [x[token]] * T.preserves_scale
    if not preserved:
        return torch.eye(x.shape[-1], dtype=F64)
    D = torch.stack(preserved, -1)
    return torch.eye(x.shape[-1], dtype=F64) - D @ torch.linalg.pinv(D)


def dense_radius(T: LayerMap, x: torch.Tensor) -> float:
    """The largest |eigenvalue| of the whole Jacobian between the remaining directions."""
    n, d = x.shape
    P = torch.block_diag(*(dense_projection(T, x, token) for token in range(n)))
    J = dense_jacobian(T, x).reshape(n * d, n * d)
    return float(torch.linalg.eigvals(P @ J @ P).abs().amax())


@pytest.mark.parametrize("name", CAUSAL)
def test_the_own_map_has_the_diagonal_blocks_of_the_dense_jacobian(name: str) -> None:
    trace = double(name).trace(TEXT)
    T, x = layer_map(trace, 1), trace.layer_input(1)
    assert T.own is not None
    J = dense_jacobian(T, x)
    assert not any(J[i, :, j].any() for i in range(4) for j in range(i + 1, 4))
    blocks = token_blocks(T.own, x, lambda v: v)
    for token in range(4):
        assert torch.allclose(blocks[token], J[token, :, token], atol=1e-5 * float(J.abs().max())), token
    assert torch.equal(T.own(x), T.own(torch.stack([x, 2 * x]))[0])


@pytest.mark.parametrize("name", ["gpt2", "own_metric", "own_encoder_buckets"])
def test_the_radius_equals_that_of_the_dense_jacobian_without_symmetries(name: str) -> None:
    model = double(name)
    trace = model.trace(TEXT)
    result = rs.fixed_point(model, trace, layers=[1], tolerance=1e-5, applications=1, draws=0)
    T, x = layer_map(trace, 1), trace.layer_input(1)
    assert result.jacobian_radius.item() == pytest.approx(dense_radius(T, x), rel=1e-4)
    assert result.jacobian_norm.item() == pytest.approx(
        float(torch.linalg.matrix_norm(dense_jacobian(T, x).reshape(128, 128), 2)), rel=1e-4
    )
    last = dense_jacobian(T, x)[-1].square().sum((0, 2))
    assert result.boundary.item() == pytest.approx(float(1 - last[-1] / last.sum()), abs=1e-6)
    assert result.boundary_error.item() == 0


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_symmetry_directions_are_eigenvectors_with_eigenvalue_1(name: str) -> None:
    """LayerNorm: the constant, exactly. Parallel blocks: the token itself, up to the eps of the norm."""
    trace = double(name).trace(TEXT)
    T, x = layer_map(trace, 1), trace.layer_input(1)
    assert T.preserves_scale
    J, v = dense_jacobian(T, x), torch.ones(32, dtype=F64)
    assert T.preserves_constant == (name != "llama")
    for token in range(4):
        if T.preserves_constant:
            assert torch.allclose(J[token, :, token] @ v, v, atol=1e-4)
        if name == "neox":
            assert torch.allclose(J[token, :, token] @ x[token], x[token], atol=1e-3 * float(x[token].norm()))
        projected = T.without_symmetries(x)(torch.stack([x, torch.ones_like(x) if T.preserves_constant else x]))
        assert float(projected.abs().max()) <= 1e-9


def test_an_identity_layer_keeps_the_eigenvalue_1_of_the_other_directions() -> None:
    x = random(0, 3, 6)
    T = LayerMap(lambda x: x, lambda x: x, True, True)
    radius, error = largest_block_radius(T.apply, x, T.without_symmetries(x), 0.0)
    assert (float(radius), float(error)) == pytest.approx((1, 0), abs=1e-5)


def test_blocks_that_are_left_out_are_covered_by_the_error() -> None:
    blocks = random(1, 12, 8, 8)
    radii = torch.linalg.eigvals(blocks).abs().amax(-1)
    x = torch.zeros(12, 8, dtype=F64)

    def own(x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("...nd,ned->...ne", x, blocks)

    for tolerance in (0.0, 0.1, 0.5):
        radius, error = largest_block_radius(own, x, lambda v: v, tolerance)
        assert -1e-9 <= float(radii.max() - radius) <= float(error)


def test_arnoldi_stops_at_the_tolerance() -> None:
    A, x = torch.diag(torch.linspace(0.1, 3, 60, dtype=F64)), random(1, 1, 60)
    n_products = []
    for tolerance in (0.1, 0.001):
        vjp, calls = jacobian_products(lambda x: x @ A, x)[1], [0]

        def counted(w: torch.Tensor, vjp: Any = vjp, calls: list[int] = calls) -> torch.Tensor:
            calls[0] += 1
            return vjp(w)

        radius, error = jacobian_radius(counted, random(2, 1, 60), 200, tolerance)
        assert float(error) <= tolerance * float(radius)
        assert abs(float(radius) - 3) <= 2 * tolerance * 3
        n_products.append(calls[0])
    assert n_products[0] < n_products[1] < 60


def linear_row(n: int, d: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A linear map of n tokens, a cloud, and the squared norms of the blocks of the last token's rows."""
    W = random(3, n, d, d) * torch.linspace(0.2, 1, n, dtype=F64)[:, None, None]

    def T(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[..., :-1, :], torch.einsum("...nd,nde->...e", x, W)[..., None, :]], -2)

    return T, random(4, n, d), W.square().sum((1, 2))


def shares(squares: torch.Tensor) -> torch.Tensor:
    return squares.sqrt() / squares.sqrt().sum(-1, keepdim=True)


def test_all_probes_are_exact_and_few_probes_have_an_honest_error() -> None:
    T, x, squares = linear_row(5, 24)
    expected = shares(squares)
    exact, error = probe_row(T, x, 4, shares, 0.0, None, torch.Generator().manual_seed(0))
    assert torch.allclose(exact, expected, atol=1e-9)
    assert not error.any()
    scores = []
    for seed in range(60):
        value, error = probe_row(T, x, 4, shares, 0.0, 8, torch.Generator().manual_seed(seed))
        scores.append(((value - expected) / error).numpy())
    assert 0.75 < float(np.square(scores).mean()) ** 0.5 < 1.35


def test_probes_are_added_until_the_error_is_below_the_tolerance() -> None:
    T, x, squares = linear_row(5, 64)
    for tolerance in (0.02, 0.004):
        value, error = probe_row(T, x, 4, shares, tolerance, None, torch.Generator().manual_seed(1))
        assert float(error.max()) <= tolerance
        assert float((value - shares(squares)).abs().max()) <= 4 * tolerance
    assert float(jackknife_errors(random(0, 1, 5).square(), shares, 64).min()) == torch.inf


def test_rollout_shares_lie_within_their_errors() -> None:
    model = double("gpt2")
    trace = model.trace([3, 9, 4, 7, 5, 8, 6])
    maps = [layer_map(trace, layer) for layer in range(2)]
    dense = dense_jacobian(lambda x: maps[1](maps[0](x))[5], trace.points[0]).square().sum((0, 2))
    exact = rs.rollout(model, trace, token=5, tolerance=1e-5)
    assert np.allclose(exact.jacobian, shares(dense), atol=1e-9)
    assert not exact.jacobian_error.any()
    assert float(exact.correlation_error) == 0
    estimate = rs.rollout(model, trace, token=5, probes=8, tolerance=1e-5)
    assert float(estimate.jacobian_error[:6].min()) > 0
    assert bool((abs(estimate.jacobian - exact.jacobian) <= 5 * estimate.jacobian_error + 1e-12).all())

"""Tests of `heat`: the semigroup, its series and Laplace transform, planted walks, the null and refused settings."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import rheoscope as rs
from rheoscope.covers.heat import analysis as heat_module
from rheoscope.covers.heat.analysis import (
    batch,
    green_function,
    heat_kernel,
    kernel,
    key_permutations,
    permute_weights,
    row_distance,
    spectral_gaps,
    total_variation,
)
from tests.attention.cases import without_jaxtyping_checks
from tests.cases import double, text
from tests.models.cases import traced as own_traced

F64 = torch.float64
SEEDS, TIMES = st.integers(0, 10_000), st.floats(0.05, 6)


def random_walk(seed: int, n: int = 6, causal: bool = False) -> Tensor:
    """A row-stochastic matrix with sharp and flat rows."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, n, generator=generator, dtype=F64) * (4 * torch.rand(n, 1, generator=generator, dtype=F64))
    return (scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf) if causal else scores).softmax(-1)


@given(SEEDS, TIMES, TIMES, st.booleans())
@settings(max_examples=25)
def test_heat_kernels_form_a_stochastic_semigroup_and_equal_their_series(
    seed: int, s: float, t: float, causal: bool
) -> None:
    A = random_walk(seed, causal=causal)
    H = heat_kernel(A, t)
    assert float(H.min()) >= -1e-14
    assert torch.allclose(H.sum(-1), torch.ones(6, dtype=F64), atol=1e-12)
    assert torch.allclose(heat_kernel(A, s + t), heat_kernel(A, s) @ H, atol=1e-12)
    series, power, probability = torch.zeros_like(A), torch.eye(6, dtype=F64), math.exp(-t)
    for k in range(80):
        series, power, probability = series + probability * power, power @ A, probability * t / (k + 1)
    assert torch.allclose(H, series, atol=1e-12)


@given(SEEDS, st.floats(0.5, 4))
@settings(max_examples=4)
def test_the_green_function_is_a_geometric_sum_and_a_laplace_transform(seed: int, s: float) -> None:
    A = random_walk(seed)
    G, series, power = green_function(A, s), torch.zeros_like(A), torch.eye(6, dtype=F64)
    for k in range(300):
        series, power = series + s / (1 + s) ** (k + 1) * power, power @ A
    assert torch.allclose(G, series, atol=1e-12)
    assert torch.allclose(G.sum(-1), torch.ones(6, dtype=F64))
    step, total, H = 0.02 / s, torch.zeros_like(A), torch.eye(6, dtype=F64)
    half = heat_kernel(A, step / 2)
    for k in range(1000):  # the midpoint rule for ∫ s e^{−su} e^{−u(I−A)} du
        total, H = total + s * step * math.exp(-s * (k + 0.5) * step) * (H @ half), H @ half @ half
    assert torch.allclose(G, total, atol=1e-3)


@given(SEEDS, st.booleans())
@settings(max_examples=20)
def test_distances_equal_a_loop_and_the_row_distance_never_grows(seed: int, causal: bool) -> None:
    A = random_walk(seed, causal=causal)
    result = kernel(A[None], (1, 2, 3))
    for index, time in enumerate((1, 2, 3)):
        power, H = torch.linalg.matrix_power(A, time), heat_kernel(A, time)
        distance = sum(sum(abs(float(power[i, j] - H[i, j])) for j in range(6)) / 2 for i in range(6)) / 6
        assert float(result["heat_distance"][0, index]) == pytest.approx(distance, abs=1e-12)
        pairs = [float((H[i] - H[j]).abs().sum() / 2) for i in range(6) for j in range(6) if i != j]
        assert float(result["row_distance"][0, index]) == pytest.approx(np.mean(pairs), abs=1e-12)
    row_distances = [1.0, *result["row_distance"][0].tolist()]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(row_distances))


def test_walks_with_equal_rows() -> None:
    """A² = A, so the distance from the heat kernel is e^{−t} times that from the identity."""
    A = random_walk(3)[:1].expand(6, 6)
    identity_distance = float(total_variation(A, torch.eye(6, dtype=F64)).mean())
    expected = [identity_distance * math.exp(-1), identity_distance * math.exp(-3)]
    assert kernel(A[None], (1, 3))["heat_distance"][0].tolist() == pytest.approx(expected)
    assert float(spectral_gaps(A[None])) == pytest.approx(1)


def test_the_identity_never_moves() -> None:
    identity = torch.eye(4, dtype=F64)[None]
    assert not kernel(identity, (1, 5))["heat_distance"].any()
    assert float(spectral_gaps(identity)) == 0
    assert float(row_distance(identity)) == 1


def test_a_cycle_of_three_mixes_under_heat_but_not_under_powers() -> None:
    cycle = torch.eye(3, dtype=F64).roll(1, 1)[None]
    assert float(spectral_gaps(cycle)) == pytest.approx(1.5)  # eigenvalues 1 and e^{±2πi/3}
    result = kernel(cycle, (30,))
    assert float(result["heat_distance"]) == pytest.approx(2 / 3, abs=1e-9)
    assert float(result["row_distance"]) < 1e-9


def test_metric_attention_on_a_ring_converges_to_the_heat_kernel() -> None:
    """Steps have mean 0 and variance ε, so powers and the heat kernel both tend to a Gaussian of variance tε."""
    positions = torch.arange(120, dtype=F64)
    offsets = (positions[:, None] - positions).abs()
    A = (-(torch.minimum(offsets, 120 - offsets) ** 2) / 18).softmax(-1)
    distances = kernel(A[None], (1, 4, 16))["heat_distance"][0]
    assert float(distances[1]) < float(distances[0]) / 3
    assert float(distances[2]) == pytest.approx(float(distances[1]) / 4, rel=0.15)


@given(SEEDS, st.integers(2, 7))
@settings(max_examples=20)
def test_permuted_weights_keep_every_row_and_the_mask(seed: int, n: int) -> None:
    allowed = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < 0.7
    allowed.fill_diagonal_(True)
    A = torch.randn(2, n, n, dtype=F64).masked_fill(~allowed, -torch.inf).softmax(-1)
    permutations = key_permutations(allowed, 3, seed)
    assert torch.equal(permutations.sort(-1).values, torch.arange(n).expand_as(permutations))
    for permutation in permutations:
        permuted = permute_weights(A, permutation)
        assert not permuted[:, ~allowed].any()
        assert torch.equal(permuted.sort(-1).values, A.sort(-1).values)


def test_fields_of_a_model_equal_the_kernel_on_its_weights() -> None:
    trace = double("gpt2").trace(text())
    result = rs.heat(trace, times=(1, 4), draws=3)
    A = trace.weights(1, 2)
    expected = kernel(A[None], (1, 4))["heat_distance"][0]
    assert np.allclose(result.heat_distance[1, 2], expected, atol=1e-12)
    assert np.allclose(result.spectral_gap[1, 2], 1 - A.diagonal().sort().values[-2], atol=1e-12)
    permutations = key_permutations(torch.ones_like(A).tril().bool(), 3, 0)
    null = torch.stack(
        [kernel(permute_weights(A[None], permutation), (1, 4))["row_distance"][0] for permutation in permutations]
    )
    assert np.allclose(result.row_distance_null[1, 2], null.mean(0), atol=1e-12)
    assert np.allclose(result.row_distance_null_sd[1, 2], null.std(0), atol=1e-12)
    assert float(result.q_value.min()) >= 1 / (3 * result.heat_distance.size + 1)
    assert "q_value" not in rs.heat(trace, draws=0)


def test_the_gap_of_an_encoder_equals_its_eigenvalues() -> None:
    trace = own_traced("own_encoder", F64)
    result = rs.heat(trace, times=(2,), draws=0)
    second_largest = np.sort(np.linalg.eigvals(trace.weights(0, 1).numpy()).real)[-2]
    assert float(result.spectral_gap[0, 1]) == pytest.approx(1 - second_largest)


def test_heads_whose_rows_are_not_distributions_give_nan() -> None:
    for name in ("own_sigmoid", "own_shaped", "own_sink"):
        assert bool(rs.heat(own_traced(name), times=(1,), draws=0).heat_distance.isnull().all())


@pytest.mark.parametrize("invalid", [{"times": (0,)}, {"times": ()}, {"times": (0.5,)}, {"draws": -1}])
def test_invalid_settings_are_refused_with_a_valid_value(invalid: dict) -> None:
    with without_jaxtyping_checks(), pytest.raises(rs.RheoscopeError, match=f"type {next(iter(invalid))}="):
        rs.heat(double("gpt2").trace(text()), **invalid)


def test_small_batches_give_the_values_of_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = double("bert").trace([text(seed, n) for seed, n in enumerate((9, 6, 8))])
    one_batch, steps = batch(traces, (1, 4), draws=2), list[tuple[int, int]]()
    monkeypatch.setattr(heat_module, "block_numel", lambda device: 2 * traces.view.heads * 81)
    small_batches = batch(traces, (1, 4), draws=2, progress=lambda *step: steps.append(step))
    assert steps[-1] == (2 * traces.view.layers, 2 * traces.view.layers)
    for name, values in one_batch.items():
        torch.testing.assert_close(small_batches[name], values, equal_nan=True)

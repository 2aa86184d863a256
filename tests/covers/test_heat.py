"""Heat on the graph of a head: rows that are laws, the semigroup, its series, its Laplace transform, and planted walks."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import rheoscope as rs
from rheoscope.covers.heat import analysis as of_heat
from rheoscope.covers.heat.analysis import (
    batch,
    green_function,
    heat_kernel,
    kernel,
    key_permutations,
    row_distance,
    permute_weights,
    spectral_gaps,
    total_variation,
)
from tests.attention.cases import without_jaxtyping_checks
from tests.cases import double, text
from tests.models.cases import traced as own_traced

F64 = torch.float64
seeds, spans = st.integers(0, 10_000), st.floats(0.05, 6)


def walk(seed: int, n: int = 6, causal: bool = False) -> Tensor:
    """A row-stochastic matrix, some rows sharp and some flat."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, n, generator=draw, dtype=F64) * (4 * torch.rand(n, 1, generator=draw, dtype=F64))
    return (scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf) if causal else scores).softmax(-1)


@given(seeds, spans, spans, st.booleans())
@settings(max_examples=25)
def test_heat_is_a_semigroup_of_laws_and_equals_its_series(seed: int, s: float, t: float, causal: bool) -> None:
    A = walk(seed, causal=causal)
    H = heat_kernel(A, t)
    assert float(H.min()) >= -1e-14
    assert torch.allclose(H.sum(-1), torch.ones(6, dtype=F64), atol=1e-12)
    assert torch.allclose(heat_kernel(A, s + t), heat_kernel(A, s) @ H, atol=1e-12)
    series, power, share = torch.zeros_like(A), torch.eye(6, dtype=F64), math.exp(-t)
    for k in range(80):
        series, power, share = series + share * power, power @ A, share * t / (k + 1)
    assert torch.allclose(H, series, atol=1e-12)


@given(seeds, st.floats(0.5, 4))
@settings(max_examples=4)
def test_the_green_function_is_a_geometric_sum_and_the_laplace_transform(seed: int, s: float) -> None:
    A = walk(seed)
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


@given(seeds, st.booleans())
@settings(max_examples=20)
def test_memory_never_grows_and_distances_are_those_of_a_loop(seed: int, causal: bool) -> None:
    A = walk(seed, causal=causal)
    found = kernel(A[None], (1, 2, 3))
    for at, time in enumerate((1, 2, 3)):
        power, H = torch.linalg.matrix_power(A, time), heat_kernel(A, time)
        apart = sum(sum(abs(float(power[i, j] - H[i, j])) for j in range(6)) / 2 for i in range(6)) / 6
        assert float(found["heat_distance"][0, at]) == pytest.approx(apart, abs=1e-12)
        pairs = [float((H[i] - H[j]).abs().sum() / 2) for i in range(6) for j in range(6) if i != j]
        assert float(found["row_distance"][0, at]) == pytest.approx(np.mean(pairs), abs=1e-12)
    remembered = [1.0, *found["row_distance"][0].tolist()]
    assert all(later <= before + 1e-12 for before, later in pairwise(remembered))


def test_planted_walks() -> None:
    """One law for all rows: A² = A. Standing still: nothing moves. A ring of three: never settles by powers, but heat does."""
    law = walk(3)[:1].expand(6, 6)
    found = kernel(law[None], (1, 3))
    away = float(total_variation(law, torch.eye(6, dtype=F64)).mean())
    assert found["heat_distance"][0].tolist() == pytest.approx([away * math.exp(-1), away * math.exp(-3)])
    assert float(spectral_gaps(law[None])) == pytest.approx(1)
    still = torch.eye(4, dtype=F64)[None]
    assert not kernel(still, (1, 5))["heat_distance"].any()
    assert float(spectral_gaps(still)) == 0
    assert float(row_distance(still)) == 1
    ring = torch.eye(3, dtype=F64).roll(1, 1)[None]
    assert float(spectral_gaps(ring)) == pytest.approx(1.5)  # eigenvalues 1 and e^{±2πi/3}
    late = kernel(ring, (30,))
    assert float(late["heat_distance"]) == pytest.approx(2 / 3, abs=1e-9)
    assert float(late["row_distance"]) < 1e-9


def test_metric_attention_on_a_ring_comes_near_to_heat() -> None:
    """The limit of the theory bench: steps of mean 0 and variance ε; powers and heat both tend to the Gaussian of variance tε."""
    place = torch.arange(120, dtype=F64)
    apart = (place[:, None] - place).abs()
    A = (-(torch.minimum(apart, 120 - apart) ** 2) / 18).softmax(-1)
    near = kernel(A[None], (1, 4, 16))["heat_distance"][0]
    assert float(near[1]) < float(near[0]) / 3
    assert float(near[2]) == pytest.approx(float(near[1]) / 4, rel=0.15)


@given(seeds, st.integers(2, 7))
@settings(max_examples=20)
def test_dealing_keeps_every_row_and_the_mask(seed: int, n: int) -> None:
    allowed = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < 0.7
    allowed.fill_diagonal_(True)
    A = torch.randn(2, n, n, dtype=F64).masked_fill(~allowed, -torch.inf).softmax(-1)
    order = key_permutations(allowed, 3, seed)
    assert torch.equal(order.sort(-1).values, torch.arange(n).expand_as(order))
    for one in order:
        other = permute_weights(A, one)
        assert not other[:, ~allowed].any()
        assert torch.equal(other.sort(-1).values, A.sort(-1).values)


def test_of_a_model_and_its_null() -> None:
    trace = double("gpt2").trace(text())
    found = rs.heat(trace, times=(1, 4), draws=3)
    A = trace.weights(1, 2)
    direct = kernel(A[None], (1, 4))["heat_distance"][0]
    assert np.allclose(found.heat_distance[1, 2], direct, atol=1e-12)
    assert np.allclose(found.spectral_gap[1, 2], 1 - A.diagonal().sort().values[-2], atol=1e-12)
    allowed = torch.ones_like(A).tril().bool()
    null = torch.stack(
        [kernel(permute_weights(A[None], one), (1, 4))["row_distance"][0] for one in key_permutations(allowed, 3, 0)]
    )
    assert np.allclose(found.row_distance_null[1, 2], null.mean(0), atol=1e-12)
    assert np.allclose(found.row_distance_null_sd[1, 2], null.std(0), atol=1e-12)
    assert float(found.q_value.min()) >= 1 / (3 * found.heat_distance.size + 1)
    assert "q_value" not in rs.heat(trace, draws=0)


def test_both_ways_and_heads_that_are_no_walk() -> None:
    trace = own_traced("own_encoder", F64)
    found = rs.heat(trace, times=(2,), draws=0)
    second = np.sort(np.linalg.eigvals(trace.weights(0, 1).numpy()).real)[-2]
    assert float(found.spectral_gap[0, 1]) == pytest.approx(1 - second)
    for name in ("own_sigmoid", "own_shaped", "own_sink"):
        assert bool(rs.heat(own_traced(name), times=(1,), draws=0).heat_distance.isnull().all())


@pytest.mark.parametrize("asked", [{"times": (0,)}, {"times": ()}, {"times": (0.5,)}, {"draws": -1}])
def test_what_it_cannot_do_is_told_in_one_line(asked: dict) -> None:
    with without_jaxtyping_checks(), pytest.raises(rs.RheoscopeError, match=f"type {next(iter(asked))}="):
        rs.heat(double("gpt2").trace(text()), **asked)


def test_texts_that_do_not_fit_together_are_asked_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = double("bert").trace([text(at, n) for at, n in enumerate((9, 6, 8))])
    whole, told = batch(traces, (1, 4), draws=2), list[tuple[int, int]]()
    monkeypatch.setattr(of_heat, "block_numel", lambda device: 2 * traces.view.heads * 81)
    parts = batch(traces, (1, 4), draws=2, progress=lambda *at: told.append(at))
    assert told[-1] == (2 * traces.view.layers, 2 * traces.view.layers)
    for name, values in whole.items():
        torch.testing.assert_close(parts[name], values, equal_nan=True)

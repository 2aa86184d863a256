"""Tests of the energy and its gradient against slow sums and autograd in every family."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.attention.definition import masked_scores
from rheoscope.attention.lower import block_size
from rheoscope.flow.energy.analysis import energy_after_move
from rheoscope.flow.energy.head_updates import head_updates
from rheoscope.flow.energy.landscape import Landscape, head_landscape, ignores_key_shifts, log_interaction_energy
from rheoscope.space.head import Heads, single_head_mechanism
from rheoscope.space.model_parts import ModelRotary, NetworkRotation
from rheoscope.space.operator import Factored
from tests.cases import EVERY, ROTARY, SOFTMAX, WITH_M, distance, double, gap, model, random, text, traced

F64 = torch.float64
CLIMBERS = [name for name in EVERY if (name in SOFTMAX or name == "own_sink") and name in WITH_M]


def slow_energies(heads: Heads, x: Tensor, queries_of: Tensor, head: int) -> Tensor:
    """Λ_i (n) of one head, with queries from x̂ = `queries_of` and the model's own scores."""
    x_hat, n = heads.norm.normalise(x), len(x)
    gain = torch.ones(()) if heads.norm.gain is None else heads.norm.gain
    bias = torch.zeros(()) if heads.norm.bias is None else heads.norm.bias
    q, k = (heads.project((part * gain + bias)[None])[index] for index, part in ((0, queries_of), (1, x_hat)))
    q, k = heads.select_head(q, k, head)
    if ignores_key_shifts(heads):
        k = k - heads.project((0 * x_hat[:1] * gain + bias)[None])[1][:, heads.kv_head(head) : heads.kv_head(head) + 1]
    mechanism, positions = single_head_mechanism(heads.mechanism, head), torch.arange(n)
    s = masked_scores(
        mechanism,
        mechanism.position.encode(q, positions),
        mechanism.position.encode(k, positions),
        positions,
        positions,
    )[0, 0]
    total = s.exp().sum(-1)
    if hasattr(mechanism.normaliser, "sink"):
        total = total + torch.as_tensor(mechanism.normaliser.sink).exp()
    return (total / (s > -torch.inf).sum(-1)).log()


@pytest.mark.parametrize("name", CLIMBERS)
def test_energy_and_gradient_equal_a_slow_sum_and_autograd(name: str) -> None:
    """Law: the gradient with respect to the queries, through projections, QK-norm, rotation, cap and sink."""
    trace = traced(name, F64)
    for layer, heads in enumerate(trace.view.layer_heads):
        x = trace.layer_input(layer)
        with torch.no_grad():
            updates = head_updates(trace, layer)
        x_hat = heads.norm.normalise(x).detach().requires_grad_()
        for head in (0, heads.n_heads - 1):
            energies = slow_energies(heads, x, x_hat, head)
            (expected_gradient,) = torch.autograd.grad(energies.sum(), x_hat)
            assert gap(updates.energy[head], energies) <= 1e-5
            gradient = updates.query_gradient[head] @ updates.query_weights[head].mT
            assert distance(gradient, heads.norm.centre(expected_gradient)) <= 1e-5


@pytest.mark.parametrize("name", [name for name in CLIMBERS if name not in ROTARY])
@torch.no_grad()
def test_the_gradient_is_softmax_attention_through_M_transposed(name: str) -> None:
    """Law: the gradient is Σ_j α_ij x̂_j Mᵀ."""
    trace = traced(name, F64)
    assert ignores_key_shifts(trace.view.layer_heads[0])
    for layer, heads in enumerate(trace.view.layer_heads):
        x = trace.layer_input(layer)
        updates, x_hat, M = head_updates(trace, layer), heads.norm.normalise(x), heads.M()
        for head in range(heads.n_heads):
            expected = trace.weights(layer, head) @ x_hat @ M.dense()[head].mT
            assert distance(updates.query_gradient[head] @ updates.query_weights[head].mT, expected) <= 1e-9


@pytest.mark.parametrize("name", CLIMBERS)
@torch.no_grad()
def test_a_small_step_changes_the_energy_by_the_first_order(name: str) -> None:
    """Law: Λ(x + tΔ) − Λ(x) = t first_order + O(t²), through the norm. Λ after the update equals a slow sum."""
    trace = traced(name, F64)
    heads, x = trace.view.layer_heads[1], trace.layer_input(1)
    updates = head_updates(trace, 1)
    displacement = updates.mixed_values @ updates.output_map
    for fraction in (1.0, 1e-3):
        first, after = energy_after_move(updates, fraction)
        for head in (0, 3):
            expected = slow_energies(heads, x, heads.norm.normalise(x + fraction * displacement[head]), head)
            assert gap(after[head], expected) <= 1e-5
    errors = {}
    for fraction in (1e-3, 1e-4):
        first, after = energy_after_move(updates, fraction)
        errors[fraction] = float((after - updates.energy - first).abs().max())
        assert errors[fraction] <= 1e-3 * float(first.abs().max()) * fraction / 1e-4
    assert errors[1e-4] <= 0.02 * errors[1e-3]


@torch.no_grad()
def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llama", "gemma3", "own_sink"):
        trace = traced(name, F64)
        one_block = head_updates(trace, 0)
        monkeypatch.setattr(block_size, "CACHE_BLOCK", 4 * 18 * 5)
        many_blocks = head_updates(trace, 0)
        monkeypatch.undo()
        for part in ("energy", "query_gradient"):
            assert gap(getattr(one_block, part), getattr(many_blocks, part)) <= 1e-12


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.no_grad()
def test_the_fused_kernel_equals_blocks_of_scores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The energies and gradients of plain heads come from torch's fused attention. Other heads use blocks of scores."""
    for dtype, tolerance in ((F64, 1e-12), (torch.float32, 2e-5)):
        trace = traced(name, dtype)
        fused = head_updates(trace, 1)
        energy_after = fused.landscape.energies(fused.unbiased_queries)
        assert fused.landscape.has_fused_kernel(fused.unbiased_queries[None])
        with monkeypatch.context() as patch:
            patch.setattr(Landscape, "has_fused_kernel", lambda self, q: False)
            blocks = head_updates(trace, 1)
            assert gap(energy_after, blocks.landscape.energies(blocks.unbiased_queries)) <= tolerance
        assert gap(fused.energy, blocks.energy) <= tolerance
        assert gap(fused.query_gradient, blocks.query_gradient) <= tolerance


@pytest.mark.parametrize("name", ROTARY)
@torch.no_grad()
def test_the_transposed_rotation_equals_autograd(name: str) -> None:
    """A model's own rotation is transposed by the sign of its sines. Its slow twin is autograd."""
    view = double(name).view
    for heads in view.layer_heads:
        position, gradient = heads.mechanism.position, random(0, 1, 3, 7, heads.W_Q.shape[-1])
        assert isinstance(position, ModelRotary)
        positions = torch.tensor([0, 1, 2, 5, 9, 3, 4])
        expected = NetworkRotation.pullback(position, positions, gradient)[0]
        assert gap(position.pullback(positions, gradient)[0], expected) <= 1e-6


def test_other_normalisers_than_softmax_raise_an_error() -> None:
    for name in ("own_sigmoid", "own_entmax", "own_relu", "own_shaped"):
        with pytest.raises(
            rs.RheoscopeError,
            match=r"energy needs softmax attention, but these heads use \w+; choose a model with softmax",
        ):
            rs.energy(model(name).trace(text()))
    with pytest.raises(
        rs.RheoscopeError, match=r"is not a bilinear form of its tokens, so it has no M; type trace.scores"
    ):
        rs.energy(model("own_cosine").trace(text()))


def test_key_shifts_matter_only_with_rotation_norm_metric_or_sink() -> None:
    ignoring = {name for name in CLIMBERS if ignores_key_shifts(double(name).view.layer_heads[0])}
    assert {"gpt2", "opt", "bert", "own_biased", "own_alibi", "own_encoder_buckets"} <= ignoring
    assert not ignoring & {"llama", "qwen3", "gemma3", "neox", "own", "own_sink", "own_metric"}
    with torch.no_grad():
        heads, x_hat = double("gpt2").view.layer_heads[0], random(0, 18, 32)
        assert heads.b_K is not None
        shifted = replace(heads, b_K=heads.b_K + random(1, *heads.b_K.shape))
        assert gap(head_landscape(heads, x_hat).keys, head_landscape(shifted, x_hat).keys) <= 1e-12
        rotary_heads = double("llama").view.layer_heads[0]
        assert rotary_heads.b_K is not None
        shifted = replace(rotary_heads, b_K=rotary_heads.b_K + 1)
        assert gap(head_landscape(rotary_heads, x_hat).keys, head_landscape(shifted, x_hat).keys) > 0.1


# The interaction energy of the theory, without mask and positions


def factored(seed: int, d: int = 6, r: int = 3) -> Factored:
    return Factored(random(seed, d, r), random(seed + 1, r, d))


def attended(x_hat: Tensor, M: Factored, F: Factored) -> Tensor:
    return F.apply(M.bilinear_form(x_hat, x_hat).softmax(-1) @ x_hat)


def decrease_fraction(pairs: Callable[[int], tuple[Factored, Factored]], draws: int, on_sphere: bool) -> float:
    """The fraction of random clouds on which a small step of softmax attention decreases E."""
    n_decreases = 0
    for seed in range(draws):
        M, F = pairs(1000 * seed)
        x = random(1000 * seed + 7, 9, 6) * 0.6
        x_hat = x / x.norm(dim=-1, keepdim=True) if on_sphere else x
        next_x_hat = x_hat + 1e-5 * attended(x_hat, M, F)
        next_x_hat = next_x_hat / next_x_hat.norm(dim=-1, keepdim=True) if on_sphere else next_x_hat
        n_decreases += bool(log_interaction_energy(next_x_hat, M) < log_interaction_energy(x_hat, M) - 1e-13)
    return n_decreases / draws


@pytest.mark.parametrize("on_sphere", [False, True])
def test_symmetric_M_and_F_a_positive_multiple_never_decrease_the_energy(on_sphere: bool) -> None:
    """Law: M symmetric and F = cM with c > 0 is sufficient, in free space and on the sphere."""

    def sufficient(seed: int) -> tuple[Factored, Factored]:
        M = factored(seed).symmetric_part()
        return M, (0.1 + float(random(seed + 5, 1).abs())) * M

    def reversed_sign(seed: int) -> tuple[Factored, Factored]:
        return sufficient(seed)[0], -1.0 * sufficient(seed)[1]

    assert decrease_fraction(sufficient, 200, on_sphere) == 0
    assert decrease_fraction(reversed_sign, 50, on_sphere) == 1


def test_independent_random_M_and_F_decrease_the_energy_in_about_half_of_the_steps() -> None:
    assert 0.4 < decrease_fraction(lambda seed: (factored(seed), factored(seed + 3)), 300, False) < 0.6


def test_symmetry_is_not_necessary() -> None:
    """M = I and positive definite F never decrease the energy either."""

    def climbing(seed: int) -> tuple[Factored, Factored]:
        A, identity = random(seed, 6, 6), torch.eye(6, dtype=F64)
        return Factored(identity, identity), Factored(A @ A.mT + 0.1 * identity, identity)

    assert decrease_fraction(climbing, 100, False) == 0


def test_interaction_energy_equals_its_sum() -> None:
    x_hat, M = random(0, 5, 6), factored(3)
    expected = sum(math.exp(float(a @ M.dense() @ b)) for a in x_hat for b in x_hat) / (2 * 5**2)
    assert float(log_interaction_energy(x_hat, M)) == pytest.approx(math.log(expected))
    assert float(log_interaction_energy(40 * x_hat, M)) < torch.inf

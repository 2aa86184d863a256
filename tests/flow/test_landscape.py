"""The energy and its gradient: equal to a slow sum and to autograd, in every family; the sufficient case climbs."""

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
from rheoscope.flow.energy.landscape import head_landscape, ignores_key_shifts, log_interaction_energy
from rheoscope.space.head import Heads, single_head_mechanism
from rheoscope.space.operator import Factored
from tests.cases import EVERY, ROTARY, SOFTMAX, WITH_M, distance, double, gap, model, random, text, traced

F64 = torch.float64
CLIMBERS = [name for name in EVERY if (name in SOFTMAX or name == "own_sink") and name in WITH_M]


def slow_energies(heads: Heads, x: Tensor, queries_of: Tensor, head: int) -> Tensor:
    """Λ_i (n) of one head, queries read off x̂ = `queries_of`, by the model's own scores of the pair of clouds."""
    hat, n = heads.norm.normalise(x), len(x)
    gain = torch.ones(()) if heads.norm.gain is None else heads.norm.gain
    bias = torch.zeros(()) if heads.norm.bias is None else heads.norm.bias
    q, k = (heads.project((part * gain + bias)[None])[at] for at, part in ((0, queries_of), (1, hat)))
    q, k = heads.select_head(q, k, head)
    if ignores_key_shifts(heads):
        k = k - heads.project((0 * hat[:1] * gain + bias)[None])[1][:, heads.kv_head(head) : heads.kv_head(head) + 1]
    mechanism, at = single_head_mechanism(heads.mechanism, head), torch.arange(n)
    s = masked_scores(mechanism, mechanism.position.encode(q, at), mechanism.position.encode(k, at), at, at)[0, 0]
    total = s.exp().sum(-1)
    if hasattr(mechanism.normaliser, "sink"):
        total = total + torch.as_tensor(mechanism.normaliser.sink).exp()
    return (total / (s > -torch.inf).sum(-1)).log()


@pytest.mark.parametrize("name", CLIMBERS)
def test_energy_and_gradient_are_those_of_a_slow_sum_and_of_autograd(name: str) -> None:
    """Law: the query-side gradient, through the model's own projections, QK-norm, rotation, cap and sink."""
    trace = traced(name, F64)
    for layer, heads in enumerate(trace.view.layer_heads):
        x = trace.layer_input(layer)
        with torch.no_grad():
            step = head_updates(trace, layer)
        hat = heads.norm.normalise(x).detach().requires_grad_()
        for head in (0, heads.n_heads - 1):
            own = slow_energies(heads, x, hat, head)
            (slope,) = torch.autograd.grad(own.sum(), hat)
            assert gap(step.energy[head], own) <= 1e-5
            mine = step.query_gradient[head] @ step.query_weights[head].mT
            assert distance(mine, heads.norm.centre(slope)) <= 1e-5


@pytest.mark.parametrize("name", [name for name in CLIMBERS if name not in ROTARY])
@torch.no_grad()
def test_the_gradient_is_softmax_attention_through_M_transposed(name: str) -> None:
    """Law, row form: Σ_j α_ij x̂_j Mᵀ."""
    trace = traced(name, F64)
    assert ignores_key_shifts(trace.view.layer_heads[0])
    for layer, heads in enumerate(trace.view.layer_heads):
        x = trace.layer_input(layer)
        step, hat, M = head_updates(trace, layer), heads.norm.normalise(x), heads.M()
        for head in range(heads.n_heads):
            wanted = trace.weights(layer, head) @ hat @ M.dense()[head].mT
            assert distance(step.query_gradient[head] @ step.query_weights[head].mT, wanted) <= 1e-9


@pytest.mark.parametrize("name", CLIMBERS)
@torch.no_grad()
def test_a_small_step_changes_the_energy_by_the_first_order(name: str) -> None:
    """Law: Λ(x + tΔ) − Λ(x) = t first_order + O(t²), x̂ taken anew through the norm; and Λ after is a slow sum's."""
    trace = traced(name, F64)
    heads, x = trace.view.layer_heads[1], trace.layer_input(1)
    step = head_updates(trace, 1)
    moved = step.mixed_values @ step.output_map
    for share in (1.0, 1e-3):
        first, after = energy_after_move(step, share)
        for head in (0, 3):
            wanted = slow_energies(heads, x, heads.norm.normalise(x + share * moved[head]), head)
            assert gap(after[head], wanted) <= 1e-5
    off = {}
    for share in (1e-3, 1e-4):
        first, after = energy_after_move(step, share)
        off[share] = float((after - step.energy - first).abs().max())
        assert off[share] <= 1e-3 * float(first.abs().max()) * share / 1e-4
    assert off[1e-4] <= 0.02 * off[1e-3]


@torch.no_grad()
def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llama", "gemma3", "own_sink"):
        trace = traced(name, F64)
        whole = head_updates(trace, 0)
        monkeypatch.setattr(block_size, "CACHE_BLOCK", 4 * 18 * 5)
        split = head_updates(trace, 0)
        monkeypatch.undo()
        for part in ("energy", "query_gradient"):
            assert gap(getattr(whole, part), getattr(split, part)) <= 1e-12


def test_other_weights_than_softmax_are_refused() -> None:
    for name in ("own_sigmoid", "own_entmax", "own_relu", "own_shaped"):
        with pytest.raises(rs.RheoscopeError, match=r"no softmax of their scores.*type a model with softmax"):
            rs.energy(model(name).trace(text()))
    with pytest.raises(
        rs.RheoscopeError, match=r"is not a bilinear form of its tokens, so it has no M; type trace.scores"
    ):
        rs.energy(model("own_cosine").trace(text()))


def test_a_shift_of_the_keys_is_seen_by_a_rotation_a_norm_a_metric_and_a_sink() -> None:
    blind = {name for name in CLIMBERS if ignores_key_shifts(double(name).view.layer_heads[0])}
    assert {"gpt2", "opt", "bert", "own_biased", "own_alibi", "own_encoder_buckets"} <= blind
    assert not blind & {"llama", "qwen3", "gemma3", "neox", "own", "own_sink", "own_metric"}
    with torch.no_grad():
        heads, hat = double("gpt2").view.layer_heads[0], random(0, 18, 32)
        assert heads.b_K is not None
        shifted = replace(heads, b_K=heads.b_K + random(1, *heads.b_K.shape))
        assert gap(head_landscape(heads, hat).keys, head_landscape(shifted, hat).keys) <= 1e-12
        turned = double("llama").view.layer_heads[0]
        assert turned.b_K is not None
        shifted = replace(turned, b_K=turned.b_K + 1)
        assert gap(head_landscape(turned, hat).keys, head_landscape(shifted, hat).keys) > 0.1


# The energy of the theory: no mask, no position


def factored(seed: int, d: int = 6, r: int = 3) -> Factored:
    return Factored(random(seed, d, r), random(seed + 1, r, d))


def attended(hat: Tensor, M: Factored, F: Factored) -> Tensor:
    return F.apply(M.bilinear_form(hat, hat).softmax(-1) @ hat)


def falls(pairs: Callable[[int], tuple[Factored, Factored]], draws: int, on_sphere: bool) -> float:
    """The share of random clouds on which a small step of softmax attention lowers E."""
    fallen = 0
    for seed in range(draws):
        M, F = pairs(1000 * seed)
        x = random(1000 * seed + 7, 9, 6) * 0.6
        hat = x / x.norm(dim=-1, keepdim=True) if on_sphere else x
        new = hat + 1e-5 * attended(hat, M, F)
        new = new / new.norm(dim=-1, keepdim=True) if on_sphere else new
        fallen += bool(log_interaction_energy(new, M) < log_interaction_energy(hat, M) - 1e-13)
    return fallen / draws


@pytest.mark.parametrize("on_sphere", [False, True])
def test_M_symmetric_and_F_a_positive_multiple_of_it_never_falls(on_sphere: bool) -> None:
    """Law: the sufficient case, all tokens moving, M of either sign; with a norm that keeps lengths too."""

    def sufficient(seed: int) -> tuple[Factored, Factored]:
        M = factored(seed).symmetric_part()
        return M, (0.1 + float(random(seed + 5, 1).abs())) * M

    def against(seed: int) -> tuple[Factored, Factored]:
        return sufficient(seed)[0], -1.0 * sufficient(seed)[1]

    assert falls(sufficient, 200, on_sphere) == 0
    assert falls(against, 50, on_sphere) == 1


def test_M_and_F_independent_and_random_fall_at_about_half_of_the_steps() -> None:
    assert 0.4 < falls(lambda seed: (factored(seed), factored(seed + 3)), 300, False) < 0.6


def test_not_necessary() -> None:
    """M = I and F positive definite climbs too."""

    def climbing(seed: int) -> tuple[Factored, Factored]:
        A, one = random(seed, 6, 6), torch.eye(6, dtype=F64)
        return Factored(one, one), Factored(A @ A.mT + 0.1 * one, one)

    assert falls(climbing, 100, False) == 0


def test_the_energy_of_the_theory_is_its_sum() -> None:
    hat, M = random(0, 5, 6), factored(3)
    slow = sum(math.exp(float(a @ M.dense() @ b)) for a in hat for b in hat) / (2 * 5**2)
    assert float(log_interaction_energy(hat, M)) == pytest.approx(math.log(slow))
    assert float(log_interaction_energy(40 * hat, M)) < torch.inf

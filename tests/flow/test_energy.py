"""Tests of energy: planted heads, closed-form nulls against draws, slow computations of every field."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import false_discovery_control, norm
from torch import Tensor

import rheoscope as rs
from rheoscope.attention.mask import NoMask
from rheoscope.flow.energy.analysis import alignments, gradient_cosines, joint_q_values, weight_statistics
from rheoscope.flow.energy.gradient_distance import own_gradient
from rheoscope.flow.energy.head_updates import head_updates
from rheoscope.space.operator import Factored
from tests.cases import POST_NORM, double, gap, random, text, traced
from tests.pretrained.cases import KINDS, changed

F64 = torch.float64


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / a.norm() / b.norm())


@pytest.mark.parametrize("name", [*KINDS, "own_encoder", "own_alibi", "own_sink"])
@torch.no_grad()
def test_every_field_equals_a_slow_computation(name: str) -> None:
    trace = traced(name, F64)
    view = trace.view
    result = rs.energy(trace, keep_massive=True)
    for layer, heads in enumerate(view.layer_heads):
        x = trace.layer_input(layer)
        updates = head_updates(trace, layer)
        displacement, gradient = trace.attention_parts(layer)[0], updates.query_gradient @ updates.query_weights.mT
        for head in (0, 2):
            index = {"layer": layer, "head": head}
            assert float(result.cosine.isel(index)) == pytest.approx(
                cosine(displacement[head], gradient[head]), abs=1e-5
            )
            common = (displacement[head].mean(0) * gradient[head].mean(0)).sum() * len(x)
            shared = float(common / displacement[head].norm() / gradient[head].norm())
            assert float(result.cosine_shared.isel(index)) == pytest.approx(shared, abs=1e-5)
            M, F = heads.M().dense()[head], heads.F().dense()[head]
            assert float(result.alignment.isel(index)) == pytest.approx(cosine(F, M.mT), abs=1e-9)
            assert float(result.symmetry.isel(index)) == pytest.approx(cosine(M, M.mT), abs=1e-9)
            assert float(result.energy.isel(index)) == pytest.approx(float(updates.energy[head].mean()))
    assert np.allclose(result.remainder, result.energy_after - result.energy - result.first_order)
    sums = [heads.M().dense().sum(0) for heads in view.layer_heads]
    expected = [1 - cosine(a, b) for a, b in pairwise(sums)]
    assert np.allclose(result.landscape[:-1], expected)
    assert np.isnan(result.landscape[-1])
    assert np.isnan(result.landscape_update[-1])


@pytest.mark.parametrize("name", [*KINDS, "own_encoder", "own_alibi"])
@torch.no_grad()
def test_ledger_is_the_change_by_each_part(name: str) -> None:
    trace = traced(name, F64)
    result = rs.energy(trace, keep_massive=True)
    heads, x, after = trace.view.layer_heads[0], trace.layer_input(0), trace.view.layer_heads[1]
    displacement = trace.points[trace.mid_steps[0]] - x

    def attention_displacement(block: Any, cloud: Tensor) -> Tensor:
        return block.displacements(cloud).sum(0) + block.bias(cloud)

    expected = 1 - cosine(displacement, attention_displacement(after, x))
    assert float(result.landscape_update[0]) == pytest.approx(expected, abs=1e-5)
    row = result.ledger.isel(layer=0)
    unmasked = replace(heads, mechanism=replace(heads.mechanism, mask=NoMask()))
    assert float(row.sel(difference="mask")) == pytest.approx(
        1 - cosine(displacement, attention_displacement(unmasked, x)), abs=1e-5
    )
    assert float(row.sel(difference="mlp")) == pytest.approx(
        1 - cosine(displacement, trace.points_at("L0.resid_post") - x), abs=1e-9
    )
    after_norm = (
        trace.points_at("L0.resid_mid") - x
        if name in POST_NORM
        else heads.norm.normalise(x + displacement) - heads.norm.normalise(x)
    )
    assert float(row.sel(difference="norm")) == pytest.approx(1 - cosine(displacement, after_norm), abs=1e-9)
    turning = not heads.mechanism.position.is_trivial
    assert (float(row.sel(difference="position")) > 1e-6) == turning
    assert (float(row.sel(difference="mask")) > 1e-6) == (not heads.mechanism.mask.allows_all)


def planted(kind: float) -> Any:
    """A GPT-2 whose heads have F = kind · Mᵀ, by W_V = W_K, W_O = kind · W_Qᵀ and gains of 1."""

    def plant(net: Any) -> None:
        for block in net.transformer.h:
            block.ln_1.weight.fill_(1)
            W = block.attn.c_attn.weight
            W[:, 64:] = W[:, 32:64]
            block.attn.c_proj.weight.copy_(kind * (W[:, :32] - W[:, :32].mean(0)).T)

    return changed("gpt2", plant)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_F_a_multiple_of_M_transposed_is_the_gradient(sign: float) -> None:
    """Law: cosine and alignment are ±1, and every head is gradient-like if the sign is positive."""
    model = planted(0.01 * sign)
    result = rs.energy(model.trace(text()), keep_massive=True)
    assert float(abs(result.alignment - sign).max()) <= 1e-9
    assert float(abs(result.cosine - sign).max()) <= 1e-9
    assert bool((result.first_order * sign > 0).all())
    assert float(abs(result.layer_cosine - sign).max()) <= 1e-9
    if sign > 0:
        assert float(abs(result.dissipation - 1).max()) <= 1e-9
    else:
        assert float(result.dissipation.max()) < 0
    assert bool(result.gradient_like.all()) == (sign > 0)
    assert result.attrs["gradient_like_heads"] == (8 if sign > 0 else 0)
    assert result.attrs["tested_heads"] == 8


def test_statistics_of_the_weights_are_computed_once_for_every_view() -> None:
    view = traced("llama").view
    assert weight_statistics(view) is weight_statistics(view)
    flipped_head = replace(view.layer_heads[0], W_K=-view.layer_heads[0].W_K)
    flipped = replace(view, layer_heads=(flipped_head, *view.layer_heads[1:]))
    assert gap(weight_statistics(flipped)["alignment"][0], -weight_statistics(view)["alignment"][0]) <= 1e-6


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3"])
@torch.no_grad()
def test_products_of_weights_equal_dense_operators_and_are_computed_once_for_every_view(name: str) -> None:
    view, trace = double(name).view, traced(name, F64)
    updates = head_updates(trace, 0)
    assert head_updates(trace, 0).products is updates.products
    heads, products = view.layer_heads[0], updates.products
    W_O, Q = updates.output_map, updates.query_weights
    K = heads.norm.fold(heads.W_K).repeat_interleave(heads.n_heads // len(heads.W_K), 0)
    both = torch.cat([Q, K], -1)
    assert gap(products.output_to_query_and_key, W_O @ both) <= 1e-12
    assert gap(products.query_and_key_gram, both.mT @ both) <= 1e-12
    assert gap(products.query_gram, Q.mT @ Q) <= 1e-12
    assert gap(products.output_gram, W_O @ W_O.mT) <= 1e-12
    assert gap(products.centred_output_gram, heads.norm.centre(W_O) @ heads.norm.centre(W_O).mT) <= 1e-12


@torch.no_grad()
def test_closed_form_null_equals_random_rotations() -> None:
    """Closed-form mean and sd over orthogonal Q equal those of 4000 draws, for cosine and alignment."""
    trace = traced("llama", F64)
    heads, updates = trace.view.layer_heads[1], head_updates(trace, 1)
    result, M, F = gradient_cosines(updates, own_gradient(updates), None), heads.M(), heads.F()
    fixed = alignments(Factored(M.left, M.right), F, len(heads.W_K))
    displacement, gradient = (
        (updates.mixed_values @ updates.output_map)[0],
        (updates.query_gradient @ updates.query_weights.mT)[0],
    )
    q, r = torch.linalg.qr(torch.randn(4000, 32, 32, generator=torch.Generator().manual_seed(0), dtype=F64))
    Q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    draws, aligned = (
        ((a @ Q * b).sum((-2, -1)) / a.norm() / b.norm()).numpy()
        for a, b in ((displacement, gradient), (F.dense()[0], M.dense()[0].mT))
    )
    assert np.mean(draws) == pytest.approx(float(result["cosine_null"][0]), abs=0.01)
    assert np.std(draws) == pytest.approx(float(result["cosine_null_sd"][0]), rel=0.05)
    assert float(result["z"][0]) == pytest.approx(float(result["cosine"][0] / result["cosine_null_sd"][0]))
    sd = float(fixed["alignment"][0] / fixed["alignment_z"][0])
    assert np.std(aligned) == pytest.approx(sd, rel=0.05)
    # the tail of the normal distribution, where heads become significant
    assert np.mean(draws > 1.645 * np.std(draws)) == pytest.approx(0.05, abs=0.015)


def test_cosine_shared_is_the_mean_over_permuted_tokens() -> None:
    trace = traced("gpt2", F64)
    with torch.no_grad():
        updates = head_updates(trace, 0)
        displacement, gradient = (
            (updates.mixed_values @ updates.output_map)[1],
            (updates.query_gradient @ updates.query_weights.mT)[1],
        )
        generator = torch.Generator().manual_seed(0)
        draws = [cosine(displacement[torch.randperm(18, generator=generator)], gradient) for _ in range(3000)]
        assert np.mean(draws) == pytest.approx(
            float(gradient_cosines(updates, own_gradient(updates), None)["cosine_shared"][1]), abs=0.01
        )


def test_untrained_heads_are_rarely_called_gradient_like() -> None:
    """With random weights about 5 % of the p-values lie below 5 %, and none is significant after correction."""
    below, heads = 0, 0
    for name in ("gpt2", "llama", "qwen2", "neox", "opt", "phi3", "own", "own_biased"):
        result = rs.energy(traced(name, F64))
        heads += result.attrs["tested_heads"]
        below += int((norm.sf(result.alignment_z) < 0.05).sum())
        assert result.attrs["gradient_like_heads"] <= 1
    assert below / heads < 0.25


def test_q_values_equal_scipy() -> None:
    z, second_z = random(0, 3, 4) * 2, random(1, 3, 4) * 2 + 1
    p = norm.sf(torch.minimum(z, second_z).numpy())
    expected = false_discovery_control(p.ravel()).reshape(3, 4)
    assert np.allclose(joint_q_values(z, second_z).numpy(), expected)


def test_massive_tokens_remain_keys_but_leave_the_means() -> None:
    def stretch(net: Any) -> None:
        net.model.embed_tokens.weight[7] *= 60

    model, ids = changed("llama", stretch), text()
    ids[4] = 7
    trace = model.trace(ids)
    assert 4 in trace.massive_tokens()
    result, including_massive = rs.energy(trace), rs.energy(trace, keep_massive=True)
    assert result.attrs["massive"] == trace.massive_tokens()

    with torch.no_grad():
        updates = head_updates(trace, 0)
    retained = [index for index in range(18) if index not in trace.massive_tokens()]
    assert float(result.energy[0, 1]) == pytest.approx(float(updates.energy[1, retained].mean()))
    assert float(including_massive.energy[0, 1]) == pytest.approx(float(updates.energy[1].mean()))


def test_fields_have_definitions_progress_is_reported_and_short_texts_raise() -> None:
    trace = traced("gpt2", F64)
    result = rs.energy(trace)
    assert all(field.attrs["definition"] for field in result.data_vars.values())
    assert result.gradient_like.dtype == bool
    assert list(result.difference.values) == ["mask", "norm", "position", "mlp"]
    calls: list[tuple[int, int]] = []
    rs.energy(trace, progress=lambda done, of: calls.append((done, of)))
    assert calls == [(1, 2), (2, 2)]
    with pytest.raises(rs.RheoscopeError, match="at least 2 tokens that are not massive, got 1; use a longer text"):
        rs.energy(double("gpt2").trace([5]))

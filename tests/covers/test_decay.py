"""Decay: deviations by hand, noise of equal length, planted layers, intervals and errors."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

import rheoscope as rs
from rheoscope.covers.decay.analysis import NOISE_KINDS, steps_after_attention
from rheoscope.covers.reversed_attention.analysis import attention_output_step
from rheoscope.covers.text_batches import included_tokens
from tests.cases import PARALLEL, default, double, gap, model, random, text, theirs, traced
from tests.covers.cases import random_model
from tests.laws.moves import assert_unchanged, gauges

TEXTS = [text(0), text(1, 9), text(2), text(3, 9), text(4)]
MODELS = ["gpt2", "qwen3", "gemma3", "neox", "own_sink", "own_alibi", "own_metric"]


def model_with_a_massive_token(name: str) -> Any:
    def grow(network: Any) -> None:
        network.get_input_embeddings().weight[TEXTS[0][3]] *= 60

    return theirs.changed(name, grow)


@pytest.mark.parametrize("name", [*MODELS, "llama, one token massive"])
@torch.no_grad()
def test_deviations_are_those_of_the_points(name: str) -> None:
    network = model_with_a_massive_token("llama") if "massive" in name else double(name)
    assert bool(network.trace(TEXTS[0]).massive_tokens()) == ("massive" in name)
    options, texts = {"heads": [(0, 1), (0, 2)], "M": "symmetric", "F": "rank 3"}, TEXTS[:2]
    result = rs.decay(network, texts, **options)
    first = str(attention_output_step(network.trace(text()), 0))
    assert result.step.values[0] == first
    deviations, cosines, n_tokens, n_moved = [], [], 0, 0
    for ids in texts:
        clean_trace, edited_trace = network.trace(ids), rs.trace_under(network, ids, **options)
        is_included = included_tokens(clean_trace)
        d = torch.stack([edited_trace.points_at(step) - clean_trace.points_at(step) for step in result.step.values])
        x = torch.stack([clean_trace.points_at(step) for step in result.step.values])
        has_moved = is_included & (d[0].norm(dim=-1) > 0)
        deviations.append((d.norm(dim=-1) / x.norm(dim=-1))[:, is_included].sum(-1))
        cosines.append(torch.cosine_similarity(d, d[:1], dim=-1)[:, has_moved].sum(-1))
        n_tokens, n_moved = n_tokens + int(is_included.sum()), n_moved + int(has_moved.sum())
    mean = sum(deviations) / n_tokens
    edit = result.sel(change="edit")
    assert edit.deviation.values == pytest.approx(mean.numpy(), rel=1e-4)
    assert edit.deviation_ratio.values == pytest.approx((mean / mean[0]).numpy(), rel=1e-4)
    assert edit.direction.values == pytest.approx((sum(cosines) / n_moved).numpy(), abs=1e-4)
    assert result.deviation[:, 0].values == pytest.approx(float(mean[0]), rel=1e-4)
    assert (result.deviation_ratio[:, 0] == 1).all()
    cost = float(rs.surgery(network, texts, **options, comparisons=rs.Comparisons(())).cost[0])
    assert float(edit.cost) == pytest.approx(cost, abs=2e-5)
    assert len(result.step) == len(set(result.step.values))
    assert (name in PARALLEL) == (first == "L0.resid_post")


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_noise_has_the_length_of_the_displacement_of_every_token(kind: str) -> None:
    displacements = random(0, 2, 7, 5)
    displacements[0, 0] = 0
    noise = NOISE_KINDS[kind](displacements, Generator().manual_seed(0))
    assert gap(noise.norm(dim=-1), displacements.norm(dim=-1)) <= 1e-12
    cosines = torch.cosine_similarity(noise, displacements, dim=-1)
    assert float(cosines.abs().mean()) < 0.8
    other_result = NOISE_KINDS[kind](displacements, Generator().manual_seed(1))
    assert gap(noise, other_result) > 0.1


def test_exchanged_noise_permutes_the_directions_of_the_same_text() -> None:
    displacements = random(0, 2, 7, 5)
    noise = NOISE_KINDS["exchanged"](displacements, Generator().manual_seed(0))
    for text_noise, text_displacements in zip(noise, displacements, strict=True):
        directions, expected = (torch.nn.functional.normalize(x, dim=-1) for x in (text_noise, text_displacements))
        best = (directions @ expected.mT).max(-1)
        assert gap(best.values, torch.ones(7)) <= 1e-9
        assert sorted(best.indices.tolist()) == list(range(7))


def model_with_scaled_outputs(factor: float) -> Any:
    """Three layers, in which the outputs of all blocks except the first attention are scaled."""
    network = random_model(heads=2, depth=3)
    with torch.no_grad():
        for layer, block in enumerate(network.network.stack.blocks):
            for module in (block.ffn, *([block.attention] if layer else [])):
                for weight in module.write.parameters():
                    weight.mul_(factor)
    return network


def test_layers_that_write_nothing_keep_the_deviation() -> None:
    result = rs.decay(model_with_scaled_outputs(0.0), TEXTS, M="skew")
    assert result.deviation_ratio.values == pytest.approx(1, abs=1e-9)
    assert result.direction.values == pytest.approx(1, abs=1e-9)
    assert result.excess_deviation_ratio.values == pytest.approx(0, abs=1e-9)
    assert float(result.deviation.min()) > 0
    full_output = rs.decay(model_with_scaled_outputs(1.0), TEXTS, M="skew")
    assert abs(full_output.deviation_ratio.values[:, -1] - 1).min() > 1e-6


def test_a_layer_that_restores_the_clean_points_removes_the_deviation() -> None:
    """A module hook sets every token to its clean point after layer 1."""
    network = double("llama")
    clean_points = {tuple(ids.tolist()): network.trace(ids).points_at("L1.resid_post") for ids in TEXTS}
    batches: list[Tensor] = []
    record = network.description.embedding.register_forward_pre_hook(lambda module, args: batches.append(args[0]))
    restore = network.description.layer_taps[1][-1].module.register_forward_hook(
        lambda module, args, out: torch.stack([clean_points[tuple(ids.tolist())] for ids in batches[-1]])
    )
    try:
        result = rs.decay(network, TEXTS, M="symmetric")
    finally:
        record.remove()
        restore.remove()
    assert (result.deviation_ratio.values[:, -1] == 0).all()
    assert (result.deviation_ratio.values[:, 0] == 1).all()
    assert np.abs(result.cost.values).max() == 0


def test_the_seed_fixes_the_noise_and_intervals_contain_the_means() -> None:
    network = double("llama")
    first_result, repeated_result, other_result = (
        rs.decay(network, TEXTS, M="symmetric", draws=2, seed=seed) for seed in (0, 0, 1)
    )
    assert first_result.equals(repeated_result)
    assert first_result.sel(change="edit").deviation.equals(other_result.sel(change="edit").deviation)
    assert not first_result.sel(change="isotropic").deviation.equals(other_result.sel(change="isotropic").deviation)
    for name in ("deviation_ratio", "excess_deviation_ratio", "cost"):
        low, mean, high = (first_result[name + end].values for end in ("_low", "", "_high"))
        assert (low <= mean + 1e-9).all()
        assert (mean <= high + 1e-9).all()
    assert (first_result.deviation_ratio_high > first_result.deviation_ratio_low)[:, 1:].all()
    assert all("definition" in first_result[name].attrs for name in first_result.data_vars)
    two_text_result = rs.decay(network, TEXTS[:2], heads=[(0, 1)], M="symmetric")
    assert bool(two_text_result.deviation_ratio_low.isnull().all())
    assert bool(two_text_result.deviation_ratio.notnull().all())


def test_an_identity_edit_has_deviation_zero_and_the_model_is_restored() -> None:
    network = model("llama")
    result = rs.decay(network, TEXTS, heads=network.view.head_indices(1), M="identity")
    assert (result.deviation.values == 0).all()
    assert result.step.values.tolist() == steps_after_attention(network.trace(text()), 1)
    rs.decay(network, TEXTS, heads=network.view.head_indices(1), M="symmetric")
    assert torch.equal(network.run(text()), traced("llama").logits)


def test_the_defaults_make_the_first_layer_symmetric() -> None:
    network, reports = double("llama"), []
    default_result = rs.decay(network, TEXTS[:2], progress=lambda *report: reports.append(report))
    assert default_result.equals(rs.decay(network, TEXTS[:2], heads=network.view.head_indices(0), M="symmetric"))
    assert (default_result.attrs["M"], default_result.attrs["heads"]) == ("symmetric", "L0.H0 L0.H1 L0.H2 L0.H3")
    assert reports[-1] == (2, 2)


def test_zero_draws_omit_the_noise() -> None:
    network = double("llama")
    result, noisy_result = (rs.decay(network, TEXTS[:2], draws=draws) for draws in (0, 1))
    assert result.change.values.tolist() == ["edit"]
    assert result.deviation.equals(noisy_result.deviation.sel(change=["edit"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"heads": [(0, 1), (1, 1)]},
            r"decay edits heads of one layer, got heads of 2 layers; type heads=\[\(0, 1\)\]",
        ),
        ({"heads": [(2, 1)], "draws": -1}, "draws must lie between 0 and 10,000, got -1; type draws=0"),
        ({"heads": 2}, r"list of \(layer, head\), got 2; type .*head_indices\(2\)"),
        ({"heads": [(99, 0)]}, "there is no layer 99"),
    ],
)
def test_invalid_input_gives_a_one_line_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=message) as error:
        rs.decay(default(), "The keys to the cabinet are", **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["gpt2_by_depth", "qwen3"])
def test_no_gauge_moves_any_number(name: str) -> None:
    def decay_of(network: Any) -> Any:
        return rs.decay(network, TEXTS, M="symmetric", F="rank 3")

    assert_unchanged(decay_of, decay_of(double(name)), name, gauges(name))

"""Decay: deviations by hand, noise of the same size, planted layers that heal and that do nothing, what is refused."""

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
from tests.covers.cases import bare
from tests.laws.moves import gauges, holds_still

TEXTS = [text(0), text(1, 9), text(2), text(3, 9), text(4)]
SOME = ["gpt2", "qwen3", "gemma3", "neox", "own_sink", "own_alibi", "own_metric"]


def with_a_massive_token(name: str) -> Any:
    def grow(network: Any) -> None:
        network.get_input_embeddings().weight[TEXTS[0][3]] *= 60

    return theirs.changed(name, grow)


@pytest.mark.parametrize("name", [*SOME, "llama, one token massive"])
@torch.no_grad()
def test_deviations_are_those_of_the_points(name: str) -> None:
    of = with_a_massive_token("llama") if "massive" in name else double(name)
    assert bool(of.trace(TEXTS[0]).massive_tokens()) == ("massive" in name)
    asked = {"heads": [(0, 1), (0, 2)], "M": "symmetric", "F": "rank 3"}
    found = rs.decay(of, TEXTS, **asked)
    first = str(attention_output_step(of.trace(text()), 0))
    assert found.step.values[0] == first
    shares, cosines, counts, moving = [], [], 0, 0
    for ids in TEXTS:
        plain, changed = of.trace(ids), rs.trace_under(of, ids, **asked)
        kept = included_tokens(plain)
        d = torch.stack([changed.points_at(step) - plain.points_at(step) for step in found.step.values])
        x = torch.stack([plain.points_at(step) for step in found.step.values])
        there = kept & (d[0].norm(dim=-1) > 0)
        shares.append((d.norm(dim=-1) / x.norm(dim=-1))[:, kept].sum(-1))
        cosines.append(torch.cosine_similarity(d, d[:1], dim=-1)[:, there].sum(-1))
        counts, moving = counts + int(kept.sum()), moving + int(there.sum())
    mean = sum(shares) / counts
    edit = found.sel(change="edit")
    assert edit.deviation.values == pytest.approx(mean.numpy(), rel=1e-4)
    assert edit.deviation_ratio.values == pytest.approx((mean / mean[0]).numpy(), rel=1e-4)
    assert edit.direction.values == pytest.approx((sum(cosines) / moving).numpy(), abs=1e-4)
    assert found.deviation[:, 0].values == pytest.approx(float(mean[0]), rel=1e-4)
    assert (found.deviation_ratio[:, 0] == 1).all()
    cost = float(rs.surgery(of, TEXTS, **asked, comparisons=rs.Comparisons(())).cost[0])
    assert float(edit.cost) == pytest.approx(cost, abs=2e-5)
    assert len(found.step) == len(set(found.step.values))
    assert (name in PARALLEL) == (first == "L0.resid_post")


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_noise_is_as_long_as_what_it_stands_for_token_by_token(kind: str) -> None:
    displacements = random(0, 2, 7, 5)
    displacements[0, 0] = 0
    noise = NOISE_KINDS[kind](displacements, Generator().manual_seed(0))
    assert gap(noise.norm(dim=-1), displacements.norm(dim=-1)) <= 1e-12
    cosines = torch.cosine_similarity(noise, displacements, dim=-1)
    assert float(cosines.abs().mean()) < 0.8
    other = NOISE_KINDS[kind](displacements, Generator().manual_seed(1))
    assert gap(noise, other) > 0.1


def test_exchanged_noise_has_the_directions_of_the_same_text() -> None:
    displacements = random(0, 2, 7, 5)
    noise = NOISE_KINDS["exchanged"](displacements, Generator().manual_seed(0))
    for one, own in zip(noise, displacements, strict=True):
        unit, wanted = (torch.nn.functional.normalize(x, dim=-1) for x in (one, own))
        best = (unit @ wanted.mT).max(-1)
        assert gap(best.values, torch.ones(7)) <= 1e-9
        assert sorted(best.indices.tolist()) == list(range(7))


def planted(write: float) -> Any:
    """Three layers: the first attends, and every FFN and later attention writes `write` times what it did."""
    of = bare(heads=2, depth=3)
    with torch.no_grad():
        for at, block in enumerate(of.network.stack.blocks):
            for module in (block.ffn, *([block.attention] if at else [])):
                for weight in module.write.parameters():
                    weight.mul_(write)
    return of


def test_layers_that_write_nothing_leave_the_deviation_as_it_is() -> None:
    found = rs.decay(planted(0.0), TEXTS, M="skew")
    assert found.deviation_ratio.values == pytest.approx(1, abs=1e-9)
    assert found.direction.values == pytest.approx(1, abs=1e-9)
    assert found.excess_deviation_ratio.values == pytest.approx(0, abs=1e-9)
    assert float(found.deviation.min()) > 0
    busy = rs.decay(planted(1.0), TEXTS, M="skew")
    assert abs(busy.deviation_ratio.values[:, -1] - 1).min() > 1e-6


def test_a_step_that_forgets_what_it_read_heals_everything() -> None:
    """Planted: after layer 1 every token is put where the model without the change has it, by a hook of the module itself."""
    of = double("llama")
    plain = {tuple(ids.tolist()): of.trace(ids).points_at("L1.resid_post") for ids in TEXTS}
    now: list[Tensor] = []
    embed = of.description.embedding.register_forward_pre_hook(lambda module, args: now.append(args[0]))
    heal = of.description.layer_taps[1][-1].module.register_forward_hook(
        lambda module, args, out: torch.stack([plain[tuple(ids.tolist())] for ids in now[-1]])
    )
    try:
        found = rs.decay(of, TEXTS, M="symmetric")
    finally:
        embed.remove()
        heal.remove()
    assert (found.deviation_ratio.values[:, -1] == 0).all()
    assert (found.deviation_ratio.values[:, 0] == 1).all()
    assert np.abs(found.cost.values).max() == 0


def test_draws_intervals_and_definitions() -> None:
    of = double("llama")
    one, same_again, other = (rs.decay(of, TEXTS, M="symmetric", draws=2, seed=seed) for seed in (0, 0, 1))
    assert one.equals(same_again)
    assert one.sel(change="edit").deviation.equals(other.sel(change="edit").deviation)
    assert not one.sel(change="isotropic").deviation.equals(other.sel(change="isotropic").deviation)
    for name in ("deviation_ratio", "excess_deviation_ratio", "cost"):
        low, mean, high = (one[name + end].values for end in ("_low", "", "_high"))
        assert (low <= mean + 1e-9).all()
        assert (mean <= high + 1e-9).all()
    assert (one.deviation_ratio_high > one.deviation_ratio_low)[:, 1:].all()
    assert all("definition" in one[name].attrs for name in one.data_vars)
    short = rs.decay(of, TEXTS[:2], heads=[(0, 1)], M="symmetric")
    assert bool(short.deviation_ratio_low.isnull().all())
    assert bool(short.deviation_ratio.notnull().all())


def test_identity_moves_nothing_and_the_model_is_as_before() -> None:
    of = model("llama")
    found = rs.decay(of, TEXTS, heads=of.view.head_indices(1), M="identity")
    assert (found.deviation.values == 0).all()
    assert found.step.values.tolist() == steps_after_attention(of.trace(text()), 1)
    rs.decay(of, TEXTS, heads=of.view.head_indices(1), M="symmetric")
    assert torch.equal(of.run(text()), traced("llama").logits)


def test_asked_of_its_subject_alone_it_makes_the_first_layer_symmetric() -> None:
    of, told = double("llama"), []
    alone = rs.decay(of, TEXTS[:2], progress=lambda *at: told.append(at))
    assert alone.equals(rs.decay(of, TEXTS[:2], heads=of.view.head_indices(0), M="symmetric"))
    assert (alone.attrs["M"], alone.attrs["heads"]) == ("symmetric", "L0.H0 L0.H1 L0.H2 L0.H3")
    assert told[-1] == (2, 2)


def test_without_draws_there_is_no_noise() -> None:
    of = double("llama")
    found, noisy = (rs.decay(of, TEXTS[:2], draws=draws) for draws in (0, 1))
    assert found.change.values.tolist() == ["edit"]
    assert found.deviation.equals(noisy.deviation.sel(change=["edit"]))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"heads": [(0, 1), (1, 1)]},
            r"decay follows a change of one layer, got heads of 2 layers; type heads=\[\(5, 1\)\]",
        ),
        ({"heads": [(2, 1)], "draws": -1}, "draws must lie between 0 and 10,000, got -1; type draws=0"),
        ({"heads": 2}, r"list of \(layer, head\), got 2; type .*head_indices\(2\)"),
        ({"heads": [(99, 0)]}, "there is no layer 99"),
    ],
)
def test_bad_input_is_told_in_one_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=said) as error:
        rs.decay(default(), "The keys to the cabinet are", **asked)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["gpt2_by_depth", "qwen3"])
def test_no_gauge_moves_any_number(name: str) -> None:
    def asked(of: Any) -> Any:
        return rs.decay(of, TEXTS, M="symmetric", F="rank 3")

    holds_still(asked, asked(double(name)), name, gauges(name))

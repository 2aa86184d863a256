"""Penalties of training: values, gradients, packed models and runs."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.learner import make_packed_learner
from rheoscope.models.penalty import (
    PENALTIES,
    PenaltyTerm,
    asymmetry,
    per_head_asymmetry,
    query_key_maps,
    residual,
    weighted_penalty,
)
from rheoscope.models.projection import linear
from rheoscope.models.task import Objective
from rheoscope.models.train import read_log
from rheoscope.models.training_schedules import set_penalty_ramp, set_schedules
from rheoscope.models.transformer import build
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import without_jaxtyping_checks
from tests.learn.cases import Letters, recipe
from tests.models.runs import run, run_files, small, translator
from tests.models.test_projections import LINEAR, TIED, model, network
from tests.pretrained.cases import gap, text


@pytest.mark.parametrize(
    ("projection", "changes"),
    [*((name, {}) for name in LINEAR), ("untied", {"bias": True, "norm": "layer"}), ("tied", {"norm": "layer"})],
)
@torch.no_grad()
def test_asymmetry_equals_that_of_the_operators(projection: str, changes: dict[str, Any]) -> None:
    """Equals ‖M − Mᵀ‖²/‖M‖² of dense M, and 2 − 2s."""
    dense = torch.cat([block.M().dense() for block in model(projection, **changes).view.layer_heads])
    expected = (dense - dense.mT).square().sum((-2, -1)) / dense.square().sum((-2, -1))
    result = asymmetry(network(projection, **changes))
    assert gap(result[0], expected.mean()) <= 1e-10
    assert (
        gap(
            result[0],
            torch.tensor(2 - 2 * rs.operators(model(projection, **changes).view, draws=0).symmetry.values.mean()),
        )
        <= 1e-5
    )
    assert (float(result) < 1e-10) == (projection in [*TIED, "isometric_tied", "skew_planes"])


@torch.no_grad()
def test_asymmetry_with_grouped_heads_and_other_norms() -> None:
    for changes in ({"heads": 4, "kv_heads": 2}, {"norm": "none"}, {"placement": "post", "norm": "layer"}):
        dense = torch.cat([block.M().dense() for block in model("untied", **changes).view.layer_heads])
        expected = (dense - dense.mT).square().sum((-2, -1)) / dense.square().sum((-2, -1))
        assert gap(asymmetry(network("untied", **changes))[0], expected.mean()) <= 1e-10


def test_a_zero_M_has_no_asymmetry_and_finite_gradients() -> None:
    empty = copy.deepcopy(network("untied"))
    with torch.no_grad():
        empty.stack.blocks[0].attention.read.weight[:] = 0
    value = asymmetry(empty)
    assert gap(value[0], per_head_asymmetry(*query_key_maps(empty.stack.blocks[1])).mean() / 2) <= 1e-12
    value.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in empty.parameters() if p.grad is not None)


@torch.no_grad()
def test_the_residual_equals_that_of_the_trace() -> None:
    ids = torch.stack([text(0, 7), text(1, 7)])
    ratios = []
    for row in ids:
        points = model("untied").trace(row).points[::2]
        ratios.append((points[1:] - points[:-1]).square().sum(-1) / points[:-1].square().sum(-1))
    assert gap(residual(network("untied"), clouds(network("untied"), ids))[0], torch.stack(ratios).mean()) <= 1e-8


def clouds(model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    """The points before every layer and after the last."""
    result: list[torch.Tensor] = []
    model(ids, hidden_states=result)
    return result


@torch.no_grad()
def test_an_encoder_decoder_has_asymmetry_alone() -> None:
    translator_network = build(translator().config)
    assert 1.5 < float(asymmetry(translator_network)) < 2.5
    with pytest.raises(RheoscopeError, match=r"got an encoder-decoder; type penalty=\{'asymmetry': 0.1\}"):
        PenaltyTerm(translator_network, {"asymmetry": 1.0, "residual": 1.0})
    assert PenaltyTerm(translator_network, {"asymmetry": 1.0}).hidden_states() is None


class Packed(torch.nn.Module):
    """The linear maps of several models, each applied to its own texts."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.stack(weights)), None

    def forward(self, u: Tensor) -> Tensor:
        return linear(u, self.weight, self.bias)


def test_a_penalty_uses_the_forward_pass_of_the_loss() -> None:
    """No layer runs again, and the loss is the same as without a penalty."""
    model, strengths, calls = copy.deepcopy(network("untied")).train(), {"asymmetry": 0.5, "residual": 2.0}, list[int]()
    for number, block in enumerate(model.stack.blocks):
        block.register_forward_hook(lambda *_, number=number: calls.append(number))
    x = torch.stack([text(0, 6), text(1, 6)])
    loss, penalty = Objective(model, Letters(), 0.0, strengths)(x[:, :-1], x[:, 1:])
    assert calls == list(range(len(model.stack.blocks)))
    assert torch.equal(loss, Objective(model, Letters(), 0.0)(x[:, :-1], x[:, 1:])[0])
    assert penalty is not None
    assert torch.equal(penalty, weighted_penalty(strengths, model, clouds(model, x[:, :-1])).sum())
    assert Objective(model, Letters(), 0.0)(x[:, :-1], x[:, 1:])[1] is None
    assert Objective(model.eval(), Letters(), 0.0, strengths)(x[:, :-1], x[:, 1:])[1] is None  # eval mode


@pytest.mark.parametrize("name", list(PENALTIES))
@torch.no_grad()
def test_packed_models_have_one_penalty_each(name: str) -> None:
    """Two models with different attention weights, with their texts stacked."""
    first, second = network("symmetric_skew"), copy.deepcopy(network("symmetric_skew"))
    for block in second.stack.blocks:
        block.attention.read.weight.copy_(block.attention.read.weight.flip(0))
    packed = copy.deepcopy(first)
    for block, *blocks in zip(packed.stack.blocks, first.stack.blocks, second.stack.blocks, strict=True):
        block.attention.read = Packed([b.attention.read.weight for b in blocks])
        block.attention.projection.signs = torch.nn.Parameter(block.attention.projection.signs.expand(2, -1))
    ids = torch.stack([text(seed, 5) for seed in range(4)])
    alone = [PENALTIES[name](net, clouds(net, part)) for net, part in zip((first, second), ids.split(2), strict=True)]
    assert gap(PENALTIES[name](packed, clouds(packed, ids)), torch.cat(alone)) <= 1e-10
    assert abs(float(alone[0]) - float(alone[1])) > 1e-4


def test_a_strong_penalty_ties(tmp_path: Path) -> None:
    changes = {"steps": 8, "dropout": 0.0, "warmup": 0, "evaluate_every": 8, "rate": 0.02, "accumulate": 1}
    for strength in (0.0, 10.0):
        run(tmp_path / str(strength), small(**changes, penalty={"asymmetry": strength}))
    with torch.no_grad():
        free, near = (float(asymmetry(rs.load(tmp_path / s).network)) for s in ("0.0", "10.0"))
    assert near < 0.5 * free
    assert read_log(tmp_path / "10.0")[-1]["penalty asymmetry"] == pytest.approx(near, abs=1e-6)


def test_strength_0_changes_nothing_and_a_penalised_run_resumes(tmp_path: Path) -> None:
    plain, zero, uninterrupted, resumed = (tmp_path / name for name in ("plain", "zero", "whole", "cut"))
    run(plain, small(steps=4))
    run(zero, small(steps=4, penalty={"asymmetry": 0.0}))
    assert run_files(plain)["model.safetensors"] == run_files(zero)["model.safetensors"]
    packed = small(steps=4, penalty={"asymmetry": 0.5, "residual": 0.1})
    run(uninterrupted, packed)
    run(resumed, packed, stop_at=3)
    run(resumed, packed)
    assert run_files(uninterrupted) == run_files(resumed)
    assert run_files(uninterrupted)["model.safetensors"] != run_files(plain)["model.safetensors"]
    with pytest.raises(RheoscopeError, match=r"penalty=.*; use the same recipe or another directory; type out="):
        run(resumed, small(steps=4))


def test_the_penalty_does_not_depend_on_accumulation(tmp_path: Path) -> None:
    """The gradient is the same for any number of parts."""
    changes = {"dropout": 0.0, "steps": 3, "penalty": {"asymmetry": 1.0, "residual": 1.0}}
    for parts in (1, 2):
        run(tmp_path / str(parts), small(accumulate=parts, **changes))
    first, two = (rs.load(tmp_path / str(parts)).network.state_dict() for parts in (1, 2))
    assert max(gap(first[name], two[name]) for name in first) <= 1e-4


@torch.no_grad()
def test_the_total_penalty_is_a_weighted_sum() -> None:
    ids = text(0, 5)[None]
    network_clouds = clouds(network("untied"), ids)
    values = {name: float(PENALTIES[name](network("untied"), network_clouds)) for name in PENALTIES}
    result = weighted_penalty({"asymmetry": 0.5, "residual": 2.0}, network("untied"), network_clouds)
    assert float(result) == pytest.approx(0.5 * values["asymmetry"] + 2 * values["residual"])


@pytest.mark.parametrize(
    "strengths",
    [{"asymmetric": 1.0}, {"asymmetry": -1.0}, {"asymmetry": "much"}, "asymmetry", {"residual": float("nan")}],
)
def test_invalid_penalties_are_refused(strengths: Any) -> None:
    with without_jaxtyping_checks(), pytest.raises(RheoscopeError, match="; type ") as error:
        small(penalty=strengths)
    assert "\n" not in str(error.value)


def test_a_penalty_grows_over_its_warm_up(tmp_path: Path) -> None:
    """The gradient at step t is that of the penalty times min(1, (t + 1) / (fraction · steps)); packed seeds agree."""
    training_recipe, task = recipe(steps=8, penalty={"residual": 2.0}, penalty_warmup=0.5), Letters()
    learner = make_packed_learner(
        [initial_model(training_recipe.config, seed) for seed in (0, 1)], (0, 1), training_recipe, task
    )
    for step, expected in ((0, 0.25), (1, 0.5), (3, 1.0), (7, 1.0)):
        set_schedules(learner.objective, training_recipe, step)
        x, y = task.batch(0, training_recipe)
        _, penalty = learner.objective(x.repeat(2, 1), y.repeat(2, 1))
        set_penalty_ramp(learner.objective, 1.0)
        assert torch.equal(penalty, expected * learner.objective(x.repeat(2, 1), y.repeat(2, 1))[1])
    plain, warmed = (tmp_path / name for name in ("plain", "warmed"))
    run(plain, small(steps=4, penalty={"residual": 1.0}))
    run(warmed, small(steps=4, penalty={"residual": 1.0}, penalty_warmup=0.5))
    assert run_files(plain)["model.safetensors"] != run_files(warmed)["model.safetensors"]


def test_a_warm_up_without_a_penalty_changes_nothing(tmp_path: Path) -> None:
    run(tmp_path / "plain", small(steps=2))
    run(tmp_path / "warmed", small(steps=2, penalty_warmup=0.5))
    assert run_files(tmp_path / "plain")["model.safetensors"] == run_files(tmp_path / "warmed")["model.safetensors"]

"""Learning-rate schedules, weight decay, and the parameters of Muon."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rheoscope.models.optimiser import DECAY_FRACTION, learning_rate, make_optimisers
from rheoscope.models.transformer import build
from tests.models.runs import small, translator


def test_the_cosine_schedule_at_its_corners() -> None:
    recipe = small(steps=100, warmup=10, rate=0.5, floor=0.2)
    assert learning_rate(recipe, 0) == pytest.approx(0.5 / 11)
    assert learning_rate(recipe, 9) == pytest.approx(0.5 * 10 / 11)
    assert learning_rate(recipe, 10) == 0.5
    assert learning_rate(recipe, 55) == pytest.approx(0.5 * 0.6)
    assert learning_rate(recipe, 100) == pytest.approx(0.5 * 0.2)


def test_the_wsd_schedule_at_its_corners() -> None:
    recipe = small(steps=100, warmup=10, rate=0.5, schedule="wsd")
    decay_start = round(100 * (1 - DECAY_FRACTION))
    assert [learning_rate(recipe, step) for step in (10, 40, decay_start)] == [0.5] * 3
    assert learning_rate(recipe, 90) == pytest.approx(0.25)
    assert learning_rate(recipe, 99) == pytest.approx(0.5 / 20)
    assert learning_rate(recipe, 100) == 0


@given(st.integers(1, 300), st.integers(0, 400), st.sampled_from(["cosine", "wsd"]), st.floats(0, 1))
def test_a_rate_rises_and_then_falls(steps: int, warmup: int, schedule: Any, floor: float) -> None:
    recipe = small(steps=steps, warmup=warmup, schedule=schedule, floor=floor)
    rates = [learning_rate(recipe, step) for step in range(steps)]
    assert all(0 < rate <= recipe.rate for rate in rates[:-1])
    assert all(math.isfinite(rate) and 0 <= rate <= recipe.rate for rate in rates)
    rising, falling = rates[:warmup], rates[warmup:]
    assert rising == sorted(rising)
    assert all(later <= sooner * (1 + 1e-12) for sooner, later in pairwise(falling))
    if schedule == "cosine":
        assert all(rate >= floor * recipe.rate * (1 - 1e-12) for rate in falling)


BUILDS = [
    small(),
    small(norm="layer", bias=True, position="learned", tied=False),
    small(position="buckets", mechanism="bilinear"),
    translator(bias=True, norm="layer"),
]


@pytest.mark.parametrize("recipe", BUILDS)
@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_every_parameter_is_optimised_once_and_vectors_have_no_decay(recipe: Any, optimiser: str) -> None:
    recipe = recipe.with_changes(optimiser=optimiser, weight_decay=0.3)
    model = build(recipe.config)
    groups = [
        group for optimiser_instance in make_optimisers(model, recipe) for group in optimiser_instance.param_groups
    ]
    optimised = [id(p) for group in groups for p in group["params"]]
    assert sorted(optimised) == sorted(id(p) for p in model.parameters())
    for group in groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.3 if parameter.ndim >= 2 else 0.0)


@pytest.mark.parametrize("recipe", BUILDS)
def test_muon_optimises_the_matrices_inside_blocks(recipe: Any) -> None:
    model = build(recipe.config)
    adamw, muon = make_optimisers(model, recipe.with_changes(optimiser="muon"))
    names = {id(p): name for name, p in model.named_parameters()}
    optimised = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    assert optimised == {name for name, p in model.named_parameters() if p.ndim == 2 and ".blocks." in name}
    assert isinstance(adamw, torch.optim.AdamW)
    assert any(name.endswith("read.weight") for name in optimised)
    assert not any("embed" in name for name in optimised)


def test_decay_shrinks_matrices_and_leaves_vectors_unchanged() -> None:
    recipe = small(weight_decay=0.5, rate=0.1)
    model = build(recipe.config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for optimiser_instance in make_optimisers(model, recipe):
        optimiser_instance.step()
    for name, p in model.named_parameters():
        assert torch.allclose(p, before[name] * (0.95 if p.ndim >= 2 else 1.0))

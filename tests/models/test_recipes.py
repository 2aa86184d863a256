"""Recipes: sizes as published, every field checked, settings as a person types them."""

import json
from typing import Any

import pytest
import torch

from rheoscope.models.config import Config
from rheoscope.models.recipes import RECIPES, Recipe, parse_setting, recipe_by_name, tiny
from rheoscope.models.transformer import build, parameter_count
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import without_jaxtyping_checks


def size(config: Config) -> int:
    with torch.device("meta"):
        return parameter_count(build(config))


def test_published_sizes() -> None:
    """nanoGPT's README, without positions, as it counts; GPT-2; 2017: a shared matrix of 37000 tokens and 44.1M in layers."""
    shakespeare = recipe_by_name("shakespeare").config
    assert round((size(shakespeare) - 256 * 384) / 1e6, 2) == 10.65
    assert round(size(recipe_by_name("gpt2").config.with_changes(vocabulary=50257)) / 1e6) == 124
    width, hidden = 512, 2048
    norm, attention = 2 * width, 4 * (width * width + width)
    ffn = 2 * width * hidden + hidden + width
    layers = 6 * (attention + ffn + 2 * norm) + 6 * (2 * attention + ffn + 3 * norm)
    assert size(recipe_by_name("base2017").config) == 37000 * width + layers
    assert size(recipe_by_name("default").config) * 2 < 12e6


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_told_in_json_and_in_words(name: str) -> None:
    made = RECIPES[name]()
    assert json.loads(json.dumps(made.to_dict()))["config"]["width"] == made.config.width
    assert RECIPES[name].__doc__
    assert build(made.with_changes(width=32, heads=2, depth=1, hidden=16).config.with_changes(vocabulary=9))


def test_an_unknown_recipe() -> None:
    with pytest.raises(RheoscopeError, match="unknown recipe 'huge'; type one of tiny, default, "):
        recipe_by_name("huge")


def test_changes_reach_recipe_and_model() -> None:
    changed = tiny().with_changes(steps=5, width=32, rate=0.5, heads=2)
    assert (changed.steps, changed.rate, changed.config.width, changed.config.head_width) == (5, 0.5, 32, 16)
    assert changed.config.hidden < tiny().config.hidden
    assert tiny().with_changes(context=500).config.context == 500
    assert tiny().with_changes(context=8).config.context == tiny().config.context
    assert tiny().with_changes(vocabulary=300).vocabulary == 300


def test_a_context_longer_than_the_positions() -> None:
    config = Config(vocabulary=9, width=8, heads=2, context=16)
    with pytest.raises(RheoscopeError, match="texts of 17 tokens are longer than the 16 positions of the model"):
        Recipe(config, steps=1, batch=1, context=17, rate=1e-3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": 0}, "steps must be a whole number of 1 or more, got 0"),
        ({"batch": 2.5}, "batch must be a whole number"),
        ({"rate": 0.0}, "rate must be between 0 and 1000, got 0.0"),
        ({"rate": float("nan")}, "rate must be between"),
        ({"held_out": 1.0}, "held_out must be between"),
        ({"label_smoothing": -0.1}, "label_smoothing must be between 0 and 1"),
        ({"schedule": "flat"}, "unknown schedule 'flat'; type one of cosine, wsd"),
        ({"optimiser": "sgd"}, "unknown optimiser 'sgd'; type one of adamw, muon"),
        ({"accumulate": 3}, "batch must be a multiple of accumulate, got 16 and 3"),
        ({"dropout": 1.0}, "dropout must be a share below 1"),
        ({"colour": "red"}, "a recipe has no 'colour'; type one of accumulate, "),
        ({"config": None}, "a recipe has no 'config'"),
    ],
)
def test_what_a_recipe_refuses(changes: dict[str, Any], says: str) -> None:
    with without_jaxtyping_checks(), pytest.raises(RheoscopeError, match=says):
        tiny().with_changes(**changes)


@pytest.mark.parametrize(
    ("told", "value"),
    [
        ("steps=12", 12),
        ("rate=3e-4", 3e-4),
        ("width=64", 64),
        ("bias=true", True),
        ("ffn=gelu", "gelu"),
        ("vocabulary=512", 512),
        ("vocabulary=characters", "characters"),
        ("betas=0.9,0.98", (0.9, 0.98)),
        ('options={"scale": 2.0}', {"scale": 2.0}),
    ],
)
def test_settings(told: str, value: Any) -> None:
    name, read = parse_setting(told)
    assert told.startswith(name + "=")
    assert read == value
    assert type(read) is type(value)
    tiny().with_changes(**{name: read})


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ("steps", "a setting is name=value, got 'steps'"),
        ("steps=many", "steps takes a whole number, got 'many'"),
        ("rate=fast", "rate takes a number, got 'fast'"),
        ("bias=yes", "bias takes true or false, got 'yes'"),
        ("betas=0.9", "betas takes two numbers"),
        ("options={", "options takes JSON"),
        ("speed=1", "a recipe has no 'speed'"),
    ],
)
def test_settings_that_are_none(told: str, says: str) -> None:
    with pytest.raises(RheoscopeError, match=says):
        parse_setting(told)


def test_shaped_attention_is_as_warm_as_the_model_is_wide() -> None:
    """1/(τ₀ √(width · head_width)), whatever the width becomes."""
    for width in (32, 128):
        made = recipe_by_name("shaped").with_changes(width=width, heads=2, options={"tau0": 0.5})
        assert made.config.build_mechanism().score.scale == pytest.approx(1 / (0.5 * (width * width / 2) ** 0.5))
    with pytest.raises(RheoscopeError, match="mechanism 'metric' has no option 'tau0'"):
        tiny().with_changes(mechanism="metric", options={"tau0": 0.5})

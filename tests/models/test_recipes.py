"""Recipes: published sizes, checks of every field, and settings as typed."""

import json
from typing import Any

import pytest
import torch

from rheoscope.models.config import Config
from rheoscope.models.recipes import RECIPES, Recipe, parse_setting, recipe_by_name, tiny
from rheoscope.models.transformer import build, parameter_count
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import without_jaxtyping_checks


def n_parameters(config: Config) -> int:
    with torch.device("meta"):
        return parameter_count(build(config))


def test_published_sizes() -> None:
    """nanoGPT's README without positions, GPT-2, and the model of 2017 with 37,000 tokens and 44.1M parameters in layers."""
    shakespeare = recipe_by_name("shakespeare").config
    assert round((n_parameters(shakespeare) - 256 * 384) / 1e6, 2) == 10.65
    assert round(n_parameters(recipe_by_name("gpt2").config.with_changes(vocabulary=50257)) / 1e6) == 124
    width, hidden = 512, 2048
    norm, attention = 2 * width, 4 * (width * width + width)
    ffn = 2 * width * hidden + hidden + width
    layers = 6 * (attention + ffn + 2 * norm) + 6 * (2 * attention + ffn + 3 * norm)
    assert n_parameters(recipe_by_name("base2017").config) == 37000 * width + layers
    assert n_parameters(recipe_by_name("default").config) * 2 < 12e6


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_json_and_has_a_description(name: str) -> None:
    recipe = RECIPES[name]()
    assert json.loads(json.dumps(recipe.to_dict()))["config"]["width"] == recipe.config.width
    assert RECIPES[name].__doc__
    assert build(recipe.with_changes(width=32, heads=2, depth=1, hidden=16).config.with_changes(vocabulary=9))


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="unknown recipe 'huge'; the recipes are tiny, default, "):
        recipe_by_name("huge")


def test_with_changes_changes_the_recipe_and_the_model() -> None:
    changed = tiny().with_changes(steps=5, width=32, rate=0.5, heads=2)
    assert (changed.steps, changed.rate, changed.config.width, changed.config.head_width) == (5, 0.5, 32, 16)
    assert changed.config.hidden < tiny().config.hidden
    assert tiny().with_changes(context=500).config.context == 500
    assert tiny().with_changes(context=8).config.context == tiny().config.context
    assert tiny().with_changes(vocabulary=300).vocabulary == 300


def test_a_context_longer_than_the_positions_is_refused() -> None:
    config = Config(vocabulary=9, width=8, heads=2, context=16)
    with pytest.raises(RheoscopeError, match="texts of 17 tokens exceed the 16 positions of the model"):
        Recipe(config, steps=1, batch=1, context=17, rate=1e-3)


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"batch": 2.5}, "batch must be an integer"),
        ({"rate": 0.0}, "rate must be between 0 and 1000, got 0.0"),
        ({"rate": float("nan")}, "rate must be between"),
        ({"held_out": 1.0}, "held_out must be between"),
        ({"label_smoothing": -0.1}, "label_smoothing must be between 0 and 1"),
        ({"schedule": "flat"}, "schedule must be one of cosine, wsd, got 'flat'"),
        ({"optimiser": "sgd"}, "optimiser must be one of adamw, muon, got 'sgd'"),
        ({"accumulate": 3}, "batch must be a multiple of accumulate, got 16 and 3"),
        ({"dropout": 1.0}, "dropout must be a number from 0 to below 1"),
        ({"colour": "red"}, "a recipe has no setting 'colour'; its settings are accumulate, "),
        ({"config": None}, "a recipe has no setting 'config'"),
    ],
)
def test_invalid_fields_of_a_recipe_are_refused(changes: dict[str, Any], pattern: str) -> None:
    with without_jaxtyping_checks(), pytest.raises(RheoscopeError, match=pattern):
        tiny().with_changes(**changes)


@pytest.mark.parametrize(
    ("setting", "value"),
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
def test_typed_settings_are_parsed(setting: str, value: Any) -> None:
    name, parsed = parse_setting(setting)
    assert setting.startswith(name + "=")
    assert parsed == value
    assert type(parsed) is type(value)
    tiny().with_changes(**{name: parsed})


@pytest.mark.parametrize(
    ("setting", "pattern"),
    [
        ("steps", "a setting must have the form name=value, got 'steps'"),
        ("steps=many", "steps must be an integer, got 'many'"),
        ("rate=fast", "rate must be a number, got 'fast'"),
        ("bias=yes", "bias must be true or false, got 'yes'"),
        ("betas=0.9", "betas must be two numbers separated by a comma, got '0.9'"),
        ("options={", "options must be a JSON object, got '{'"),
        ("speed=1", "a recipe has no setting 'speed'"),
    ],
)
def test_invalid_settings_are_refused(setting: str, pattern: str) -> None:
    with pytest.raises(RheoscopeError, match=pattern):
        parse_setting(setting)


def test_the_scale_of_shaped_attention_follows_the_width() -> None:
    """The scale is 1/(τ₀ √(width · head_width)) for every width."""
    for width in (32, 128):
        recipe = recipe_by_name("shaped").with_changes(width=width, heads=2, options={"tau0": 0.5})
        assert recipe.config.build_mechanism().score.scale == pytest.approx(1 / (0.5 * (width * width / 2) ** 0.5))
    with pytest.raises(RheoscopeError, match="mechanism 'metric' has no option 'tau0'"):
        tiny().with_changes(mechanism="metric", options={"tau0": 0.5})

"""Configs: defaults, a round trip through a file, and errors for every invalid field."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from rheoscope.models.config import CHOICES, Config, default_hidden
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import without_jaxtyping_checks
from tests.models.outside import tiny

INVALID: list[tuple[dict[str, Any], str]] = [
    *(({name: 0}, name) for name in ("vocabulary", "width", "depth", "heads", "context")),
    *(
        ({name: -2}, name)
        for name in ("vocabulary", "width", "depth", "kv_heads", "head_width", "value_width", "hidden")
    ),
    *(({name: 2.5}, name) for name in ("vocabulary", "width", "depth", "kv_heads", "head_width", "hidden", "context")),
    ({"vocabulary": "many"}, "vocabulary"),
    ({"heads": 4, "kv_heads": 3}, "kv_heads=4"),
    *(({name: "odd"}, f"{name} must be one of") for name in CHOICES),
    ({"head_width": 3}, "even head_width"),
    ({"width": 12, "heads": 4}, "even head_width"),
    ({"dropout": 1.0}, "dropout"),
    ({"dropout": -0.1}, "dropout"),
    ({"width": 2, "heads": 4}, "head_width"),
    *(({name: True}, f"{name} must be an integer") for name in ("width", "depth")),
    *(
        ({name: value}, f"{name} must be a positive number, got {value!r}; type {name}=")
        for name in ("eps", "base", "branch")
        for value in (0, 0.0, -1.0, float("inf"), float("nan"), "1", None, True)
    ),
    *(({name: "0.1"}, f"{name} must be a number from 0") for name in ("dropout", "attention_dropout")),
    *(({name: 1}, f"{name} must be True or False, got 1") for name in ("bias", "tied", "scaled_embedding")),
    *(
        ({"options": value}, "options must be a dict of values that JSON can hold")
        for value in (None, "sigma", ["sigma"], {1: 2}, {"sigma": {2.0}}, {"sigma": float("nan")})
    ),
    ({"mechanism": "dot"}, "unknown mechanism 'dot'; type rs.mechanism"),
    ({"mechanism": "bilinear", "options": {"dim": 3}}, "options must not contain dim; type head_width=3"),
    ({"mechanism": "relation", "options": {"key_dim": 3}}, "options must not contain key_dim; type head_width=3"),
    ({"mechanism": None}, "unknown mechanism None; type rs.mechanism"),
    ({"mechanism": "metric", "options": {"sigma": -1.0}}, "sigma must be a positive number, got -1.0; type"),
    ({"mechanism": "sigmoid", "attention_dropout": 0.1}, "'sigmoid' normalises with Sigmoid; type attention_dropout=0"),
]


@pytest.mark.parametrize(("changes", "fragment"), INVALID, ids=str)
def test_a_wrong_field_is_refused_in_one_line(changes: dict[str, Any], fragment: str) -> None:
    with without_jaxtyping_checks(), pytest.raises(RheoscopeError) as error:
        tiny(**changes)
    message = str(error.value)
    assert fragment in message
    assert "; type " in message or "the mechanisms are" in message
    assert "\n" not in message


def test_odd_heads_are_fine_without_rotation() -> None:
    assert tiny(head_width=3, position="learned").head_width == 3


def test_an_option_of_another_mechanism_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="mechanism 'scaled_dot' has no option 'sigma'; its options are scale"):
        tiny(options={"sigma": 1.0})


def test_integers_are_accepted_as_numbers() -> None:
    with without_jaxtyping_checks():
        assert tiny(base=500, branch=2, dropout=0, eps=1).base == 500


def test_missing_widths_follow_from_the_others() -> None:
    config = Config(vocabulary=100, width=192, heads=6)
    assert (config.kv_heads, config.head_width, config.hidden) == (6, 32, 512)
    assert Config(vocabulary=100, width=192, heads=6, ffn="gelu").hidden == 768


@pytest.mark.parametrize("width", [8, 64, 128, 192, 256, 768, 4096])
def test_a_gated_ffn_has_as_many_parameters_as_a_plain_one(width: int) -> None:
    hidden, step = default_hidden(width, "swiglu"), 64 if width >= 192 else 8
    assert hidden % step == 0
    assert 0 <= 3 * hidden - 2 * default_hidden(width, "gelu") < 3 * step + 3  # rounded up by less than one step


def test_a_config_survives_a_round_trip_through_a_file(tmp_path: Path) -> None:
    import json

    config = tiny(mechanism="metric", options={"sigma": 2.0}, kv_heads=2, branch=0.5, dropout=0.1)
    config.save(tmp_path / "config.json")
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["model_type"] == "rheoscope"
    assert Config.from_dict(content) == config


def test_a_foreign_config_is_refused_by_name() -> None:
    with pytest.raises(RheoscopeError, match="'n_embd'"):
        Config.from_dict({"vocabulary": 9, "n_embd": 16})
    with pytest.raises(RheoscopeError, match="no field 'vocabulary'"):
        Config.from_dict({"width": 16})


def test_with_changes_recomputes_dependent_widths() -> None:
    config = Config(vocabulary=9, width=64, heads=4)
    wider = config.with_changes(width=128)
    assert (wider.head_width, wider.hidden) == (32, default_hidden(128, "swiglu"))
    assert config.with_changes(heads=8).kv_heads == 8
    assert config.with_changes(width=128, hidden=100).hidden == 100
    assert config.with_changes(depth=2) == Config(vocabulary=9, width=64, heads=4, depth=2)


def test_with_changes_recomputes_for_other_heads_and_ffn() -> None:
    config = Config(vocabulary=9, width=64, heads=4)
    assert config.with_changes(heads=8) == Config(vocabulary=9, width=64, heads=8)
    assert config.with_changes(ffn="relu") == Config(vocabulary=9, width=64, heads=4, ffn="relu")


def test_value_width_defaults_to_the_key_width() -> None:
    config = Config(vocabulary=9, width=64, heads=4)
    assert config.value_width == 16
    narrower = config.with_changes(value_width=5)
    assert (narrower.value_width, narrower.head_width, narrower.with_changes(depth=2).value_width) == (5, 16, 5)
    assert config.with_changes(head_width=8).value_width == narrower.with_changes(head_width=8).value_width == 8
    assert "value_width" not in config.function_key()  # models trained before this field existed keep their fingerprint
    assert narrower.function_key() != config.function_key()


def test_a_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        tiny().width = 3  # type: ignore[misc]


def test_the_function_key_ignores_defaults_and_training_fields() -> None:
    config = Config(vocabulary=9, width=8, heads=2)
    assert config.function_key() == config.with_changes(dropout=0.3, attention_dropout=0.1).function_key()
    assert config.function_key() != config.with_changes(mechanism="metric").function_key()
    assert (
        config.with_changes(options={"sigma": 2.0}, mechanism="metric").function_key()
        != config.with_changes(mechanism="metric").function_key()
    )
    assert "base" not in config.function_key()

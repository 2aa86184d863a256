"""Parts of entrants: every combination is a model that trains, or is refused in one line."""

import json
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.attention.definition import reference_attention
from rheoscope.learn import race_files
from rheoscope.learn.entrant_parts import FACTORIAL, PARTS, EntrantParts, split_entrants
from rheoscope.learn.entrants import BASELINE, ENTRANTS, canonical_name, entrant_config, entrant_configs, entrant_parts
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.learner import make_packed_learner, make_single_learner
from rheoscope.learn.race_plan import Race
from rheoscope.models.checkpoint import load_network, save
from rheoscope.models.config import Config
from rheoscope.models.projections import WITHOUT_M
from rheoscope.shapes import RheoscopeError
from tests.learn.cases import LENGTH, LETTERS, config, recipe, task_for
from tests.learn.test_packed_model import train_steps

F64 = torch.float64


def apply_outcome(**choices: str) -> str:
    """The refusal of a combination, or an empty string."""
    try:
        EntrantParts(**choices).apply_to(config(depth=2))
    except RheoscopeError as error:
        return str(error)
    return ""


PROJECTIONS_BY_VALUES = [
    EntrantParts(projection=projection, values=values, scale=scale, diagonal=diagonal).name or BASELINE
    for (projection, values), (scale, diagonal) in zip(
        product(PARTS["projection"], PARTS["values"]),
        [("free", "yes"), ("unit", "no"), ("free", "no")] * len(PARTS["projection"]),
        strict=True,
    )
    if not apply_outcome(projection=projection, values=values, scale=scale, diagonal=diagonal)
]
"""Every projection with every choice of values, each pair with one choice of scale and diagonal."""
BRANCHES_BY_PLACEMENT = [
    canonical_name(EntrantParts(branches=branches, placement=placement).name or "projection=untied")
    for branches, placement in product(PARTS["branches"], PARTS["placement"])
    if not apply_outcome(branches=branches, placement=placement)
]
"""Every kind of branch with every placement of norms that it combines with."""
BATTERY = list(dict.fromkeys([*map(canonical_name, FACTORIAL), *PROJECTIONS_BY_VALUES, *BRANCHES_BY_PLACEMENT]))


@cache
@torch.enable_grad()
def trained(name: str, optimiser: str = "adamw") -> tuple[list[Any], Any]:
    """Two seeds after two steps: each alone, and as one pack."""
    training_recipe = recipe(optimiser=optimiser)
    model_config = entrant_config(name, training_recipe.config)
    models = [[initial_model(model_config, seed).to(F64) for seed in range(2)] for _ in range(2)]
    task = task_for(training_recipe)
    for seed, model in enumerate(models[0]):
        train_steps(make_single_learner(model, seed, training_recipe, task), training_recipe, task, 2)
    packed = make_packed_learner(models[1], range(2), training_recipe, task)
    train_steps(packed, training_recipe, task, 2)
    return [model.eval() for model in models[0]], packed


def weights_of_heads(model: Any) -> tuple[Tensor, Tensor, Tensor]:
    """W_Q, W_K and W_V (h, d, k) of the first layer: the images of the axes."""
    attention = model.stack.blocks[0].attention
    W_Q, W_K, W_V = (x[0].detach() for x in attention.projection.maps(attention.read.weight))
    return W_Q, W_K, W_V


@pytest.mark.parametrize("name", BATTERY)
def test_seeds_in_one_pack_learn_what_each_learns_alone(name: str) -> None:
    models, packed = trained(name)
    for index, model in enumerate(models):
        for (parameter_name, a), b in zip(
            packed.model.unpack(index).named_parameters(), model.parameters(), strict=True
        ):
            assert a.isfinite().all(), parameter_name
            torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", BATTERY)
@torch.no_grad()
def test_a_trained_entrant_is_causal_and_reloads(name: str, tmp_path: Path) -> None:
    model = trained(name)[0][0]
    ids = torch.arange(LENGTH)[None] % LETTERS
    changed_ids = ids.clone()
    changed_ids[0, 5] += 1
    logits = model(ids)
    assert torch.equal(logits[:, :5], model(changed_ids)[:, :5])
    assert not torch.equal(logits[:, 5], model(changed_ids)[:, 5])
    reloaded, _ = load_network(save(model, tmp_path), dtype="float64")
    torch.testing.assert_close(reloaded(ids), logits, rtol=0, atol=1e-6)  # its tables of positions are in float32


@pytest.mark.parametrize("name", [name for name in BATTERY if entrant_parts(name).projection not in WITHOUT_M])
@torch.no_grad()
def test_a_trained_entrant_obeys_the_laws_of_its_parts(name: str) -> None:
    """Each law is computed from the definition: operators from the images of the axes, weights from the reference."""
    model, parts = trained(name)[0][0], entrant_parts(name)
    W_Q, W_K, W_V = weights_of_heads(model)
    M = W_Q @ W_K.mT
    is_symmetric = float((M - M.mT).abs().max()) < 1e-12
    assert is_symmetric == (
        parts.projection in ("tied", "isometric_tied", "identity", "bandwidth", "tied_positional", "skew_0")
    )
    for W, is_isometric in (
        (W_Q, parts.projection in ("isometric", "isometric_tied", "identity", "identity_queries")),
        (W_K, parts.projection in ("isometric", "isometric_tied", "identity")),
        (
            W_V,
            parts.values == "isometric" or (parts.values == "shared" and torch.equal(W_V, W_K) and is_orthonormal(W_K)),
        ),
    ):
        assert is_orthonormal(W) == is_isometric
    assert torch.equal(W_V, W_K) == (parts.values == "shared")
    scores, weights = scores_and_weights(model, torch.randn(1, LENGTH, 16, dtype=F64))
    assert bool(weights[:, :, 1:].diagonal(1, -2, -1).any()) == (parts.diagonal == "yes")
    assert torch.equal(weights[:, :, 0, 0], torch.ones_like(weights[:, :, 0, 0]))
    assert ((float(scores.abs().max()) <= 10 + 1e-9) and parts.scale == "unit") or parts.scale == "free"


def is_orthonormal(W: Tensor) -> bool:
    return float((W.mT @ W - torch.eye(W.shape[-1], dtype=F64)).abs().max()) < 1e-6


def scores_and_weights(model: Any, u: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and weights of the first layer on large tokens, from the definition of attention."""
    attention = model.stack.blocks[0].attention
    q, k, v = attention.project(100 * u, model.stack.place.rotation(slice(0, u.shape[1])))
    mechanism = attention.mechanism.current_mechanism()
    return mechanism.score(q, k), reference_attention(mechanism, q, k, v)[1]


@pytest.mark.parametrize("projection", [name for name in PARTS["projection"] if name not in ("skew_8", *WITHOUT_M)])
@pytest.mark.parametrize("values", ["isometric", "shared"])
def test_laws_hold_after_steps_of_muon(projection: str, values: str) -> None:
    """Also with no weights at all before the output projection: identity with shared values."""
    models, packed = trained(EntrantParts(projection=projection, values=values).name, "muon")
    for model in (models[0], packed.model.unpack(0)):
        W_Q, _, W_V = weights_of_heads(model)
        assert is_orthonormal(W_V) or values == "shared"
        assert is_orthonormal(W_Q) or projection not in ("isometric", "isometric_tied", "identity", "identity_queries")
        assert all(bool(p.isfinite().all()) for p in model.parameters())


# Names


def test_every_part_is_a_field_and_its_first_value_the_default() -> None:
    assert EntrantParts().values_by_part() == {part: next(iter(values)) for part, values in PARTS.items()}


def test_every_value_of_every_part_gives_a_model_of_its_own() -> None:
    shape = config(width=32, heads=1, depth=2)
    configs = [EntrantParts(**{part: value}).apply_to(shape) for part, values in PARTS.items() for value in values]
    assert len({repr(changed) for changed in configs}) == len(configs) - len(PARTS) + 1  # all first values agree


@pytest.mark.parametrize("name", ENTRANTS)
def test_a_short_name_is_the_combination_of_its_parts(name: str) -> None:
    parts = ENTRANTS[name].parts
    assert entrant_config(name, config()) == parts.apply_to(config())
    assert canonical_name(f"{parts.name or 'projection=untied'}:flops+residual=1") == f"{name}:flops+residual=1"


def test_a_combination_appears_once_in_a_race() -> None:
    names = ["scale=unit,projection=untied", "qk_norm", "diagonal=yes", "projection=tied,scale=unit"]
    assert list(entrant_configs(names, config())) == ["untied", "qk_norm", "projection=tied,scale=unit"]
    assert Race(recipe(), tuple(names)).mechanisms == ("qk_norm", "untied", "projection=tied,scale=unit")


def test_a_list_of_entrants_may_contain_parts() -> None:
    text = "tied,projection=tied,scale=unit:flops,diagonal=no+residual=.1,scale=unit,scale=free,metric"
    assert split_entrants(text) == [
        "tied", "projection=tied,scale=unit:flops", "diagonal=no+residual=.1", "scale=unit", "scale=free", "metric",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("projection=tide", "projection must be one of untied, tied, .* got 'tide'"),
        ("projektion=tied", "an entrant consists of parts projection=…, .* got 'projektion=tied'"),
        ("scale=unit,tied", "'tied' is no part of an entrant, but a value of projection"),
        ("scale=unit,scale=free", "names scale twice"),
        ("scale=unit,score=metric", "scale=unit and score=metric both determine mechanism; choose one"),
        (
            "projection=tied,start=symmetric",
            "start=symmetric sets W_Q, which this projection and these values do not have",
        ),
        ("values=shared,start=mimetic", "start=mimetic sets W_V, which"),
        ("projection=bandwidth,scale=unit", "projection=bandwidth has no effect on cosines"),
        ("projection=skew_8", "at most half of it as skew_planes, got head_width=8 and skew_planes=8"),
        ("scale=unit,score=unscaled", "mechanism 'cosine' has no option 'scale'"),
    ],
)
def test_combinations_that_do_not_exist_are_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(RheoscopeError, match=message) as error:
        entrant_config(name, config())
    assert "\n" not in str(error.value)


def test_every_pair_of_values_is_valid_or_refused_in_one_line() -> None:
    outcomes = [
        apply_outcome(**{part: value, other_part: other_value})
        for (part, values), (other_part, other_values) in combinations(PARTS.items(), 2)
        for value, other_value in product(values, other_values)
    ]
    assert not any("\n" in outcome for outcome in outcomes)
    assert outcomes.count("") > len(outcomes) / 2


def test_a_race_that_was_stored_with_fewer_fields_is_continued(tmp_path: Path) -> None:
    """Fields that a config has gained since hold their defaults."""
    settings = Race(recipe(), ("tied",), 2).to_json(task_for(recipe()))
    earlier_config = {name: x for name, x in settings["recipe"]["config"].items() if name not in ("values", "diagonal")}
    earlier_recipe = {name: x for name, x in settings["recipe"].items() if name != "penalty_warmup"}
    earlier = settings | {"recipe": earlier_recipe | {"config": earlier_config}}
    (tmp_path / race_files.RACE_FILE).write_text(json.dumps(earlier))
    assert race_files.store_or_check_race(tmp_path, settings)["mechanisms"] == ["untied", "tied"]
    changed = settings | {"recipe": settings["recipe"] | {"config": settings["recipe"]["config"] | {"diagonal": False}}}
    with pytest.raises(RheoscopeError, match="diagonal=True, now diagonal=False"):
        race_files.store_or_check_race(tmp_path, changed)


def test_stored_configs_of_earlier_versions_are_read() -> None:
    stored = {"vocabulary": 9, "width": 16, "heads": 2}
    for projection, parts in (
        ("tied_no_diagonal", EntrantParts(projection="tied", diagonal="no")),
        ("untied_no_diagonal", EntrantParts(diagonal="no")),
        ("shared_kv", EntrantParts(values="shared")),
    ):
        assert Config.from_dict(stored | {"projection": projection}) == parts.apply_to(Config(**stored))

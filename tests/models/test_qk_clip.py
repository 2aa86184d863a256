"""QK-clip: the scores of a step's batch stay below the limit, and nothing else changes."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.attention.definition import masked_scores, query_key_positions
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.learner import make_packed_learner, make_single_learner
from rheoscope.learn.race_plan import Race
from rheoscope.models.config import Config
from rheoscope.models.projection import row_counts
from rheoscope.shapes import RheoscopeError
from tests.learn.cases import Letters, recipe
from tests.learn.test_packed_model import train_steps
from tests.pretrained.cases import gap, randomised

F64 = torch.float64
LIMIT = 0.05


def clipped_recipe(**changes: Any) -> Any:
    return recipe(qk_clip=LIMIT, **changes)


def largest_scores(network: Any, ids: Tensor) -> Tensor:
    """The largest score of every head of the first layer, from the definition."""
    attention, n = network.stack.blocks[0].attention, ids.shape[1]
    u = network.stack.blocks[0].norm_attention(network.stack.embed(ids))
    q, k, _ = attention.project(u, network.stack.place.rotation(slice(0, n)))
    i, j = query_key_positions(n, n, ids.device)
    return masked_scores(attention.mechanism.current_mechanism(), q, k, i, j).amax((0, 2, 3))


@pytest.mark.parametrize(
    "changes", [{}, {"projection": "tied"}, {"projection": "gated"}, {"bias": True}, {"accumulate": 2}]
)
def test_a_step_shrinks_queries_and_keys_of_the_heads_above_the_limit(changes: dict[str, Any]) -> None:
    """Equal to the plain step, followed by the formula with the scores before the step."""
    with_clip, task = clipped_recipe(**changes), Letters()
    without_clip = recipe(**changes)
    first = randomised(initial_model(with_clip.config, 0)).to(F64)
    for parameter in first.stack.blocks[0].attention.read.parameters():
        parameter.data[:8] *= 1e-4  # the first head stays below the limit
    clipped, plain = copy.deepcopy(first), copy.deepcopy(first)
    maxima = largest_scores(first, task.batch(0, with_clip)[0]).detach()
    train_steps(make_single_learner(clipped, 0, with_clip, task), with_clip, task, 1)
    train_steps(make_single_learner(plain, 0, without_clip, task), without_clip, task, 1)
    attention, expected = clipped.stack.blocks[0].attention, plain.stack.blocks[0].attention
    factors = (LIMIT / maxima).clamp(max=1).sqrt()
    assert float(factors.min()) < 0.5 < float(factors.max())
    layout = attention.projection.layout
    sizes = row_counts(layout)
    for parameter, plain_parameter in zip(attention.read.parameters(), expected.read.parameters(), strict=True):
        for name, part, plain_part in zip(layout, parameter.split(sizes), plain_parameter.split(sizes), strict=True):
            head_factors = factors if name in ("q", "k") else torch.ones_like(factors)
            per_head = plain_part.unflatten(0, (len(factors), -1))
            shape = (-1, *[1] * (per_head.ndim - 1))
            assert gap(part, (head_factors.view(shape) * per_head).flatten(0, 1)) <= 1e-12
    assert attention.score_maxima is None
    assert gap(clipped.stack.embed.weight, plain.stack.embed.weight) == 0


def test_seeds_in_one_pack_are_clipped_by_their_own_scores() -> None:
    training_recipe, task = clipped_recipe(), Letters()
    models = [[initial_model(training_recipe.config, seed).to(F64) for seed in range(2)] for _ in range(2)]
    with torch.no_grad():
        for pair in models:
            pair[1].stack.blocks[0].attention.read.weight.mul_(8)  # only this seed is clipped at the first step
    for seed, model in enumerate(models[0]):
        train_steps(make_single_learner(model, seed, training_recipe, task), training_recipe, task, 3)
    packed = make_packed_learner(models[1], range(2), training_recipe, task)
    train_steps(packed, training_recipe, task, 3)
    for index, model in enumerate(models[0]):
        for a, b in zip(packed.model.unpack(index).parameters(), model.parameters(), strict=True):  # type: ignore[operator]
            assert gap(a, b) <= 1e-9


def test_a_high_limit_changes_nothing() -> None:
    models, task = [], Letters()
    for training_recipe in (recipe(), recipe(qk_clip=1e6)):
        model = initial_model(training_recipe.config, 0)
        train_steps(make_single_learner(model, 0, training_recipe, task), training_recipe, task, 3)
        models.append(model)
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))


def test_an_entrant_may_have_a_limit_of_its_own() -> None:
    packs = Race(recipe(), ("untied+qk_clip=30+residual=0.1",), 2).packs()
    assert [pack.recipe.config.qk_clip for pack in packs] == [0.0, 30.0]
    assert Config(vocabulary=9).function_key() == Config(vocabulary=9, qk_clip=30.0).function_key()


@pytest.mark.parametrize(
    "entrant",
    ["qk_norm", "projection=isometric", "projection=identity", "shared_kv", "metric", "projection=skew_2", "linear"],
)
def test_scores_that_cannot_be_clipped_are_refused_in_one_line(entrant: str) -> None:
    with pytest.raises(RheoscopeError, match="qk_clip needs scaled dot products, free values, one key head") as error:
        Race(recipe(), (f"{entrant}+qk_clip=30",), 2).packs()
    assert "\n" not in str(error.value)

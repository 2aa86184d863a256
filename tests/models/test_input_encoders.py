"""Token features: the embedding starts as a linear map of them, equal for every entrant."""

import torch

from rheoscope.learn.entrants import entrant_config
from rheoscope.learn.initial_weights import initial_model
from rheoscope.models.input_encoders import init_embedding
from rheoscope.models.recipes import two_moons
from rheoscope.models.two_moons import N_MOONS, TwoMoonsTask
from tests.learn.cases import Letters


def test_the_embedding_starts_as_a_linear_map_of_the_features() -> None:
    config, task = two_moons().config, TwoMoonsTask()
    plain, model = initial_model(config, 0), initial_model(config, 0)
    init_embedding(model, task)
    E, features = model.stack.embed.weight, task.token_features()
    W = torch.linalg.lstsq(features, E[:].detach() * (features != 0).any(-1, keepdim=True)).solution
    assert torch.allclose(features @ W, E * (features != 0).any(-1, keepdim=True), atol=1e-6)
    assert torch.equal(E[:N_MOONS], plain.stack.embed.weight[:N_MOONS])  # the answers have no features
    changed = [
        name for name, parameter in model.named_parameters() if not torch.equal(parameter, plain.get_parameter(name))
    ]
    assert changed == ["stack.embed.weight"]


def test_every_entrant_starts_with_the_same_embedding() -> None:
    config, task = two_moons().config, TwoMoonsTask()
    first, second = initial_model(config, 3), initial_model(entrant_config("metric_map", config), 3)
    for model in (first, second):
        init_embedding(model, task)
    assert torch.equal(first.stack.embed.weight, second.stack.embed.weight)


def test_a_task_without_features_leaves_the_embedding_unchanged() -> None:
    plain, model = initial_model(two_moons().config, 0), initial_model(two_moons().config, 0)
    init_embedding(model, Letters())
    assert all(torch.equal(parameter, plain.get_parameter(name)) for name, parameter in model.named_parameters())

"""What is known of tokens: the start of the embedding, the same for every entrant, and of tasks that know nothing none."""

import torch

from rheoscope.learn.entrants import entrant_config
from rheoscope.learn.initial_weights import initial_model
from rheoscope.models.input_encoders import init_embedding
from rheoscope.models.recipes import two_moons
from rheoscope.models.two_moons import N_MOONS, TwoMoonsTask
from tests.learn.cases import Letters


def test_the_embedding_is_a_linear_map_of_what_is_known() -> None:
    config, task = two_moons().config, TwoMoonsTask()
    plain, model = initial_model(config, 0), initial_model(config, 0)
    init_embedding(model, task)
    E, known = model.stack.embed.weight, task.token_features()
    W = torch.linalg.lstsq(known, E[:].detach() * (known != 0).any(-1, keepdim=True)).solution
    assert torch.allclose(known @ W, E * (known != 0).any(-1, keepdim=True), atol=1e-6)
    assert torch.equal(E[:N_MOONS], plain.stack.embed.weight[:N_MOONS])  # nothing is known of the answers
    others = [name for name, own in model.named_parameters() if not torch.equal(own, plain.get_parameter(name))]
    assert others == ["stack.embed.weight"]


def test_every_entrant_starts_from_the_same() -> None:
    config, task = two_moons().config, TwoMoonsTask()
    one, other = initial_model(config, 3), initial_model(entrant_config("metric_map", config), 3)
    for model in (one, other):
        init_embedding(model, task)
    assert torch.equal(one.stack.embed.weight, other.stack.embed.weight)


def test_a_task_that_knows_nothing_changes_nothing() -> None:
    plain, model = initial_model(two_moons().config, 0), initial_model(two_moons().config, 0)
    init_embedding(model, Letters())
    assert all(torch.equal(own, plain.get_parameter(name)) for name, own in model.named_parameters())

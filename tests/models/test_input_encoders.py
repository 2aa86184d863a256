"""What is known of tokens: the start of the embedding, the same for every entrant, and of tasks that know nothing none."""

import torch

from rheoscope.learn.entrants import entrant
from rheoscope.learn.initial_weights import drawn
from rheoscope.models.input_encoders import start_known
from rheoscope.models.recipes import two_moons
from rheoscope.models.two_moons import MOONS, TwoMoons
from tests.learn.cases import Letters


def test_the_embedding_is_a_linear_map_of_what_is_known() -> None:
    config, task = two_moons().config, TwoMoons()
    plain, model = drawn(config, 0), drawn(config, 0)
    start_known(model, task)
    E, known = model.stack.embed.weight, task.known()
    W = torch.linalg.lstsq(known, E[:].detach() * (known != 0).any(-1, keepdim=True)).solution
    assert torch.allclose(known @ W, E * (known != 0).any(-1, keepdim=True), atol=1e-6)
    assert torch.equal(E[:MOONS], plain.stack.embed.weight[:MOONS])  # nothing is known of the answers
    others = [name for name, own in model.named_parameters() if not torch.equal(own, plain.get_parameter(name))]
    assert others == ["stack.embed.weight"]


def test_every_entrant_starts_from_the_same() -> None:
    config, task = two_moons().config, TwoMoons()
    one, other = drawn(config, 3), drawn(entrant("metric_map", config), 3)
    for model in (one, other):
        start_known(model, task)
    assert torch.equal(one.stack.embed.weight, other.stack.embed.weight)


def test_a_task_that_knows_nothing_changes_nothing() -> None:
    plain, model = drawn(two_moons().config, 0), drawn(two_moons().config, 0)
    start_known(model, Letters())
    assert all(torch.equal(own, plain.get_parameter(name)) for name, own in model.named_parameters())

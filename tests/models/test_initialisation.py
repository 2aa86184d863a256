"""Initial weights of every `start`."""

from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.models.checkpoint import initial_network, load_network, save
from rheoscope.models.config import CHOICES
from rheoscope.models.initialisation import F_COEFFICIENTS, INITIALISERS, M_COEFFICIENTS, svd_factors
from rheoscope.shapes import RheoscopeError
from tests.models.runs import small
from tests.models.test_projections import config, forms, run_steps
from tests.pretrained.cases import gap, text


def test_every_start_is_a_choice_of_the_config() -> None:
    assert CHOICES["start"] == tuple(INITIALISERS)


@pytest.mark.parametrize("start", list(INITIALISERS))
def test_a_start_changes_only_attention_and_that_of_deepnet_the_ffn(start: str) -> None:
    network, plain = (initial_network(config("untied", start=name), 2) for name in (start, "usual"))
    for (name, parameter), plain_parameter in zip(network.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(parameter, plain_parameter) or "attention" in name or (start == "deepnet" and "ffn" in name)


def test_a_symmetric_start_is_tied_at_step_0_and_not_later() -> None:
    ids = text(0, 9)[None]
    free, tied = initial_network(config("untied", start="symmetric"), 5), initial_network(config("tied"), 5)
    assert gap(free(ids), tied(ids)) <= 1e-6
    trained_networks = [
        run_steps(small(projection=name, start=start, accumulate=1), 2)
        for name, start in (("untied", "symmetric"), ("tied", "usual"))
    ]
    ids = ids % 11
    assert gap(trained_networks[0](ids), trained_networks[1](ids)) > 1e-4
    symmetry = [M.symmetry() for net in trained_networks for M in forms(net)]
    assert all(float(s.max()) < 1 - 1e-6 for s in symmetry[:2])
    assert all(gap(s, torch.ones(2)) <= 1e-6 for s in symmetry[2:])


def test_grouped_heads_start_symmetric_with_their_shared_keys() -> None:
    net = initial_network(config("untied", heads=4, kv_heads=2, start="symmetric"), 1)
    for block in rs.load(net).view.layer_heads:
        assert gap(block.M().symmetry(), torch.ones(4)) <= 1e-6


def test_a_mimetic_start_is_near_the_identity() -> None:
    """The best rank-k part of αZ + βI has positive trace, and no other matrix of that rank is nearer."""
    net = initial_network(config("untied", width=32, heads=2, start="mimetic"), 1)
    for layer in net.stack.blocks:
        rows = layer.attention.read.weight.detach().unflatten(0, (-1, 16))
        for W_Q, W_K in zip(rows[:2], rows[2:4], strict=True):
            M = W_Q.mT @ W_K
            assert float(M.trace()) > 0.3 * M_COEFFICIENTS[1] * 16
            assert gap(W_Q @ W_Q.mT, W_K @ W_K.mT) <= 1e-5  # both contain √S
        F = rows[4:].flatten(0, 1).mT @ layer.attention.write.weight.detach().mT
        assert abs(float(F.trace()) / 32 + F_COEFFICIENTS[1]) < 0.15
        assert 0.5 < float((F + F_COEFFICIENTS[1] * torch.eye(32)).norm() / (F_COEFFICIENTS[0] * 32**0.5)) < 1.5


def test_svd_factors_give_the_best_approximation_of_their_rank() -> None:
    A = torch.randn(5, 5, dtype=torch.float64)
    S = torch.linalg.svdvals(A)
    for rank in (2, 5, 7):
        left_factor, right_factor = svd_factors(A, rank)
        assert left_factor.shape == (5, rank)
        assert float((A - left_factor @ right_factor).norm()) == pytest.approx(float(S[rank:].norm()), abs=1e-10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"projection": "tied", "start": "symmetric"},
            "start=symmetric sets W_Q, which this projection and these values do not have as weights of their own; type start='usual'",
        ),
        (
            {"projection": "untied", "values": "shared", "start": "mimetic"},
            "start=mimetic sets W_V, which this projection",
        ),
        ({"projection": "untied", "kv_heads": 1, "start": "mimetic"}, "got heads=2 and kv_heads=1; type kv_heads=2"),
    ],
)
def test_a_start_without_its_weights_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RheoscopeError, match=message):
        initial_network(config(**changes), 0)


def test_loading_a_model_draws_no_random_numbers(tmp_path: Any) -> None:
    net = initial_network(config("untied", start="mimetic"), 1)
    state = torch.get_rng_state()
    reloaded, _ = load_network(save(net, tmp_path))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(reloaded(text(0, 5)[None]), net(text(0, 5)[None]))

"""What is kept small besides the loss."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.models.penalty import PENALTIES, PenaltyTerm, asymmetry, residual, weighted_penalty
from rheoscope.models.projections import linear
from rheoscope.models.task import Objective
from rheoscope.models.train import read_log
from rheoscope.models.transformer import build
from rheoscope.shapes import RheoscopeError
from tests.learn.cases import Letters
from tests.models.runs import kept, run, small, translator
from tests.models.test_projections import EVERY, TIED, model, network
from tests.pretrained.cases import gap, text


@pytest.mark.parametrize(
    ("projection", "more"),
    [*((name, {}) for name in EVERY), ("untied", {"bias": True, "norm": "layer"}), ("tied", {"norm": "layer"})],
)
@torch.no_grad()
def test_asymmetry_is_what_the_operators_say(projection: str, more: dict[str, Any]) -> None:
    """‖M − Mᵀ‖²/‖M‖² of dense M, and 2 − 2s."""
    dense = torch.cat([block.M().dense() for block in model(projection, **more).view.layer_heads])
    slow = (dense - dense.mT).square().sum((-2, -1)) / dense.square().sum((-2, -1))
    found = asymmetry(network(projection, **more))
    assert gap(found[0], slow.mean()) <= 1e-10
    assert (
        gap(
            found[0], torch.tensor(2 - 2 * rs.operators(model(projection, **more).view, draws=0).symmetry.values.mean())
        )
        <= 1e-5
    )
    assert (float(found) < 1e-10) == (projection in TIED)


@torch.no_grad()
def test_groups_of_heads_and_no_norm() -> None:
    for more in ({"heads": 4, "kv_heads": 2}, {"norm": "none"}, {"placement": "post", "norm": "layer"}):
        dense = torch.cat([block.M().dense() for block in model("untied", **more).view.layer_heads])
        slow = (dense - dense.mT).square().sum((-2, -1)) / dense.square().sum((-2, -1))
        assert gap(asymmetry(network("untied", **more))[0], slow.mean()) <= 1e-10


def test_nothing_is_symmetric() -> None:
    empty = copy.deepcopy(network("untied"))
    with torch.no_grad():
        empty.stack.blocks[0].attention.read.weight[:] = 0
    asymmetry(empty).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in empty.parameters() if p.grad is not None)


@torch.no_grad()
def test_the_residual_is_that_of_the_trace() -> None:
    ids = torch.stack([text(0, 7), text(1, 7)])
    ratios = []
    for row in ids:
        points = model("untied").trace(row).points[::2]
        ratios.append((points[1:] - points[:-1]).square().sum(-1) / points[:-1].square().sum(-1))
    assert gap(residual(network("untied"), clouds(network("untied"), ids))[0], torch.stack(ratios).mean()) <= 1e-8


def clouds(model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    """Before every layer, and after the last."""
    found: list[torch.Tensor] = []
    model(ids, hidden_states=found)
    return found


@torch.no_grad()
def test_an_encoder_decoder_has_asymmetry_alone() -> None:
    made = build(translator().config)
    assert 1.5 < float(asymmetry(made)) < 2.5
    with pytest.raises(RheoscopeError, match="got an encoder-decoder; type --penalty asymmetry"):
        PenaltyTerm(made, {"asymmetry": 1.0, "residual": 1.0})
    assert PenaltyTerm(made, {"asymmetry": 1.0}).hidden_states() is None


class Packed(torch.nn.Module):
    """Linear maps of several models, each for its own texts."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.stack(weights)), None

    def forward(self, u: Tensor) -> Tensor:
        return linear(u, self.weight, self.bias)


def test_a_penalty_is_of_the_forward_pass_of_the_loss() -> None:
    """No layer runs again for it; the loss is what it is without."""
    model, told, calls = copy.deepcopy(network("untied")).train(), {"asymmetry": 0.5, "residual": 2.0}, list[int]()
    for number, block in enumerate(model.stack.blocks):
        block.register_forward_hook(lambda *_, number=number: calls.append(number))
    x = torch.stack([text(0, 6), text(1, 6)])
    loss, besides = Objective(model, Letters(), 0.0, told)(x[:, :-1], x[:, 1:])
    assert calls == list(range(len(model.stack.blocks)))
    assert torch.equal(loss, Objective(model, Letters(), 0.0)(x[:, :-1], x[:, 1:])[0])
    assert besides is not None
    assert torch.equal(besides, weighted_penalty(told, model, clouds(model, x[:, :-1])).sum())
    assert Objective(model, Letters(), 0.0)(x[:, :-1], x[:, 1:])[1] is None
    assert Objective(model.eval(), Letters(), 0.0, told)(x[:, :-1], x[:, 1:])[1] is None  # measured, not trained


@pytest.mark.parametrize("name", list(PENALTIES))
@torch.no_grad()
def test_models_trained_as_one_have_a_number_each(name: str) -> None:
    """Two models that differ in what attention reads, texts one after another."""
    one, other = network("symmetric_skew"), copy.deepcopy(network("symmetric_skew"))
    for block in other.stack.blocks:
        block.attention.read.weight.copy_(block.attention.read.weight.flip(0))
    both = copy.deepcopy(one)
    for block, *each in zip(both.stack.blocks, one.stack.blocks, other.stack.blocks, strict=True):
        block.attention.read = Packed([b.attention.read.weight for b in each])
        block.attention.projection.signs = torch.nn.Parameter(block.attention.projection.signs.expand(2, -1))
    ids = torch.stack([text(seed, 5) for seed in range(4)])
    alone = [PENALTIES[name](net, clouds(net, part)) for net, part in zip((one, other), ids.split(2), strict=True)]
    assert gap(PENALTIES[name](both, clouds(both, ids)), torch.cat(alone)) <= 1e-10
    assert abs(float(alone[0]) - float(alone[1])) > 1e-4


def test_a_strong_penalty_ties(tmp_path: Path) -> None:
    changes = {"steps": 8, "dropout": 0.0, "warmup": 0, "evaluate_every": 8, "rate": 0.02, "accumulate": 1}
    for strength in (0.0, 10.0):
        run(tmp_path / str(strength), small(**changes, penalty={"asymmetry": strength}))
    with torch.no_grad():
        free, near = (float(asymmetry(rs.load(tmp_path / s).network)) for s in ("0.0", "10.0"))
    assert near < 0.5 * free
    assert read_log(tmp_path / "10.0")[-1]["penalty asymmetry"] == pytest.approx(near, abs=1e-6)


def test_none_and_nothing_change_no_bit_and_a_penalised_run_resumes(tmp_path: Path) -> None:
    plain, zero, whole, cut = (tmp_path / name for name in ("plain", "zero", "whole", "cut"))
    run(plain, small(steps=4))
    run(zero, small(steps=4, penalty={"asymmetry": 0.0}))
    assert kept(plain)["model.safetensors"] == kept(zero)["model.safetensors"]
    both = small(steps=4, penalty={"asymmetry": 0.5, "residual": 0.1})
    run(whole, both)
    run(cut, both, stop_at=3)
    run(cut, both)
    assert kept(whole) == kept(cut)
    assert kept(whole)["model.safetensors"] != kept(plain)["model.safetensors"]
    with pytest.raises(RheoscopeError, match=r"penalty=.*another --out"):
        run(cut, small(steps=4))


def test_pieces_of_a_batch_share_a_penalty(tmp_path: Path) -> None:
    """As many pieces as there are, the same gradient."""
    changes = {"dropout": 0.0, "steps": 3, "penalty": {"asymmetry": 1.0, "residual": 1.0}}
    for pieces in (1, 2):
        run(tmp_path / str(pieces), small(accumulate=pieces, **changes))
    one, two = (rs.load(tmp_path / str(pieces)).network.state_dict() for pieces in (1, 2))
    assert max(gap(one[name], two[name]) for name in one) <= 1e-4


@torch.no_grad()
def test_the_sum_is_weighted() -> None:
    ids = text(0, 5)[None]
    seen = clouds(network("untied"), ids)
    own = {name: float(PENALTIES[name](network("untied"), seen)) for name in PENALTIES}
    found = weighted_penalty({"asymmetry": 0.5, "residual": 2.0}, network("untied"), seen)
    assert float(found) == pytest.approx(0.5 * own["asymmetry"] + 2 * own["residual"])


@pytest.mark.parametrize(
    "told", [{"asymmetric": 1.0}, {"asymmetry": -1.0}, {"asymmetry": "much"}, "asymmetry", {"residual": float("nan")}]
)
def test_what_is_no_penalty_is_refused(told: Any) -> None:
    with pytest.raises(RheoscopeError, match="; type ") as said:
        small(penalty=told)
    assert "\n" not in str(said.value)

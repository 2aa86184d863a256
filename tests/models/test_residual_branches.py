"""Residual branches: each equals its formula, keeps its M and F exact, and leaves the baseline's draws alone."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

import rheoscope as rs
from rheoscope.learn.entrant_parts import EntrantParts
from rheoscope.models.config import Config
from rheoscope.models.linear_maps import INIT_STD
from rheoscope.models.penalty import PENALTIES
from rheoscope.models.residual_branches import (
    attenuated_layer,
    deepnet_gain,
    deepnet_residual,
    set_branch_warmup,
    warmup_factor,
)
from rheoscope.models.transformer import build
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import gap, randomised, text

F64 = torch.float64
EPS = 0.1
"""Large, so that an eps in other units would show."""
ARMS: list[dict[str, str]] = [
    {"branches": "layerscale"},
    {"branches": "rezero"},
    {"branches": "attenuated"},
    {"branches": "attenuated", "placement": "peri"},
    {"branches": "deepnet"},
    {"branches": "warmup"},
    {"branches": "warmup", "placement": "peri"},
    {"branches": "scaled", "placement": "peri"},
    {"placement": "post", "branches": "layerscale"},
    {"placement": "peri"},
]


def arm(norm: str = "rms", **parts: str) -> Any:
    """A random network of an arm, a third of the way through its training."""
    base = Config(
        vocabulary=11, width=16, depth=4, heads=2, hidden=12, context=16, norm=norm, eps=EPS, bias=norm == "layer"
    )
    network = randomised(build(EntrantParts(**parts).apply_to(base))).to(F64).eval()
    set_branch_warmup(network, 1 / 3)
    return network


def written_out(network: Any, ids: Tensor, branches: str = "plain", placement: str = "pre") -> Tensor:
    """Logits from the formula of an arm, with the residual path as its paper writes it."""
    stack, depth = network.stack, network.config.depth
    rotation, x = stack.place.rotation(slice(0, ids.shape[1])), stack.embed(ids)
    alpha = (2 * depth) ** 0.25

    def norm(module: Any, y: Tensor) -> Tensor:
        if network.config.norm == "layer":
            return layer_norm(y, y.shape[-1:], module.weight, module.bias, EPS)
        return rms_norm(y, y.shape[-1:], module.weight, EPS)

    for index, block in enumerate(stack.blocks):
        for first_norm, end, sublayer in (
            (block.norm_attention, block.end_attention, lambda u, b=block: b.attention(u, None, rotation, None)),
            (block.norm_ffn, block.end_ffn, block.ffn),
        ):
            update = sublayer(x if placement == "post" or branches == "deepnet" else norm(first_norm, x))
            update = norm(end, update) if placement == "peri" else update
            update = update * end.gain if branches in ("layerscale", "rezero") else update
            update = update / (2 * depth) ** 0.5 if branches == "scaled" else update
            update = min(1.0, (1 / 3) / (0.5 * (index + 1) / depth)) * update if branches == "warmup" else update
            is_attenuated = branches == "attenuated" and index == 3 and first_norm is block.norm_attention
            x = (0.5 if is_attenuated else alpha if branches == "deepnet" else 1.0) * x + update
            x = norm(first_norm, x) if placement == "post" or branches == "deepnet" else x
    return network.unembed(x if placement == "post" or branches == "deepnet" else norm(stack.norm, x))


@pytest.mark.parametrize("parts", ARMS, ids=str)
@pytest.mark.parametrize("norm", ["rms", "layer"])
@torch.no_grad()
def test_an_arm_equals_its_formula(parts: dict[str, str], norm: str) -> None:
    if norm == "layer" and parts.get("placement") == "peri":
        with pytest.raises(RheoscopeError, match="placement=peri needs norm=rms, got norm=layer; type norm='rms'"):
            arm(norm, **parts)
        return
    network, ids = arm(norm, **parts), torch.arange(9)[None] % 11
    assert gap(network(ids), written_out(network, ids, **parts)) <= 1e-10


@pytest.mark.parametrize("parts", ARMS, ids=str)
@torch.no_grad()
def test_the_heads_of_an_arm_add_its_displacements(parts: dict[str, str]) -> None:
    """M and F are certified at loading, also in the middle of a warm-up; the points are those of the network."""
    network, ids = arm(**parts), torch.arange(9) % 11
    model, points = rs.load(copy.deepcopy(network)), list[Tensor]()
    network(ids[None], hidden_states=points)
    trace = model.trace(ids, logits=True)
    assert gap(trace.logits, network(ids[None])[0]) <= 1e-10
    is_post = network.config.placement == "post"
    recorded = trace.points if not is_post else torch.cat([trace.points[:1], trace.points[2::2]])
    assert gap(recorded, torch.cat(points)) <= 1e-9
    for layer in range(4):
        heads, x = model.view.layer_heads[layer], points[2 * layer][0]
        displacement = heads.displacements(x).sum(0) + heads.bias(x)
        block = network.stack.blocks[layer]
        u = x if is_post else block.norm_attention(x)
        rotation = network.stack.place.rotation(slice(0, 9))
        expected = block.update_scale * block.end_attention(block.attention(u[None], None, rotation, None))[0]
        assert gap(displacement, expected) <= 1e-9


@pytest.mark.parametrize("parts", ARMS, ids=str)
@torch.no_grad()
def test_an_encoder_decoder_is_certified_or_refused_in_one_line(parts: dict[str, str]) -> None:
    config = Config(vocabulary=11, width=16, depth=2, heads=2, hidden=12, context=16, form="encoder-decoder")
    network = randomised(build(EntrantParts(**parts).apply_to(config))).to(F64)
    if parts.get("placement") == "peri":
        with pytest.raises(
            RheoscopeError, match="cross-attention with placement=peri has no description as M and F"
        ) as e:
            rs.load(network)
        assert "\n" not in str(e.value)
    else:
        assert rs.load(network).view.facts["certificate"].closure_error <= 1e-9


def test_warm_up_begins_with_early_layers_and_ends_at_1() -> None:
    network = arm(branches="warmup")
    for progress, expected in ((0.125, (1.0, 0.5, 1 / 3, 0.25)), (0.5, (1.0,) * 4), (1.0, (1.0,) * 4)):
        set_branch_warmup(network, progress)
        torch.testing.assert_close([float(block.warmup) for block in network.stack.blocks], list(expected))
    assert warmup_factor(0.0, 0.5) == 0


@torch.no_grad()
def test_a_finished_warm_up_leaves_the_baseline() -> None:
    ids, parts = torch.arange(9)[None], EntrantParts(branches="warmup")
    base = Config(vocabulary=11, width=16, depth=2, heads=2, context=16)
    warmed, plain = build(parts.apply_to(base)), build(base)
    for parameter, other in zip(warmed.parameters(), plain.parameters(), strict=True):
        parameter.copy_(other)
    assert torch.equal(warmed(ids), plain(ids))
    set_branch_warmup(warmed, 0.01)
    assert not torch.equal(warmed(ids), plain(ids))


@torch.no_grad()
def test_deepnet_starts_with_xavier_scales() -> None:
    config = EntrantParts(branches="deepnet").apply_to(Config(vocabulary=11, width=128, depth=3, heads=2, hidden=256))
    beta = (8 * 3) ** -0.25
    assert deepnet_gain(config) == pytest.approx(beta)
    assert config.branch == pytest.approx(1 / deepnet_residual(config)) == pytest.approx(6**-0.25)
    network = build(config)
    for block in network.stack.blocks:
        q, k, v = block.attention.read.weight.chunk(3)
        for W, gain in ((q, 1.0), (k, 1.0), (v, beta), (block.attention.write.weight, beta)):
            assert float(W.std()) == pytest.approx(gain * 128**-0.5, rel=0.05)
        for W in (*block.ffn.read.weight.chunk(2), block.ffn.write.weight):
            assert float(W.std()) == pytest.approx(beta * (2 / (128 + 256)) ** 0.5, rel=0.05)
    assert float(network.stack.embed.weight.std()) == pytest.approx(INIT_STD, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"placement": "peri", "branch_gain": "vector"}, "placement=peri has a gain for every update"),
        ({"placement": "post", "attenuation": 0.5}, "attenuation needs norms before sublayers"),
        ({"attenuation": 0.0}, "attenuation must be a number above 0 and up to 1, got 0.0"),
        ({"branch_warmup": 1.0}, "branch_warmup must be a number from 0 to below 1, got 1.0"),
    ],
)
def test_branches_that_do_not_exist_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RheoscopeError, match=message) as error:
        Config(vocabulary=9, **changes)
    assert "\n" not in str(error.value)


@torch.no_grad()
def test_penalties_of_parts_are_the_relative_displacements_of_those_parts() -> None:
    network, ids = arm(), text(0, 7) % 11
    points, recorded = list[Tensor](), rs.load(copy.deepcopy(network)).trace(ids).points
    network(ids[None], hidden_states=points)
    displacements = (recorded[1:] - recorded[:-1]).square().sum(-1) / recorded[:-1].square().sum(-1)
    layers = (recorded[2::2] - recorded[:-1:2]).square().sum(-1) / recorded[:-1:2].square().sum(-1)
    expected = {
        "residual": layers.mean(),
        "residual_attention": displacements[::2].mean(),
        "residual_ffn": displacements[1::2].mean(),
        "residual_first": layers[0].mean(),
        "residual_last": layers[-1].mean(),
    }
    assert set(expected) | {"asymmetry"} == set(PENALTIES)
    for name, value in expected.items():
        assert gap(PENALTIES[name](network, points)[0], value) <= 1e-9


def test_the_attenuated_layer_is_deep() -> None:
    assert [attenuated_layer(Config(vocabulary=9, depth=depth)) for depth in (1, 2, 4, 6, 12)] == [0, 1, 3, 4, 9]

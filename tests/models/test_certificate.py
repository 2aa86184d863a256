"""The certificate of our own models: it rejects wrong descriptions, accepts right ones and leaves no hook behind."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.mask import NoMask
from rheoscope.attention.position import NoPosition
from rheoscope.attention.position_bias import ALiBi
from rheoscope.attention.score import Gram
from rheoscope.models.certificate import certify
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import ModelRotary, Norm
from tests.models.cases import EVERY, model, network
from tests.pretrained.cases import hooks_left, text

F64 = torch.float64


def wrong_model(name: str, fault: Callable[[Heads], Heads]) -> Any:
    loaded = model(name)
    return replace(
        loaded, view=replace(loaded.view, layer_heads=(loaded.view.layer_heads[0], fault(loaded.view.layer_heads[1])))
    )


def rotated_backwards(heads: Heads) -> Heads:
    position: Any = heads.mechanism.position
    return replace(
        heads,
        mechanism=replace(
            heads.mechanism, position=ModelRotary(lambda x, positions: position.rotate(x, 50 - positions))
        ),
    )


FAULTS: list[tuple[str, str, Callable[[Heads], Heads]]] = [
    ("wrong scale", "own", lambda h: replace(h, mechanism=replace(h.mechanism, score=Gram(scale=0.5)))),
    ("no mask", "own", lambda h: replace(h, mechanism=replace(h.mechanism, mask=NoMask()))),
    ("no rotation", "own", lambda h: replace(h, mechanism=replace(h.mechanism, position=NoPosition()))),
    ("turned backwards", "own", rotated_backwards),
    ("other slopes", "own_alibi", lambda h: replace(h, mechanism=replace(h.mechanism, position=ALiBi(torch.ones(4))))),
    ("heads of W_O in another order", "own", lambda h: replace(h, W_O=h.W_O.flip(0))),
    ("branch not folded", "own_branch", lambda h: replace(h, W_O=h.W_O / 0.4)),
    ("branch not folded into b_O", "own_branch", lambda h: replace(h, b_O=h.b_O / 0.4)),
    ("queries for keys", "own_biased", lambda h: replace(h, W_Q=h.W_K, W_K=h.W_Q)),
    ("no bias of the norm", "own_biased", lambda h: replace(h, norm=replace(h.norm, bias=None))),
    ("another norm", "own", lambda h: replace(h, norm=Norm())),
    ("another mechanism", "own_metric", lambda h: replace(h, mechanism=replace(h.mechanism, score=Gram()))),
]


@pytest.mark.parametrize(("name", "fault"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_a_wrong_description_is_refused(name: str, fault: Callable[[Heads], Heads]) -> None:
    with pytest.raises(RheoscopeError, match=r"does not reproduce this model: .*; please report the config"):
        certify(wrong_model(name, fault))


@pytest.mark.parametrize("name", EVERY)
def test_a_right_description_passes(name: str) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (F64, 1e-9)):
        certificate = model(name, dtype).view.facts["certificate"]
        assert certificate.n_tokens == 8
        assert max(certificate.weights_error, certificate.closure_error, certificate.operators_error) <= tolerance
    assert not hooks_left(network(name))


@pytest.mark.parametrize("name", EVERY)
def test_half_precision_is_certified(name: str) -> None:
    loaded = rs.load(copy.deepcopy(network(name)), dtype="bfloat16")
    assert loaded.view.facts["certificate"].dtype == loaded.view.facts["dtype"] == "bfloat16"
    points = loaded.trace(text()).points
    assert torch.equal(points, points.bfloat16().float())

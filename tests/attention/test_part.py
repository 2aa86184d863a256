"""Parts answer for themselves: each answer is a law, and a part that was never told is refused."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import rheoscope.pretrained.attention_interface
import rheoscope.space.head  # noqa: F401 (its parts are looked at too)
from rheoscope.attention.additive import Additive
from rheoscope.attention.definition import for_every_head, positions, reference
from rheoscope.attention.feature_maps import EluPlusOne, Feature, Identity, Linear, Residual, Tanh, Unit
from rheoscope.attention.kernel_score import Laplace, Polynomial
from rheoscope.attention.mask import Mask
from rheoscope.attention.normaliser.domain import Normaliser
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.position import NoPosition, Position, Rotary, Together
from rheoscope.attention.python_functions import ScoreFunction
from rheoscope.attention.score import Added, Distance, Gram, Relation, Score, SoftCap
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import DIM, EVERY, HEADS, MASKS, POSITIONS, allows, any_mechanism, gap, inputs, random, wave

FAMILIES: tuple[type, ...] = (Score, Mask, Position, Normaliser, Feature)


def below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from below(one)


def ours(kind: type) -> list[type]:
    return [one for one in below(kind) if one.__module__.startswith("rheoscope")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_an_abstract_class_and_final_frozen_values(family: type) -> None:
    assert inspect.isabstract(family)
    final = [one for one in ours(family) if not inspect.isabstract(one)]
    assert len(final) >= 6
    for one in final:
        assert is_dataclass(one)
        assert one.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert not ours(one)


# What was never told


class OwnScore(Score):
    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT

    def pull(self, q: Tensor, k: Tensor, r: Tensor) -> Any:
        return r @ k, r.mT @ q, {}


class OwnMask(Mask):
    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        return j <= i[:, None]


class OwnPosition(Position):
    def place(self, x: Tensor, at: Tensor) -> Tensor:
        return x

    def bias(self, i: Tensor, j: Tensor) -> None:
        return None

    def pull(self, at: Tensor, dy: Tensor) -> Any:
        return dy, {}

    def pull_bias(self, i: Tensor, j: Tensor, r: Tensor) -> dict[str, Tensor]:
        return {}


class OwnNormaliser(Normaliser):
    def __call__(self, s: Tensor) -> Tensor:
        return s.softmax(-1)


class OwnFeature(Feature):
    def __call__(self, x: Tensor) -> Tensor:
        return x

    def pull(self, x: Tensor, dy: Tensor) -> Any:
        return dy, {}


ONE = torch.ones(1, 1, 1, 1)
UNTOLD: dict[str, Callable[[], Any]] = {
    "scaled": lambda: OwnScore().scaled(0.5),
    "bilinear": lambda: OwnScore().bilinear,
    "linear_in_keys": lambda: OwnScore().linear_in_keys,
    "flops of a score": lambda: OwnScore().flops(4),
    "heads of a score": lambda: OwnScore().of_heads([0]),
    "heads of a mask": lambda: OwnMask().of_heads([0]),
    "moves": lambda: OwnPosition().moves,
    "rotation": lambda: OwnPosition().rotation(1, 2, ONE),
    "heads of a position": lambda: OwnPosition().of_heads([0]),
    "pull": lambda: OwnNormaliser().pull(ONE, ONE, ONE),
    "log_total": lambda: OwnNormaliser().log_total(ONE),
    "with_sink": lambda: OwnNormaliser().with_sink(torch.zeros(1)),
    "dropping": lambda: OwnNormaliser().dropping(0.1),
    "heads of a normaliser": lambda: OwnNormaliser().of_heads([0]),
    "linear": lambda: OwnFeature().linear,
    "after": lambda: OwnFeature().after(ONE),
    "width": lambda: OwnFeature().width(3),
    "flops of a feature": lambda: OwnFeature().flops,
    "heads of a feature": lambda: OwnFeature().of_heads([0]),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_a_part_that_was_never_told_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(RheoscopeError, match=r"Own\w+.*; (write|type) ") as refusal:
        UNTOLD[name]()
    assert "\n" not in str(refusal.value)


def test_and_still_runs_by_the_definition() -> None:
    """Only what would change a number is asked for: the definition needs nothing more, and no fast path is taken."""
    mechanism = replace(
        any_mechanism("scaled_dot"),
        score=OwnScore(),
        mask=OwnMask(),
        position=OwnPosition(),
        normaliser=OwnNormaliser(),
        value=OwnFeature(),
    )
    q, k, v = inputs(5, 5)
    expected = reference(replace(any_mechanism("scaled_dot"), score=Gram(scale=1.0)).under("causal"), q, k, v)[0]
    assert gap(mechanism(q, k, v), expected) < 1e-12
    assert mechanism.explain(q, k, v).name == "reference"


# Some of the heads


@pytest.mark.parametrize("name", EVERY)
def test_some_heads_are_what_they_were_among_all(name: str) -> None:
    some, (q, k, v) = [2, 0], inputs(5, 5)
    k, v = for_every_head(k, HEADS), for_every_head(v, HEADS)
    for at, mask in [("none", "none"), *((at, "none") for at in POSITIONS), *(("none", mask) for mask in MASKS)]:
        mechanism = replace(any_mechanism(name), position=POSITIONS[at](5, 5))
        if allows(mechanism, MASKS[mask](5, 5), 5, 5):
            mechanism = mechanism.under(MASKS[mask](5, 5))
            found = reference(mechanism.of_heads(some), q[:, some], k[:, some], v[:, some])[0]
            assert gap(found, reference(mechanism, q, k, v)[0][:, some]) < 1e-12, (at, mask)


# Scores

MAP = Tanh(random(1, DIM, 5), random(2, 1, 5), random(3, 5, 4))
SCORES: dict[str, Score] = {
    "dot": Gram(),
    "cosine": Gram(Unit(), 3.0),
    "mapped": Gram(Linear(random(4, DIM, 3))),
    "bilinear": Relation(Linear(random(5, DIM, 3)), Linear(random(6, DIM, 3))),
    "relation": Relation(MAP, Linear(random(7, DIM, 4))),
    "metric": Distance(),
    "mahalanobis": Distance(Linear(random(8, DIM, 3)), 0.3),
    "metric map": Distance(MAP),
    "laplace": Laplace(),
    "polynomial": Polynomial(),
    "additive": Additive(random(9, DIM, 4), random(10, DIM, 4), random(11, 4, 1)),
    "capped": SoftCap(Gram(), 2.0),
    "wider": Added(Gram(), 2),
    "function": ScoreFunction(wave),
}


def qk() -> tuple[Tensor, Tensor]:
    return random(20, 2, 3, 4, DIM), random(21, 2, 3, 5, DIM)


@pytest.mark.parametrize("name", SCORES)
def test_linear_in_keys_is_blind_to_a_vector_added_to_all(name: str) -> None:
    (q, k), score = qk(), SCORES[name]
    seen = score(q, k + random(22, DIM)) - score(q, k)
    constant = float((seen - seen[..., :1]).abs().max()) < 1e-10
    assert constant == score.linear_in_keys or name == "wider"


@pytest.mark.parametrize("name", [name for name in SCORES if SCORES[name].bilinear is not None])
def test_a_bilinear_score_is_the_product_of_its_maps_and_terms_of_one_side(name: str) -> None:
    (q, k), form = qk(), SCORES[name].bilinear
    assert form is not None
    score = SCORES[name].uncapped
    found, told = score(q, k), form[0](q) @ form[1](k).mT
    found, told = (
        x - x.mean(-1, keepdim=True) - x.mean(-2, keepdim=True) + x.mean((-2, -1), True) for x in (found, told)
    )
    scale = (found * told).sum() / told.square().sum()
    assert gap(found, scale * told) < 1e-10


def test_what_a_scaling_of_dot_products_is_to_each_score() -> None:
    q, k = qk()
    for name in ("dot", "mapped", "bilinear", "relation", "polynomial", "capped", "wider"):
        again = SCORES[name].scaled(0.25)
        assert gap(again(q, k), SCORES[name](q, k)) > 1e-3, name
        assert again.scaled(7.0).scaled(9.0)(q, k).equal(again(q, k)), name  # its own from now on
    for name in ("cosine", "laplace", "additive", "function"):
        assert SCORES[name].scaled(0.25) is SCORES[name]
    metric = Distance(scale=3.0).scaled(0.25)(q, k)
    rest = -0.125 * (q.square().sum(-1)[..., None] + k.square().sum(-1)[..., None, :])
    assert gap(metric, 0.25 * q @ k.mT + rest) < 1e-12


@pytest.mark.parametrize("name", SCORES)
def test_the_pull_of_queries_is_that_part_of_the_pull(name: str) -> None:
    (q, k), score = qk(), SCORES[name]
    r = random(23, *score(q, k).shape)
    assert gap(score.pull_queries(q, k, r), score.pull(q, k, r)[0]) < 1e-12


@pytest.mark.parametrize("name", SCORES)
def test_further_columns_add_their_products_inside_a_cap(name: str) -> None:
    (q, k), score = qk(), SCORES[name]
    more_q, more_k = random(24, 2, 3, 4, 2), random(25, 2, 3, 5, 2)
    found = score.with_columns(2)(torch.cat([q, more_q], -1), torch.cat([k, more_k], -1))
    added = score.uncapped(q, k) + more_q @ more_k.mT
    assert gap(found, 2.0 * torch.tanh(added / 2.0) if name == "capped" else added) < 1e-12


# Features

FEATURES: dict[str, Feature] = {
    "identity": Identity(),
    "linear": Linear(random(1, DIM, 3)),
    "a head": Linear(random(1, 3, DIM, 2)),
    "unit": Unit(),
    "elu": EluPlusOne(),
    "tanh": MAP,
    "residual": Residual(Tanh(random(1, DIM, 5), random(2, 1, 5), random(3, 5, DIM))),
    "linear residual": Residual(Linear(random(4, DIM, DIM))),
}


@pytest.mark.parametrize("name", FEATURES)
def test_what_a_feature_says_of_itself(name: str) -> None:
    phi, (x, y) = FEATURES[name], (random(5, 2, 3, 4, DIM), random(6, 2, 3, 4, DIM))
    assert phi.linear == (gap(phi(x + 2 * y), phi(x) + 2 * phi(y)) < 1e-12)
    assert phi.identity == bool(torch.equal(phi(x), x))
    assert phi(x).shape[-1] == phi.width(DIM)
    with FlopCounterMode(display=False) as counted:
        phi(x)
    assert counted.get_total_flops() == 2 * 3 * 4 * phi.flops
    if phi.linear:
        W = random(7, 3, 8, DIM)
        z = random(8, 2, 3, 4, 8)
        assert gap(z @ phi.after(W), phi(z @ W)) < 1e-12


# Positions


@pytest.mark.parametrize("at", POSITIONS)
def test_what_a_position_says_of_itself(at: str) -> None:
    position, x = POSITIONS[at](5, 5), random(1, 2, HEADS, 5, DIM)
    i, j = positions(5, 5)
    assert position.moves == (not torch.equal(position.place(x, i), x))
    assert position.nowhere == (not position.moves and position.bias(i, j) is None)
    of_keys, bias = position.key_bias(j), position.bias(i, j)
    if of_keys is not None:
        assert bias is not None
        rest = (bias - of_keys[:, None]).masked_fill(j > i[:, None], torch.nan)
        assert gap(rest.nan_to_num(), rest[..., :1].expand_as(rest).where(rest == rest, 0)) < 1e-12


def test_a_rotation_is_the_form_between_two_places() -> None:
    q, k = random(1, 1, 1, 1, DIM), random(2, 1, 1, 1, DIM)
    for position in (Rotary(), Rotary(pairs="neighbours", width=4), Together(NoPosition(), Rotary())):
        for i, j in ((5, 2), (2, 5), (3, 3)):
            placed = position.place(q, torch.tensor([i])) @ position.place(k, torch.tensor([j])).mT
            assert gap(q @ position.rotation(i - j, DIM, q) @ k.mT, placed) < 1e-12
    with pytest.raises(RheoscopeError, match="Sinusoidal does not say how it turns tokens"):
        POSITIONS["sinusoidal"](3, 3).rotation(1, DIM, q)
    with pytest.raises(RheoscopeError, match="Together does not say how it turns tokens"):
        Together(Rotary(), Rotary()).rotation(1, DIM, q)


# Normalisers


@pytest.mark.parametrize("name", EVERY)
def test_rows_that_say_so_sum_to_one(name: str) -> None:
    q, k, v = inputs(5, 5)
    sums = reference(any_mechanism(name), q, k, v)[1].sum(-1)
    if any_mechanism(name).normaliser.sums_to_one:
        assert gap(sums, torch.ones_like(sums)) < 1e-12
    else:
        assert (
            name in {"linear", "value map, linear", "shaped", "value map, shaped"}
            or gap(sums, torch.ones_like(sums)) > 1e-3
        )


@pytest.mark.parametrize("normaliser", [Softmax(), Sink(0.3), Sink(random(1, HEADS))], ids=["softmax", "sink", "sinks"])
def test_weights_are_e_to_the_scores_over_the_total(normaliser: Normaliser) -> None:
    s = random(2, 2, HEADS, 3, 5)
    total = normaliser.log_total(s.logsumexp(-1, keepdim=True))
    assert gap((s - total).exp(), normaliser(s)) < 1e-12
    assert normaliser.fused is not None
    assert gap(normaliser.with_sink(random(3, HEADS))(s), Sink(random(3, HEADS))(s)) < 1e-12

"""Properties that parts declare hold, and a part without a needed method raises."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import rheoscope.pretrained.attention_interface
import rheoscope.space.head  # noqa: F401 (registers further parts)
from rheoscope.attention.additive import Additive
from rheoscope.attention.definition import query_key_positions, reference_attention, repeat_kv_heads
from rheoscope.attention.feature_maps import EluPlusOne, Feature, Identity, Linear, Residual, Tanh, UnitNorm
from rheoscope.attention.kernel_score import Laplace, Polynomial
from rheoscope.attention.mask import Mask
from rheoscope.attention.normaliser.domain import Normaliser
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.position import CombinedPosition, NoPosition, Position, Rotary
from rheoscope.attention.python_functions import ScoreFunction
from rheoscope.attention.score import Distance, Gram, Relation, Score, ScorePlusDot, SoftCap
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import (
    DIM,
    HEADS,
    MASKS,
    MECHANISM_NAMES,
    POSITIONS,
    allows,
    any_mechanism,
    gap,
    inputs,
    random,
    wave,
)

FAMILIES: tuple[type, ...] = (Score, Mask, Position, Normaliser, Feature)


def subclasses(base: type) -> Iterator[type]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def package_subclasses(base: type) -> list[type]:
    return [subclass for subclass in subclasses(base) if subclass.__module__.startswith("rheoscope")]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_an_abstract_class_and_final_frozen_dataclasses(family: type) -> None:
    assert inspect.isabstract(family)
    final_classes = [part for part in package_subclasses(family) if not inspect.isabstract(part)]
    assert len(final_classes) >= 6
    for part in final_classes:
        assert is_dataclass(part)
        assert part.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert not package_subclasses(part)


# Missing methods


class OwnScore(Score):
    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT

    def pullback(self, q: Tensor, k: Tensor, r: Tensor) -> Any:
        return r @ k, r.mT @ q, {}


class OwnMask(Mask):
    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        return j <= i[:, None]


class OwnPosition(Position):
    def encode(self, x: Tensor, positions: Tensor) -> Tensor:
        return x

    def bias(self, i: Tensor, j: Tensor) -> None:
        return None

    def pullback(self, positions: Tensor, dy: Tensor) -> Any:
        return dy, {}

    def pullback_bias(self, i: Tensor, j: Tensor, r: Tensor) -> dict[str, Tensor]:
        return {}


class OwnNormaliser(Normaliser):
    def __call__(self, s: Tensor) -> Tensor:
        return s.softmax(-1)


class OwnFeature(Feature):
    def __call__(self, x: Tensor) -> Tensor:
        return x

    def pullback(self, x: Tensor, dy: Tensor) -> Any:
        return dy, {}


ONES = torch.ones(1, 1, 1, 1)
MISSING_METHODS: dict[str, Callable[[], Any]] = {
    "OwnScore.with_model_scale": lambda: OwnScore().with_model_scale(0.5),
    "OwnScore.bilinear_maps": lambda: OwnScore().bilinear_maps,
    "OwnScore.is_linear_in_keys": lambda: OwnScore().is_linear_in_keys,
    "OwnScore.flops": lambda: OwnScore().flops(4),
    "OwnScore.select_heads": lambda: OwnScore().select_heads([0]),
    "OwnMask.select_heads": lambda: OwnMask().select_heads([0]),
    "OwnPosition.changes_tokens": lambda: OwnPosition().changes_tokens,
    "OwnPosition.select_heads": lambda: OwnPosition().select_heads([0]),
    "OwnNormaliser.pullback": lambda: OwnNormaliser().pullback(ONES, ONES, ONES),
    "OwnNormaliser.select_heads": lambda: OwnNormaliser().select_heads([0]),
    "OwnFeature.is_linear": lambda: OwnFeature().is_linear,
    "OwnFeature.composed_matrix": lambda: OwnFeature().composed_matrix(ONES),
    "OwnFeature.output_width": lambda: OwnFeature().output_width(3),
    "OwnFeature.flops": lambda: OwnFeature().flops,
    "OwnFeature.select_heads": lambda: OwnFeature().select_heads([0]),
}
UNSUPPORTED: dict[str, tuple[Callable[[], Any], str]] = {
    "rotation": (
        lambda: OwnPosition().rotation_matrix(1, 2, ONES),
        "OwnPosition has no rotation matrix: its encoding does not depend only on the offset between two tokens",
    ),
    "log denominator": (
        lambda: OwnNormaliser().log_denominator(ONES),
        "OwnNormaliser is not a softmax, so it has no log denominator; type replace(mechanism, normaliser=Softmax())",
    ),
    "sink": (
        lambda: OwnNormaliser().with_sink(torch.zeros(1)),
        "attention sinks need a softmax, got OwnNormaliser; type rs.mechanism('scaled_dot')",
    ),
    "dropout": (
        lambda: OwnNormaliser().with_dropout(0.1),
        "attention dropout needs a softmax, got OwnNormaliser; type attention_dropout=0",
    ),
}


@pytest.mark.parametrize("name", MISSING_METHODS)
def test_missing_method_is_named_in_one_line(name: str) -> None:
    part, method = name.split(".")
    with pytest.raises(RheoscopeError, match=rf"^{part} does not define .*: implement the method {method}$") as caught:
        MISSING_METHODS[name]()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_operation_is_explained_in_one_line(name: str) -> None:
    call, expected = UNSUPPORTED[name]
    with pytest.raises(RheoscopeError) as caught:
        call()
    assert str(caught.value) == expected


def test_parts_without_optional_methods_run_by_the_reference() -> None:
    """The definition needs only the abstract methods; no fast path is chosen."""
    mechanism = replace(
        any_mechanism("scaled_dot"),
        score=OwnScore(),
        mask=OwnMask(),
        position=OwnPosition(),
        normaliser=OwnNormaliser(),
        value=OwnFeature(),
    )
    q, k, v = inputs(5, 5)
    expected = reference_attention(
        replace(any_mechanism("scaled_dot"), score=Gram(scale=1.0)).with_mask("causal"), q, k, v
    )[0]
    assert gap(mechanism(q, k, v), expected) < 1e-12
    assert mechanism.explain(q, k, v).name == "reference"


# Selection of heads


@pytest.mark.parametrize("name", MECHANISM_NAMES)
def test_selected_heads_have_the_same_output(name: str) -> None:
    heads, (q, k, v) = [2, 0], inputs(5, 5)
    k, v = repeat_kv_heads(k, HEADS), repeat_kv_heads(v, HEADS)
    cases = [("none", "none"), *((position, "none") for position in POSITIONS), *(("none", mask) for mask in MASKS)]
    for position, mask in cases:
        mechanism = replace(any_mechanism(name), position=POSITIONS[position](5, 5))
        if allows(mechanism, MASKS[mask](5, 5), 5, 5):
            mechanism = mechanism.with_mask(MASKS[mask](5, 5))
            selected = reference_attention(mechanism.select_heads(heads), q[:, heads], k[:, heads], v[:, heads])[0]
            assert gap(selected, reference_attention(mechanism, q, k, v)[0][:, heads]) < 1e-12, (position, mask)


# Scores

MAP = Tanh(random(1, DIM, 5), random(2, 1, 5), random(3, 5, 4))
SCORES: dict[str, Score] = {
    "dot": Gram(),
    "cosine": Gram(UnitNorm(), 3.0),
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
    "wider": ScorePlusDot(Gram(), 2),
    "function": ScoreFunction(wave),
}


def random_qk() -> tuple[Tensor, Tensor]:
    return random(20, 2, 3, 4, DIM), random(21, 2, 3, 5, DIM)


@pytest.mark.parametrize("name", SCORES)
def test_linear_in_keys_means_a_shift_of_all_keys_is_constant_per_query(name: str) -> None:
    (q, k), score = random_qk(), SCORES[name]
    change = score(q, k + random(22, DIM)) - score(q, k)
    is_constant = float((change - change[..., :1]).abs().max()) < 1e-10
    assert is_constant == score.is_linear_in_keys or name == "wider"


@pytest.mark.parametrize("name", [name for name in SCORES if SCORES[name].bilinear_maps is not None])
def test_bilinear_maps_reproduce_the_score_up_to_one_sided_terms(name: str) -> None:
    (q, k), form = random_qk(), SCORES[name].bilinear_maps
    assert form is not None
    score = SCORES[name].without_cap
    scores, products = score(q, k), form[0](q) @ form[1](k).mT
    scores, products = (
        x - x.mean(-1, keepdim=True) - x.mean(-2, keepdim=True) + x.mean((-2, -1), True) for x in (scores, products)
    )
    scale = (scores * products).sum() / products.square().sum()
    assert gap(scores, scale * products) < 1e-10


def test_model_scale_applies_only_to_scores_without_their_own() -> None:
    q, k = random_qk()
    for name in ("dot", "mapped", "bilinear", "relation", "polynomial", "capped", "wider"):
        scaled = SCORES[name].with_model_scale(0.25)
        assert gap(scaled(q, k), SCORES[name](q, k)) > 1e-3, name
        assert scaled.with_model_scale(7.0).with_model_scale(9.0)(q, k).equal(scaled(q, k)), name  # the scale is fixed
    for name in ("cosine", "laplace", "additive", "function"):
        assert SCORES[name].with_model_scale(0.25) is SCORES[name]
    metric = Distance(scale=3.0).with_model_scale(0.25)(q, k)
    norm_terms = -0.125 * (q.square().sum(-1)[..., None] + k.square().sum(-1)[..., None, :])
    assert gap(metric, 0.25 * q @ k.mT + norm_terms) < 1e-12


@pytest.mark.parametrize("name", SCORES)
def test_pullback_queries_equals_the_full_pullback(name: str) -> None:
    (q, k), score = random_qk(), SCORES[name]
    r = random(23, *score(q, k).shape)
    assert gap(score.pullback_queries(q, k, r), score.pullback(q, k, r)[0]) < 1e-12


@pytest.mark.parametrize("name", SCORES)
def test_dot_columns_add_a_dot_product_inside_a_cap(name: str) -> None:
    (q, k), score = random_qk(), SCORES[name]
    new_q, new_k = random(24, 2, 3, 4, 2), random(25, 2, 3, 5, 2)
    computed = score.with_dot_columns(2)(torch.cat([q, new_q], -1), torch.cat([k, new_k], -1))
    total = score.without_cap(q, k) + new_q @ new_k.mT
    assert gap(computed, 2.0 * torch.tanh(total / 2.0) if name == "capped" else total) < 1e-12


# Features

FEATURES: dict[str, Feature] = {
    "identity": Identity(),
    "linear": Linear(random(1, DIM, 3)),
    "linear per head": Linear(random(1, 3, DIM, 2)),
    "unit norm": UnitNorm(),
    "elu": EluPlusOne(),
    "tanh": MAP,
    "residual": Residual(Tanh(random(1, DIM, 5), random(2, 1, 5), random(3, 5, DIM))),
    "linear residual": Residual(Linear(random(4, DIM, DIM))),
}


@pytest.mark.parametrize("name", FEATURES)
def test_declared_properties_of_a_feature_hold(name: str) -> None:
    phi, (x, y) = FEATURES[name], (random(5, 2, 3, 4, DIM), random(6, 2, 3, 4, DIM))
    assert phi.is_linear == (gap(phi(x + 2 * y), phi(x) + 2 * phi(y)) < 1e-12)
    assert phi.is_identity == bool(torch.equal(phi(x), x))
    assert phi(x).shape[-1] == phi.output_width(DIM)
    with FlopCounterMode(display=False) as counter:
        phi(x)
    assert counter.get_total_flops() == 2 * 3 * 4 * phi.flops
    if phi.is_linear:
        W = random(7, 3, 8, DIM)
        z = random(8, 2, 3, 4, 8)
        assert gap(z @ phi.composed_matrix(W), phi(z @ W)) < 1e-12


# Positions


@pytest.mark.parametrize("name", POSITIONS)
def test_declared_properties_of_a_position_hold(name: str) -> None:
    position, x = POSITIONS[name](5, 5), random(1, 2, HEADS, 5, DIM)
    i, j = query_key_positions(5, 5)
    assert position.changes_tokens == (not torch.equal(position.encode(x, i), x))
    assert position.is_trivial == (not position.changes_tokens and position.bias(i, j) is None)
    key_bias, bias = position.key_bias(j), position.bias(i, j)
    if key_bias is not None:
        assert bias is not None
        row_constant = (bias - key_bias[:, None]).masked_fill(j > i[:, None], torch.nan)
        is_past = row_constant == row_constant  # False for NaN
        assert gap(row_constant.nan_to_num(), row_constant[..., :1].expand_as(row_constant).where(is_past, 0)) < 1e-12


def test_rotation_matrix_relates_two_positions() -> None:
    q, k = random(1, 1, 1, 1, DIM), random(2, 1, 1, 1, DIM)
    for position in (Rotary(), Rotary(pairs="neighbours", width=4), CombinedPosition(NoPosition(), Rotary())):
        for i, j in ((5, 2), (2, 5), (3, 3)):
            score = position.encode(q, torch.tensor([i])) @ position.encode(k, torch.tensor([j])).mT
            assert gap(q @ position.rotation_matrix(i - j, DIM, q) @ k.mT, score) < 1e-12
    with pytest.raises(RheoscopeError, match="Sinusoidal has no rotation matrix"):
        POSITIONS["sinusoidal"](3, 3).rotation_matrix(1, DIM, q)
    with pytest.raises(RheoscopeError, match="CombinedPosition has no rotation matrix"):
        CombinedPosition(Rotary(), Rotary()).rotation_matrix(1, DIM, q)


# Normalisers


@pytest.mark.parametrize("name", MECHANISM_NAMES)
def test_sums_to_one_holds_where_declared(name: str) -> None:
    q, k, v = inputs(5, 5)
    sums = reference_attention(any_mechanism(name), q, k, v)[1].sum(-1)
    if any_mechanism(name).normaliser.sums_to_one:
        assert gap(sums, torch.ones_like(sums)) < 1e-12
    else:
        assert (
            name in {"linear", "value map, linear", "shaped", "value map, shaped"}
            or gap(sums, torch.ones_like(sums)) > 1e-3
        )


@pytest.mark.parametrize("normaliser", [Softmax(), Sink(0.3), Sink(random(1, HEADS))], ids=["softmax", "sink", "sinks"])
def test_weights_are_exponentials_over_the_denominator(normaliser: Normaliser) -> None:
    s = random(2, 2, HEADS, 3, 5)
    log_denominator = normaliser.log_denominator(s.logsumexp(-1, keepdim=True))
    assert gap((s - log_denominator).exp(), normaliser(s)) < 1e-12
    assert normaliser.fused_softmax is not None
    assert gap(normaliser.with_sink(random(3, HEADS))(s), Sink(random(3, HEADS))(s)) < 1e-12

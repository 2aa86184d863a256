"""A law that cannot be broken says nothing: each one against a mechanism that breaks it."""

from dataclasses import dataclass, replace

import pytest
import torch

from rheoscope.attention.feature_maps import Tanh
from rheoscope.attention.laws import LAWS
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.domain import Normaliser, softmax
from rheoscope.attention.normaliser.entmax import Entmax
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.position import Rotary
from rheoscope.attention.score import Distance, Gram
from rheoscope.shapes import RheoscopeError, Scores, Weights
from tests.attention.cases import inputs, made, random


class Leaking(Normaliser):
    """Forbidden keys keep a little weight."""

    def __call__(self, s: Scores) -> Weights:
        return s.nan_to_num(neginf=-5.0).softmax(-1)


class HighSink(Sink):
    def __call__(self, s: Scores) -> Weights:
        return torch.cat([s, self._column(s) + 1], -1).softmax(-1)[..., :-1]


class Meanless(Shaped):
    def __call__(self, s: Scores) -> Weights:
        return self.alpha * torch.eye(s.shape[-1], dtype=s.dtype) + self.beta * softmax(s)


class Dense(Entmax):
    def __call__(self, s: Scores) -> Weights:
        return softmax(s)


@dataclass(frozen=True, eq=False)
class RowsOnly(Sinkhorn):
    @property
    def axes(self) -> list[int]:
        return [-1] * (2 * self.rounds + 1)


BREAKERS = {
    "linear_in_values": Mechanism(value=Tanh(random(1, 3, 4), random(2, 1, 4), random(3, 4, 3))),
    "permutation": Mechanism(position=Rotary()),
    "masked_is_zero": Mechanism(normaliser=Leaking()),
    "rows_sum_to_one": made("sigmoid"),
    "in_unit_interval": made("shaped"),
    "shift_invariant": made("sigmoid"),
    "dot_form": made("kernel_laplace"),
    "symmetric_score": made("bilinear"),
    "rotation": made("mahalanobis"),
    "gram_psd": Mechanism(Gram(scale=-1.0)),
    "kernel_psd": Mechanism(Distance(scale=-0.5)),
    "sink_identity": Mechanism(normaliser=HighSink()),
    "shaped_identity": Mechanism(normaliser=Meanless()),
    "sparse": Mechanism(Gram(scale=3.0), normaliser=Dense(2.0)),
    "bisection": Mechanism(normaliser=Dense(1.5)),
    "doubly_stochastic": Mechanism(normaliser=RowsOnly()),
    "limit_of_softmax": Mechanism(),
}


@pytest.mark.parametrize("law", LAWS)
def test_every_law_can_be_broken(law: str) -> None:
    q, k, v = inputs(5, 5)
    assert LAWS[law].violation(BREAKERS[law], q, k, v) > 1e-3


def test_a_law_of_one_normaliser_refuses_the_others() -> None:
    q, k, v = inputs(5, 5)
    for law in ("sink_identity", "shaped_identity", "sparse", "bisection", "doubly_stochastic"):
        with pytest.raises(RheoscopeError, match="this law speaks of"):
            LAWS[law].violation(replace(made("scaled_dot"), normaliser=Softmax()), q, k, v)


def test_statements_are_sentences_of_their_own() -> None:
    statements = [law.statement for law in LAWS.values()]
    assert len(set(statements)) == len(statements)
    assert all(statements)

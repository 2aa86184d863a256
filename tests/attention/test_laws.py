"""Each law is violated by some mechanism, so every check can fail."""

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
from tests.attention.cases import inputs, random, zoo_mechanism


class LeakySoftmax(Normaliser):
    """Masked keys keep a small weight."""

    def __call__(self, s: Scores) -> Weights:
        return s.nan_to_num(neginf=-5.0).softmax(-1)


class HighSink(Sink):
    def __call__(self, s: Scores) -> Weights:
        return torch.cat([s, self._sink_column(s) + 1], -1).softmax(-1)[..., :-1]


class ShapedWithoutMean(Shaped):
    def __call__(self, s: Scores) -> Weights:
        return self.alpha * torch.eye(s.shape[-1], dtype=s.dtype) + self.beta * softmax(s)


class DenseEntmax(Entmax):
    def __call__(self, s: Scores) -> Weights:
        return softmax(s)


@dataclass(frozen=True, eq=False)
class RowSinkhorn(Sinkhorn):
    @property
    def normalisation_axes(self) -> list[int]:
        return [-1] * (2 * self.rounds + 1)


VIOLATORS = {
    "linear_in_values": Mechanism(value=Tanh(random(1, 3, 4), random(2, 1, 4), random(3, 4, 3))),
    "permutation": Mechanism(position=Rotary()),
    "masked_is_zero": Mechanism(normaliser=LeakySoftmax()),
    "rows_sum_to_one": zoo_mechanism("sigmoid"),
    "in_unit_interval": zoo_mechanism("shaped"),
    "shift_invariant": zoo_mechanism("sigmoid"),
    "dot_form": zoo_mechanism("kernel_laplace"),
    "symmetric_score": zoo_mechanism("bilinear"),
    "rotation": zoo_mechanism("mahalanobis"),
    "gram_psd": Mechanism(Gram(scale=-1.0)),
    "kernel_psd": Mechanism(Distance(scale=-0.5)),
    "sink_identity": Mechanism(normaliser=HighSink()),
    "shaped_identity": Mechanism(normaliser=ShapedWithoutMean()),
    "sparse": Mechanism(Gram(scale=3.0), normaliser=DenseEntmax(2.0)),
    "bisection": Mechanism(normaliser=DenseEntmax(1.5)),
    "doubly_stochastic": Mechanism(normaliser=RowSinkhorn()),
    "limit_of_softmax": Mechanism(),
}


@pytest.mark.parametrize("law", LAWS)
def test_every_law_can_be_violated(law: str) -> None:
    q, k, v = inputs(5, 5)
    assert LAWS[law].violation(VIOLATORS[law], q, k, v) > 1e-3


def test_law_of_a_normaliser_rejects_other_normalisers() -> None:
    q, k, v = inputs(5, 5)
    for law in ("sink_identity", "shaped_identity", "sparse", "bisection", "doubly_stochastic"):
        with pytest.raises(RheoscopeError, match="this law applies to"):
            LAWS[law].violation(replace(zoo_mechanism("scaled_dot"), normaliser=Softmax()), q, k, v)


def test_statements_are_unique_and_not_empty() -> None:
    statements = [law.statement for law in LAWS.values()]
    assert len(set(statements)) == len(statements)
    assert all(statements)

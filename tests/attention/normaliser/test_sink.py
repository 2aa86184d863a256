import pytest
import torch

from rheoscope.attention.normaliser.domain import softmax
from rheoscope.attention.normaliser.sink import Sink
from tests.attention.cases import gap, random


@pytest.mark.parametrize(
    "sink", [0.0, -1.5, random(1, 3), random(1, 1)], ids=["softmax-1", "number", "per head", "shared"]
)
def test_sink_is_an_extra_key_of_value_zero(sink: float | torch.Tensor) -> None:
    s = random(2, 2, 3, 4, 5)
    sink_score = torch.as_tensor(sink, dtype=s.dtype).reshape(-1, 1, 1)
    expected = s.exp() / (sink_score.exp() + s.exp().sum(-1, keepdim=True))
    assert gap(Sink(sink)(s), expected) < 1e-14


def test_low_sink_is_softmax_and_high_sink_takes_all_weight() -> None:
    s = random(2, 1, 1, 3, 4)
    assert gap(Sink(-1e4)(s), softmax(s)) < 1e-15
    assert not bool(Sink(1e4)(s).any())


def test_empty_row_attends_only_to_the_sink() -> None:
    s = torch.full((1, 1, 1, 3), -torch.inf)
    assert not bool(Sink(0.0)(s).any())

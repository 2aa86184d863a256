"""Every normaliser: pull(s, a, d) is the derivative of nu at s along d, masked or not, with its own tensors."""

import pytest
import torch

from rheoscope.attention.normaliser.domain import Normaliser, permitted
from rheoscope.attention.normaliser.entmax import Entmax
from rheoscope.attention.normaliser.hard import Hard
from rheoscope.attention.normaliser.linear import Linear
from rheoscope.attention.normaliser.relu import ReLU
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.sigmoid import Sigmoid
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.normaliser.softmax import Softmax
from tests.attention.cases import coins, gap, gradients, random

ALL = [
    Softmax(),
    Sink(),
    Sink(random(1, 3)),
    Sink(random(1, 1)),
    Sigmoid(-0.7),
    ReLU(),
    Linear(),
    Shaped(0.3, 1.2, 0.9),
    *(Entmax(alpha) for alpha in (1.1, 1.25, 1.5, 1.75, 2.0, 3.0)),
    *(Sinkhorn(rounds) for rounds in (0, 1, 10)),
]


def label(normaliser: Normaliser) -> str:
    return type(normaliser).__name__


def table(normaliser: Normaliser, masked: bool) -> torch.Tensor:
    s = random(2, 2, 3, 4, 4)
    s = s.abs() if isinstance(normaliser, Linear) else s
    return s.masked_fill(~coins(3, 4, 4), -torch.inf) if masked else s


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("normaliser", ALL, ids=label)
def test_pull_is_the_derivative(normaliser: Normaliser, masked: bool) -> None:
    if masked and not normaliser.domain.masked:
        return
    s, d = table(normaliser, masked), random(4, 2, 3, 4, 4)
    a = normaliser(s)
    r, own = normaliser.pull(s, a, d)
    auto = gradients(lambda nu, s, *_: nu(s), normaliser, (s, s, s), d)  # type: ignore[arg-type]
    found = {"q": r} | own
    assert set(found) == set(auto) - {"k", "v"}
    assert max(gap(found[at], auto[at]) for at in found) < 1e-11


@pytest.mark.parametrize("normaliser", [*ALL, Hard()], ids=label)
def test_what_it_says_of_itself(normaliser: Normaliser) -> None:
    """`shift_invariant` and `rowwise` decide which lowering may run: both must be true exactly where they are said."""
    s = table(normaliser, masked=False)
    a = normaliser(s)
    assert (gap(normaliser(s + 0.7), a) < 1e-12) == normaliser.shift_invariant
    alone = torch.cat([normaliser(s[..., i : i + 1, :]) for i in range(4)], -2) if normaliser.rowwise else None
    assert alone is None or gap(alone, a) < 1e-12
    assert normaliser.domain.signed == bool((a < 0).any())


def test_what_depends_on_other_rows_says_so() -> None:
    """A row of Sinkhorn feels the other rows, a row of shaped attention its own place: rows in turn would be wrong."""
    s = random(2, 1, 1, 4, 4)
    moved = s.roll(1, -2)
    other = torch.cat([s[..., :1, :], 2 * s[..., 1:, :]], -2)
    assert not Sinkhorn().rowwise
    assert gap(Sinkhorn()(other)[..., :1, :], Sinkhorn()(s)[..., :1, :]) > 1e-3
    assert not Shaped().rowwise
    assert gap(Shaped()(moved)[..., 1:2, :], Shaped()(s)[..., :1, :]) > 1e-3


def test_permitted() -> None:
    assert permitted(torch.tensor([[[[0.0, -torch.inf, -3.0]]]])).tolist() == [[[[1.0, 0.0, 1.0]]]]

"""The pullback of every normaliser matches autograd, with and without masks, and declared properties hold."""

import pytest
import torch

from rheoscope.attention.normaliser.domain import Normaliser, allowed_indicator
from rheoscope.attention.normaliser.entmax import Entmax
from rheoscope.attention.normaliser.hard import Hardmax
from rheoscope.attention.normaliser.linear import DivideBySum
from rheoscope.attention.normaliser.relu import ReLU
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.sigmoid import Sigmoid
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.normaliser.softmax import Softmax
from tests.attention.cases import gap, gradients, random, random_booleans

NORMALISERS = [
    Softmax(),
    Sink(),
    Sink(random(1, 3)),
    Sink(random(1, 1)),
    Sigmoid(-0.7),
    ReLU(),
    DivideBySum(),
    Shaped(0.3, 1.2, 0.9),
    *(Entmax(alpha) for alpha in (1.1, 1.25, 1.5, 1.75, 2.0, 3.0)),
    *(Sinkhorn(rounds) for rounds in (0, 1, 10)),
]


def class_name(normaliser: Normaliser) -> str:
    return type(normaliser).__name__


def random_scores(normaliser: Normaliser, masked: bool) -> torch.Tensor:
    s = random(2, 2, 3, 4, 4)
    s = s.abs() if isinstance(normaliser, DivideBySum) else s
    return s.masked_fill(~random_booleans(3, 4, 4), -torch.inf) if masked else s


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("normaliser", NORMALISERS, ids=class_name)
def test_pullback_matches_autograd(normaliser: Normaliser, masked: bool) -> None:
    if masked and not normaliser.domain.allows_masks:
        return
    s, d = random_scores(normaliser, masked), random(4, 2, 3, 4, 4)
    a = normaliser(s)
    r, tensor_grads = normaliser.pullback(s, a, d)
    expected = gradients(lambda nu, s, *_: nu(s), normaliser, (s, s, s), d)  # type: ignore[arg-type]
    computed = {"q": r} | tensor_grads
    assert set(computed) == set(expected) - {"k", "v"}
    assert max(gap(computed[path], expected[path]) for path in computed) < 1e-11


@pytest.mark.parametrize("normaliser", [*NORMALISERS, Hardmax()], ids=class_name)
def test_declared_properties_hold(normaliser: Normaliser) -> None:
    """`is_shift_invariant` and `is_rowwise` decide which lowering may run, so both must be exact."""
    s = random_scores(normaliser, masked=False)
    a = normaliser(s)
    assert (gap(normaliser(s + 0.7), a) < 1e-12) == normaliser.is_shift_invariant
    single_rows = torch.cat([normaliser(s[..., i : i + 1, :]) for i in range(4)], -2) if normaliser.is_rowwise else None
    assert single_rows is None or gap(single_rows, a) < 1e-12
    assert normaliser.domain.has_negative_weights == bool((a < 0).any())


def test_normalisers_that_mix_rows_are_not_rowwise() -> None:
    """A Sinkhorn row depends on other rows and a shaped row on its index, so row-by-row evaluation is wrong."""
    s = random(2, 1, 1, 4, 4)
    rolled = s.roll(1, -2)
    changed = torch.cat([s[..., :1, :], 2 * s[..., 1:, :]], -2)
    assert not Sinkhorn().is_rowwise
    assert gap(Sinkhorn()(changed)[..., :1, :], Sinkhorn()(s)[..., :1, :]) > 1e-3
    assert not Shaped().is_rowwise
    assert gap(Shaped()(rolled)[..., 1:2, :], Shaped()(s)[..., :1, :]) > 1e-3


def test_allowed_indicator() -> None:
    assert allowed_indicator(torch.tensor([[[[0.0, -torch.inf, -3.0]]]])).tolist() == [[[[1.0, 0.0, 1.0]]]]

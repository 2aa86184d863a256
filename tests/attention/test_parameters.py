"""The tensors of a frozen value, by path."""

import torch

from rheoscope.attention.mask import Padding
from rheoscope.attention.parameters import tensors, with_tensors
from tests.attention.cases import COMPOSED, EVERY, POSITIONS, any_mechanism, made


def test_paths() -> None:
    assert list(tensors(made("metric_map"))) == ["score.phi.f.W", "score.phi.f.b", "score.phi.f.U"]
    assert list(tensors(made("relation")))[3:] == ["score.psi.W", "score.psi.b", "score.psi.U"]
    assert list(tensors(COMPOSED["sink a head"]())) == ["normaliser.sink"]
    assert list(tensors(COMPOSED["value map"]())) == ["value.W"]
    assert list(tensors(POSITIONS["together"](3, 3))) == ["a.b.table", "b.slopes"]
    assert list(tensors(made("scaled_dot").under(Padding(torch.ones(1, 2, dtype=torch.bool))))) == ["mask.real"]
    assert tensors(made("scaled_dot")) == {}
    assert tensors("no value at all") == {}


def test_every_tensor_goes_where_it_came_from() -> None:
    for name in EVERY:
        mechanism = any_mechanism(name)
        before = tensors(mechanism)
        new = {at: torch.full_like(x, c) for c, (at, x) in enumerate(before.items())}
        after = tensors(with_tensors(mechanism, new))
        assert {at: x.data_ptr() for at, x in after.items()} == {at: x.data_ptr() for at, x in new.items()}
        assert {at: x.data_ptr() for at, x in tensors(mechanism).items()} == {
            at: x.data_ptr() for at, x in before.items()
        }


def test_one_of_two_neighbours_can_change() -> None:
    mechanism = made("metric_map")
    changed = with_tensors(mechanism, {"score.phi.f.b": torch.zeros(1, 32)})
    assert not bool(tensors(changed)["score.phi.f.b"].any())
    assert tensors(changed)["score.phi.f.W"] is tensors(mechanism)["score.phi.f.W"]


def test_nothing_new_is_the_same_value() -> None:
    mechanism = made("bilinear")
    assert with_tensors(mechanism, {}) is mechanism

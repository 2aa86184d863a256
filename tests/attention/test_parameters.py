"""Read and replace the tensors of a frozen dataclass by path."""

import torch

from rheoscope.attention.mask import Padding
from rheoscope.attention.parameters import tensors_by_path, with_tensors
from tests.attention.cases import COMPOSED, MECHANISM_NAMES, POSITIONS, any_mechanism, zoo_mechanism


def test_tensors_are_keyed_by_path() -> None:
    assert list(tensors_by_path(zoo_mechanism("metric_map"))) == ["score.phi.f.W", "score.phi.f.b", "score.phi.f.U"]
    assert list(tensors_by_path(zoo_mechanism("relation")))[3:] == ["score.psi.W", "score.psi.b", "score.psi.U"]
    assert list(tensors_by_path(COMPOSED["sink per head"]())) == ["normaliser.sink"]
    assert list(tensors_by_path(COMPOSED["value map"]())) == ["value.W"]
    assert list(tensors_by_path(POSITIONS["combined"](3, 3))) == ["a.b.table", "b.slopes"]
    assert list(
        tensors_by_path(zoo_mechanism("scaled_dot").with_mask(Padding(torch.ones(1, 2, dtype=torch.bool))))
    ) == ["mask.is_token"]
    assert tensors_by_path(zoo_mechanism("scaled_dot")) == {}
    assert tensors_by_path("not a dataclass") == {}


def test_with_tensors_replaces_every_tensor_and_keeps_the_original() -> None:
    for name in MECHANISM_NAMES:
        mechanism = any_mechanism(name)
        before = tensors_by_path(mechanism)
        new = {path: torch.full_like(x, c) for c, (path, x) in enumerate(before.items())}
        after = tensors_by_path(with_tensors(mechanism, new))
        assert {path: x.data_ptr() for path, x in after.items()} == {path: x.data_ptr() for path, x in new.items()}
        assert {path: x.data_ptr() for path, x in tensors_by_path(mechanism).items()} == {
            path: x.data_ptr() for path, x in before.items()
        }


def test_with_tensors_replaces_a_single_tensor() -> None:
    mechanism = zoo_mechanism("metric_map")
    changed = with_tensors(mechanism, {"score.phi.f.b": torch.zeros(1, 32)})
    assert not bool(tensors_by_path(changed)["score.phi.f.b"].any())
    assert tensors_by_path(changed)["score.phi.f.W"] is tensors_by_path(mechanism)["score.phi.f.W"]


def test_no_replacements_return_the_same_value() -> None:
    mechanism = zoo_mechanism("bilinear")
    assert with_tensors(mechanism, {}) is mechanism

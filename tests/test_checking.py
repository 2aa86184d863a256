"""The checks of shapes are on, find what jaxtyping finds, and are left out for the same call alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.statistics import ranks
from tests.checking import checked_always, jaxtyped


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The functions that jaxtyping itself was asked to check."""
    asked: list[Any] = []
    monkeypatch.setattr("tests.checking.checked_always", lambda f: (asked.append(f), checked_always(f))[1])
    return asked


def make(changes: list[int]) -> Any:
    """A function of two shapes that agree, whose result loses `changes[0]` rows."""

    @jaxtyped(typechecker=None)
    def product(a: Float[Tensor, "m d"], b: Float[Tensor, "n d"], how: Literal["x"] = "x") -> Float[Tensor, "m n"]:
        return (a @ b.mT)[changes[0] :]

    return product


def test_a_wrong_shape_is_refused_every_time() -> None:
    product = make([0])
    assert product(torch.ones(2, 3), torch.ones(4, 3)).shape == (2, 4)
    for _ in range(2):
        with pytest.raises(jaxtyping.TypeCheckError):
            product(torch.ones(2, 3), torch.ones(3, 4))
        with pytest.raises(jaxtyping.TypeCheckError):
            product(torch.ones(2, 3), torch.ones(4, 3, dtype=torch.long))
        with pytest.raises(jaxtyping.TypeCheckError):
            product(torch.ones(2, 3), torch.ones(4, 3), "y")


def test_a_result_of_another_shape_is_checked_although_its_arguments_passed() -> None:
    changes = [0]
    product = make(changes)
    product(torch.ones(5, 3), torch.ones(4, 3))
    changes[0] = 1
    with pytest.raises(jaxtyping.TypeCheckError):
        product(torch.ones(5, 3), torch.ones(4, 3))


def test_the_same_call_is_checked_once_and_another_again(counted: list[Any]) -> None:
    for _ in range(3):  # three closures of one `def`
        make([0])(torch.ones(6, 3), torch.ones(4, 3))
    assert len(counted) == 1
    make([0])(torch.ones(6, 3), torch.ones(7, 3))
    assert len(counted) == 2


def test_a_dataclass_is_checked_where_it_is_made() -> None:
    @jaxtyped(typechecker=None)
    @dataclass(frozen=True)
    class Pair:
        a: Float[Tensor, "n d"]
        b: Float[Tensor, "n d"]

    assert Pair(torch.ones(2, 3), torch.ones(2, 3)).a.shape == (2, 3)
    with pytest.raises(jaxtyping.TypeCheckError):
        Pair(torch.ones(2, 3), torch.ones(3, 3))


def test_a_signature_without_shapes_is_left_as_it_is() -> None:
    def plain(n: int) -> list[int]:
        return [n]

    assert jaxtyped(plain) is plain


def test_the_package_is_checked() -> None:
    assert ranks.spearman(torch.arange(3.0), torch.arange(3.0)) == pytest.approx(1)
    with pytest.raises(jaxtyping.TypeCheckError):
        ranks.spearman(torch.arange(3.0), torch.arange(4.0))

"""The shape checks are active, find what jaxtyping finds, and are skipped only for identical calls."""

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
from tests.conftest import ROOT, UNCHECKED


@pytest.fixture(autouse=True)
def checked_functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The functions that jaxtyping itself has checked."""
    functions: list[Any] = []
    monkeypatch.setattr("tests.checking.checked_always", lambda f: (functions.append(f), checked_always(f))[1])
    return functions


def make_product(changes: list[int]) -> Any:
    """A function of two compatible shapes, whose result loses `changes[0]` rows."""

    @jaxtyped(typechecker=None)
    def product(a: Float[Tensor, "m d"], b: Float[Tensor, "n d"], how: Literal["x"] = "x") -> Float[Tensor, "m n"]:
        return (a @ b.mT)[changes[0] :]

    return product


def test_wrong_shapes_raise_every_time() -> None:
    product = make_product([0])
    assert product(torch.ones(2, 3), torch.ones(4, 3)).shape == (2, 4)
    for _ in range(2):
        with pytest.raises(jaxtyping.TypeCheckError):
            product(torch.ones(2, 3), torch.ones(3, 4))
        with pytest.raises(jaxtyping.TypeCheckError):
            product(torch.ones(2, 3), torch.ones(4, 3, dtype=torch.long))
        with pytest.raises(jaxtyping.TypeCheckError):
            product(torch.ones(2, 3), torch.ones(4, 3), "y")


def test_result_with_another_shape_is_checked_although_its_arguments_passed() -> None:
    changes = [0]
    product = make_product(changes)
    product(torch.ones(5, 3), torch.ones(4, 3))
    changes[0] = 1
    with pytest.raises(jaxtyping.TypeCheckError):
        product(torch.ones(5, 3), torch.ones(4, 3))


def test_identical_calls_are_checked_once(checked_functions: list[Any]) -> None:
    for _ in range(3):  # three closures of one `def`
        make_product([0])(torch.ones(6, 3), torch.ones(4, 3))
    assert len(checked_functions) == 1
    make_product([0])(torch.ones(6, 3), torch.ones(7, 3))
    assert len(checked_functions) == 2


def test_dataclass_is_checked_at_construction() -> None:
    @jaxtyped(typechecker=None)
    @dataclass(frozen=True)
    class Pair:
        a: Float[Tensor, "n d"]
        b: Float[Tensor, "n d"]

    assert Pair(torch.ones(2, 3), torch.ones(2, 3)).a.shape == (2, 3)
    with pytest.raises(jaxtyping.TypeCheckError):
        Pair(torch.ones(2, 3), torch.ones(3, 3))


def test_signature_without_shapes_is_unchanged() -> None:
    def plain(n: int) -> list[int]:
        return [n]

    assert jaxtyped(plain) is plain


def test_package_functions_are_checked() -> None:
    assert ranks.spearman(torch.arange(3.0), torch.arange(3.0)) == pytest.approx(1)
    with pytest.raises(jaxtyping.TypeCheckError):
        ranks.spearman(torch.arange(3.0), torch.arange(4.0))


@pytest.mark.parametrize("path", UNCHECKED)
def test_every_unchecked_path_exists(path: str) -> None:
    assert (ROOT / path).exists()

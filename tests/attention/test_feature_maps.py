"""Maps of tokens against their formulas and autograd."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu

from rheoscope.attention.feature_maps import EluPlusOne, Feature, Identity, Linear, Residual, Tanh, Unit, added, under
from tests.attention.cases import gap, gradients, random

W, W_A_HEAD = random(1, 4, 3), random(2, 2, 4, 3)
HIDDEN, SHIFT, OUT = random(3, 4, 5), random(4, 1, 5), random(5, 5, 4)
A_HEAD = Tanh(random(6, 2, 4, 5), random(7, 2, 1, 5), random(8, 2, 5, 3))
FORMULAS: dict[str, tuple[Feature, Callable[[Tensor], Tensor]]] = {
    "identity": (Identity(), lambda x: x),
    "linear": (Linear(W), lambda x: torch.einsum("bhtd,dr->bhtr", x, W)),
    "linear a head": (Linear(W_A_HEAD), lambda x: torch.einsum("bhtd,hdr->bhtr", x, W_A_HEAD)),
    "unit": (Unit(), lambda x: x / x.square().sum(-1, keepdim=True).sqrt()),
    "elu + 1": (EluPlusOne(), lambda x: elu(x) + 1),
    "tanh": (Tanh(HIDDEN, SHIFT, OUT), lambda x: torch.tanh(x @ HIDDEN + SHIFT) @ OUT),
    "tanh a head": (A_HEAD, lambda x: torch.tanh(x @ A_HEAD.W + A_HEAD.b) @ A_HEAD.U),
    "residual": (Residual(Tanh(HIDDEN, SHIFT, OUT)), lambda x: x + torch.tanh(x @ HIDDEN + SHIFT) @ OUT),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula_and_pull(name: str) -> None:
    feature, formula = FORMULAS[name]
    x = random(9, 2, 2, 3, 4)
    y = feature(x)
    assert gap(y, formula(x)) < 1e-14
    dy = random(10, *y.shape)
    dx, own = feature.pull(x, dy)
    auto = gradients(lambda feature, x, *_: feature(x), feature, (x, x, x), dy)  # type: ignore[arg-type]
    found = {"q": dx} | own
    assert set(found) == set(auto) - {"k", "v"}
    assert max(gap(found[at], auto[at]) for at in found) < 1e-12


def test_positive_features_stay_positive() -> None:
    """elu(x) + 1 computed as written is 0 below -37; e^x is not."""
    x = torch.tensor([-700.0, -40.0, 0.0, 2.0], dtype=torch.float64).reshape(1, 1, 1, 4)
    assert gap(EluPlusOne()(x).log()[..., :3], x[..., :3]) < 1e-12
    assert float(EluPlusOne()(x)[..., 3]) == 3.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_token_of_zeros_has_no_direction(dtype: torch.dtype) -> None:
    """Its unit is 0 and feels nothing: a slope of 1/eps there would be infinite in float16 (as F.normalize's is)."""
    x = torch.zeros(1, 1, 2, 3, dtype=dtype, requires_grad=True)
    y = Unit()(x)
    assert not bool(y.any())
    y.sum().backward()
    assert x.grad is not None
    assert not bool(x.grad.any())
    assert not bool(Unit().pull(x.detach(), torch.ones_like(x))[0].any())


def test_gradients_of_a_shared_map_add_up() -> None:
    one, two = torch.ones(2), torch.full((2,), 2.0)
    sums = added({"W": one, "b": one}, {"W": two, "c": two})
    assert {at: x.tolist() for at, x in sums.items()} == {"W": [3.0, 3.0], "b": [1.0, 1.0], "c": [2.0, 2.0]}
    assert list(under("phi", {"W": one})) == ["phi.W"]

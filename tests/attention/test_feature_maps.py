"""Feature maps equal their formulas, and their pullbacks match autograd."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu

from rheoscope.attention.feature_maps import (
    EluPlusOne,
    Feature,
    Identity,
    Linear,
    Residual,
    Tanh,
    UnitNorm,
    add_gradients,
    prefix_keys,
)
from tests.attention.cases import gap, gradients, random

W, W_PER_HEAD = random(1, 4, 3), random(2, 2, 4, 3)
HIDDEN, SHIFT, OUT = random(3, 4, 5), random(4, 1, 5), random(5, 5, 4)
TANH_PER_HEAD = Tanh(random(6, 2, 4, 5), random(7, 2, 1, 5), random(8, 2, 5, 3))
FORMULAS: dict[str, tuple[Feature, Callable[[Tensor], Tensor]]] = {
    "identity": (Identity(), lambda x: x),
    "linear": (Linear(W), lambda x: torch.einsum("bhtd,dr->bhtr", x, W)),
    "linear per head": (Linear(W_PER_HEAD), lambda x: torch.einsum("bhtd,hdr->bhtr", x, W_PER_HEAD)),
    "unit norm": (UnitNorm(), lambda x: x / x.square().sum(-1, keepdim=True).sqrt()),
    "elu + 1": (EluPlusOne(), lambda x: elu(x) + 1),
    "tanh": (Tanh(HIDDEN, SHIFT, OUT), lambda x: torch.tanh(x @ HIDDEN + SHIFT) @ OUT),
    "tanh per head": (TANH_PER_HEAD, lambda x: torch.tanh(x @ TANH_PER_HEAD.W + TANH_PER_HEAD.b) @ TANH_PER_HEAD.U),
    "residual": (Residual(Tanh(HIDDEN, SHIFT, OUT)), lambda x: x + torch.tanh(x @ HIDDEN + SHIFT) @ OUT),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula_and_pullback(name: str) -> None:
    feature, formula = FORMULAS[name]
    x = random(9, 2, 2, 3, 4)
    y = feature(x)
    assert gap(y, formula(x)) < 1e-14
    dy = random(10, *y.shape)
    dx, tensor_grads = feature.pullback(x, dy)
    expected = gradients(lambda feature, x, *_: feature(x), feature, (x, x, x), dy)  # type: ignore[arg-type]
    computed = {"q": dx} | tensor_grads
    assert set(computed) == set(expected) - {"k", "v"}
    assert max(gap(computed[path], expected[path]) for path in computed) < 1e-12


def test_elu_plus_one_stays_positive() -> None:
    """A literal elu(x) + 1 is 0 below -37; e^x is not."""
    x = torch.tensor([-700.0, -40.0, 0.0, 2.0], dtype=torch.float64).reshape(1, 1, 1, 4)
    assert gap(EluPlusOne()(x).log()[..., :3], x[..., :3]) < 1e-12
    assert float(EluPlusOne()(x)[..., 3]) == 3.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_unit_norm_of_zero_is_zero_with_zero_gradient(dtype: torch.dtype) -> None:
    """Value and gradient are 0; a slope of 1/eps (as in F.normalize) would be infinite in float16."""
    x = torch.zeros(1, 1, 2, 3, dtype=dtype, requires_grad=True)
    y = UnitNorm()(x)
    assert not bool(y.any())
    y.sum().backward()
    assert x.grad is not None
    assert not bool(x.grad.any())
    assert not bool(UnitNorm().pullback(x.detach(), torch.ones_like(x))[0].any())


def test_gradients_of_a_shared_map_are_summed() -> None:
    ones, twos = torch.ones(2), torch.full((2,), 2.0)
    sums = add_gradients({"W": ones, "b": ones}, {"W": twos, "c": twos})
    assert {path: x.tolist() for path, x in sums.items()} == {"W": [3.0, 3.0], "b": [1.0, 1.0], "c": [2.0, 2.0]}
    assert list(prefix_keys("phi", {"W": ones})) == ["phi.W"]

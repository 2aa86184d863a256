"""A gradient taken back from a value to what it was computed from, by autograd."""

from typing import Any

import torch
from torch import Tensor


def transposed(y: Tensor, x: Tensor, g: Tensor, **kept: Any) -> Tensor:
    """g ∂y/∂x, the transpose of the derivative of y by x, applied to g; `kept` goes to `torch.autograd.grad`.

    Given g beside y, autograd imports a package for symbolic shapes to compare the two, which takes longer than most analyses;
    the gradient of ⟨y, g⟩ is the same and needs none.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> transposed(x**2, x, torch.tensor([1.0, 10.0])).tolist()
    [2.0, 40.0]
    """
    with torch.enable_grad():
        inner = (y * g).sum()
    return torch.autograd.grad(inner, x, **kept)[0]

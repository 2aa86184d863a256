"""Vector-Jacobian products by autograd."""

from typing import Any

import torch
from torch import Tensor


def pullback_by_autograd(y: Tensor, x: Tensor, g: Tensor, **grad_options: Any) -> Tensor:
    """g ∂y/∂x, the transposed derivative of y with respect to x, applied to g; `grad_options` go to `torch.autograd.grad`.

    This computes the gradient of ⟨y, g⟩. Passing g to autograd would import a package for symbolic shapes, which takes longer
    than most analyses.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> pullback_by_autograd(x**2, x, torch.tensor([1.0, 10.0])).tolist()
    [2.0, 40.0]
    """
    with torch.enable_grad():
        inner = (y * g).sum()
    return torch.autograd.grad(inner, x, **grad_options)[0]

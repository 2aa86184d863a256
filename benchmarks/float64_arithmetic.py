"""All arithmetic of PyTorch in float64, also where a network asks for float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Float64Mode(TorchFunctionMode):
    """Replaces float32 by float64 among the arguments of every function, and `x.float()` by `x.double()`."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.float:
            return args[0].double()
        return function(*(_widened(x) for x in args), **{name: _widened(x) for name, x in (kwargs or {}).items()})


def _widened(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


@contextmanager
def float64_arithmetic() -> Iterator[None]:
    """Networks compute rotary angles, norms and softmaxes in float32 whatever their dtype. Inside the block, in float64.

    A difference between a network and its description is then an error and no rounding.
    """
    original_dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64Mode():
            yield
    finally:
        torch.set_default_dtype(original_dtype)

"""The tensors that a frozen value holds, by path, and the same value with other tensors in their places.

This is all that is needed to train a mechanism: `nn.Attention` keeps the tensors as parameters and puts them back
before each call.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

Value = TypeVar("Value")


def tensors(value: Any) -> dict[str, Tensor]:
    """Every tensor inside a nested frozen value, keyed by its path.

    >>> import torch
    >>> from rheoscope.attention.feature import Linear, Residual
    >>> list(tensors(Residual(Linear(torch.eye(2)))))
    ['f.W']
    """
    found: dict[str, Tensor] = {}
    for field in fields(value) if is_dataclass(value) else ():
        part = getattr(value, field.name)
        if isinstance(part, Tensor):
            found[field.name] = part
        else:
            found |= {f"{field.name}.{path}": tensor for path, tensor in tensors(part).items()}
    return found


def with_tensors(value: Value, new: dict[str, Tensor]) -> Value:
    """The same value with the tensors of `new` at their paths.

    >>> import torch
    >>> from rheoscope.attention.feature import Linear
    >>> with_tensors(Linear(torch.eye(2)), {"W": torch.zeros(2, 2)}).W.sum().item()
    0.0
    """
    changes: dict[str, Any] = {}
    for path, tensor in new.items():
        name, _, rest = path.partition(".")
        if rest:
            changes[name] = with_tensors(changes.get(name, getattr(value, name)), {rest: tensor})
        else:
            changes[name] = tensor
    return replace(value, **changes) if changes else value  # type: ignore[type-var]

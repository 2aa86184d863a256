"""The tensors that a frozen value holds, by path, and the same value with other tensors in their places.

This is all that is needed to train a mechanism: `nn.Attention` keeps the tensors as parameters and puts them back
before each call.
"""

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from torch import Tensor

Value = TypeVar("Value")
Structure = tuple[Hashable, ...]


def tensors(value: Any) -> dict[str, Tensor]:
    """Every tensor inside a nested frozen value, keyed by its path.

    >>> import torch
    >>> from rheoscope.attention.feature_maps import Linear, Residual
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


def with_tensors(value: Value, new: Mapping[str, Tensor]) -> Value:
    """The same value with the tensors of `new` at their paths.

    >>> import torch
    >>> from rheoscope.attention.feature_maps import Linear
    >>> with_tensors(Linear(torch.eye(2)), {"W": torch.zeros(2, 2)}).W.sum().item()
    0.0
    """
    changes: dict[str, Any] = {}
    inner: dict[str, dict[str, Tensor]] = {}
    for path, tensor in new.items():
        name, _, rest = path.partition(".")
        if rest:
            inner.setdefault(name, {})[rest] = tensor
        else:
            changes[name] = tensor
    changes |= {name: with_tensors(getattr(value, name), told) for name, told in inner.items()}
    return with_parts(value, **changes) if changes else value


def with_parts(value: Value, /, **changes: Any) -> Value:
    """A copy of a frozen value with some fields replaced: `dataclasses.replace` for code that `torch.compile` traces.

    No constructor runs, so nothing is checked: one whose defaults are values breaks the graph of torch 2.11.

    >>> from rheoscope.attention.score import Gram
    >>> with_parts(Gram(), scale=2.0).scale
    2.0
    """
    made = object.__new__(type(value))
    for field in fields(value):  # type: ignore[arg-type]
        object.__setattr__(made, field.name, changes.get(field.name, getattr(value, field.name)))
    return made


def structure(value: Any) -> Structure:
    """All of a nested frozen value but the numbers inside its tensors: two values with equal ones differ in nothing else.

    What is no dataclass, tensor, number or word (a function, say) is like nothing but itself.

    >>> import torch
    >>> from rheoscope.attention.feature_maps import Linear
    >>> structure(Linear(torch.eye(2))) == structure(Linear(torch.zeros(2, 2)))
    True
    """
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device
    if is_dataclass(value):
        kind: Any = type(value)
        return kind, *(structure(getattr(value, field.name)) for field in fields(value))
    return (value,) if value is None or isinstance(value, bool | int | float | str) else (object(),)

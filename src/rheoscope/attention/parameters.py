"""Read and replace the tensors inside a nested frozen dataclass, keyed by path.

`nn.Attention` uses this to train a mechanism: it registers the tensors as parameters and substitutes them before a call.
"""

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from torch import Tensor

FrozenValue = TypeVar("FrozenValue")
Structure = tuple[Hashable, ...]


def tensors_by_path(value: Any) -> dict[str, Tensor]:
    """Every tensor inside a nested frozen dataclass, keyed by its path.

    >>> import torch
    >>> from rheoscope.attention.feature_maps import Linear, Residual
    >>> list(tensors_by_path(Residual(Linear(torch.eye(2)))))
    ['f.W']
    """
    by_path: dict[str, Tensor] = {}
    for field in fields(value) if is_dataclass(value) else ():
        part = getattr(value, field.name)
        if isinstance(part, Tensor):
            by_path[field.name] = part
        else:
            by_path |= {f"{field.name}.{path}": tensor for path, tensor in tensors_by_path(part).items()}
    return by_path


def with_tensors(value: FrozenValue, replacements: Mapping[str, Tensor]) -> FrozenValue:
    """A copy of the value with the tensors of `replacements` at their paths.

    >>> import torch
    >>> from rheoscope.attention.feature_maps import Linear
    >>> with_tensors(Linear(torch.eye(2)), {"W": torch.zeros(2, 2)}).W.sum().item()
    0.0
    """
    changes: dict[str, Any] = {}
    nested: dict[str, dict[str, Tensor]] = {}
    for path, tensor in replacements.items():
        name, _, subpath = path.partition(".")
        if subpath:
            nested.setdefault(name, {})[subpath] = tensor
        else:
            changes[name] = tensor
    changes |= {name: with_tensors(getattr(value, name), subtensors) for name, subtensors in nested.items()}
    return with_fields(value, **changes) if changes else value


def with_fields(value: FrozenValue, /, **changes: Any) -> FrozenValue:
    """A copy of a frozen dataclass with some fields replaced: `dataclasses.replace` for code that `torch.compile` traces.

    No constructor runs, so nothing is validated. In torch 2.11 a constructor with dataclass defaults breaks the graph.

    >>> from rheoscope.attention.score import Gram
    >>> with_fields(Gram(), scale=2.0).scale
    2.0
    """
    copy = object.__new__(type(value))
    for field in fields(value):  # type: ignore[arg-type]
        object.__setattr__(copy, field.name, changes.get(field.name, getattr(value, field.name)))
    return copy


def structure(value: Any) -> Structure:
    """A hashable key of everything in a nested frozen dataclass except the tensor values.

    Any other object, such as a function, equals only itself.

    >>> import torch
    >>> from rheoscope.attention.feature_maps import Linear
    >>> structure(Linear(torch.eye(2))) == structure(Linear(torch.zeros(2, 2)))
    True
    """
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device
    if is_dataclass(value):
        value_type: Any = type(value)
        return value_type, *(structure(getattr(value, field.name)) for field in fields(value))
    return (value,) if value is None or isinstance(value, bool | int | float | str) else (object(),)

"""Types and bounds of settings, from which options, forms, checks and error messages are derived.

A setting is a parameter of the analysis with an annotation such as `draws: Draws = 100`. A number has `Bounds`, a name has
`Choices`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from numbers import Integral, Real
from operator import or_
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from torch import Tensor

from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest value of a number, both included.

    `advised` is the value that an error advises; without it the nearest bound.
    """

    low: int | float
    high: int | float
    advised: int | float | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Choices:
    """The values that a setting may have."""

    names: tuple[str, ...]


Draws = Annotated[int, Bounds(0, 10_000)]
"""The number of samples of a null distribution; 0 omits the null."""
Seed = Annotated[int, Bounds(0, 2**63 - 1)]
"""The random seed."""
Top = Annotated[int, Bounds(1, 10_000)]
"""The number of listed entries."""
Neighbours = Annotated[int, Bounds(1, 10_000, advised=5)]
"""The number of nearest neighbours."""
TokenIndex = Annotated[int, Bounds(-1_000_000, 1_000_000, advised=-1)]
"""A token by its position in the text; negative counts from the end."""
TokenId = Annotated[int, Bounds(0, 10_000_000, advised=0)]
"""A token by its id in the vocabulary."""
LayerIndex = Annotated[int, Bounds(-10_000, 10_000, advised=0)]
"""A layer; negative counts from the end."""
HeadIndex = Annotated[int, Bounds(0, 10_000, advised=0)]
"""A head of a layer."""
Count = Annotated[int, Bounds(1, 1_000_000)]
"""The number of things to analyse."""
Angle = Annotated[float, Bounds(0.0, math.pi, advised=0.785)]
"""An angle in radians."""
Tolerance = Annotated[float, Bounds(1e-5, 1.0, advised=0.01)]
"""The error at which an iteration or a sequence of random probes ends. Models compute in float32, so less is rounding."""
Fraction = Annotated[float, Bounds(0.0, 1.0)]
"""A fraction in [0, 1]."""
SpaceName = Annotated[str, Choices(("raw", "normed", "sphere"))]
"""The space of the points: raw, after the final norm, or as directions."""
Grain = Annotated[str, Choices(("layer", "half"))]
"""Points after every layer or after every half-layer."""
ProjectionName = Annotated[str, Choices(("query", "key", "content"))]
"""The projection whose image is analysed."""


def rules(hint: Any) -> Iterator[Bounds | Choices]:
    """Every bound and every choice in an annotation, also inside `Sequence[…]` and `… | None`.

    >>> list(rules(Draws | None))
    [Bounds(low=0, high=10000)]
    """
    yield from (rule for rule, _ in _rules_with_types(hint))


def _rules_with_types(hint: Any) -> Iterator[tuple[Bounds | Choices, Any]]:
    """Every bound and every choice in an annotation, with the type that it restricts."""
    if get_origin(hint) is Annotated:
        base_type = get_args(hint)[0]
        yield from ((rule, base_type) for rule in hint.__metadata__ if isinstance(rule, Bounds | Choices))
        hint = base_type
    for part in get_args(hint):
        if not isinstance(part, str):
            yield from _rules_with_types(part)


def plain_type(hint: Any) -> Any:
    """An annotation without its bounds.

    >>> plain_type(Draws), plain_type(Sequence[Draws] | None)
    (<class 'int'>, collections.abc.Sequence[int] | None)
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return plain_type(parts[0])
    if origin in (Union, UnionType):
        return reduce(or_, [plain_type(part) for part in parts])
    if origin is None or not parts:
        return hint
    return origin[tuple(plain_type(part) for part in parts)]


def has_unbounded_number(hint: Any) -> bool:
    """Whether an annotation admits an int or a float without bounds.

    >>> has_unbounded_number(int | None), has_unbounded_number(Draws | None), has_unbounded_number(bool)
    (True, False, False)
    """
    if get_origin(hint) is Annotated:
        return not any(isinstance(rule, Bounds) for rule in hint.__metadata__) and has_unbounded_number(
            get_args(hint)[0]
        )
    parts = get_args(hint)
    if Tensor in parts:  # a text as token ids
        return False
    return hint in (int, float) or any(has_unbounded_number(part) for part in parts)


def check_setting(name: str, hint: Any, value: Any) -> None:
    """Raise if a number lies outside its bounds, a count is not a whole number, or a name is not among its choices."""
    if isinstance(value, Real) and not isinstance(value, bool) and _takes_only_lists(hint):
        raise RheoscopeError(
            Message("{name} takes a list of numbers, got {received}", name=name, received=value), use(**{name: [value]})
        )
    for rule, base_type in _rules_with_types(hint):
        for part in _parts(value):
            if isinstance(rule, Bounds) and isinstance(part, Real) and not isinstance(part, bool):
                _check_bounds(name, rule, part, value, base_type is int)
            if isinstance(rule, Choices) and isinstance(part, str) and part not in rule.names:
                expected = ", ".join(rule.names)
                raise RheoscopeError(
                    Message(
                        "{name} must be one of {expected}, got {received!r}",
                        name=name,
                        expected=expected,
                        received=part,
                    ),
                    use(**{name: rule.names[0]}),
                )


def _takes_only_lists(hint: Any) -> bool:
    """Whether a setting takes a sequence of numbers and no single number."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = {get_origin(plain_type(member)) or plain_type(member) for member in members} - {type(None)}
    return kinds == {Sequence}


def _parts(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _check_bounds(name: str, bounds: Bounds, part: Any, value: Any, is_whole: bool) -> None:
    is_fractional = is_whole and not isinstance(part, Integral)
    if bounds.low <= part <= bounds.high and not is_fractional:  # false for NaN
        return
    nearest = bounds.high if part > bounds.high else bounds.low
    advised: Any = nearest if bounds.advised is None else bounds.advised
    if isinstance(value, list | tuple):  # a sequence is advised as one
        advised = type(value)([advised])
    expected: dict[str, Any] = {"name": name, "low": bounds.low, "high": bounds.high, "received": part}
    problem = (
        Message("{name} must be a whole number between {low:,} and {high:,}, got {received}", **expected)
        if is_fractional
        else Message("{name} must lie between {low:,} and {high:,}, got {received}", **expected)
    )
    raise RheoscopeError(problem, use(**{name: advised}))

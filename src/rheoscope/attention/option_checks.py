"""Checks of the options of named mechanisms."""

from torch import Tensor

from rheoscope.attention.normaliser.linear import DivideBySum as DivideBySum
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError


def _check_positive(name: str, value: float) -> float:
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise RheoscopeError(
            Message("{name} must be a positive number, got {received!r}", name=name, received=value),
            Advice(f"{name}=1.0"),
        )
    return value


def _check_finite(name: str, value: float) -> float:
    if not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise RheoscopeError(
            Message("{name} must be a finite number, got {received!r}", name=name, received=value),
            Advice(f"{name}=1.0"),
        )
    return value


def _check_count(name: str, value: int, minimum: int, example: int) -> int:
    if type(value) is not int or value < minimum:  # True is an int too
        raise RheoscopeError(
            Message(
                "{name} must be an integer of at least {minimum}, got {received!r}",
                name=name,
                minimum=minimum,
                received=value,
            ),
            Advice(f"{name}={example}"),
        )
    return value


def _check_matrix(name: str, x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise RheoscopeError(
            Message(
                "{name} must be a tensor of floating-point numbers, got {received}",
                name=name,
                received=str(x.dtype) if isinstance(x, Tensor) else type(x).__name__,
            ),
            Advice(f"{name}=torch.eye(q.shape[-1])"),
        )
    return x


def _check_dim(dim: int | None) -> int:
    if not isinstance(dim, int) or dim < 1:
        raise RheoscopeError(
            Message("dim must be the width of q, an integer of at least 1, got {received!r}", received=dim),
            Advice("dim=q.shape[-1]"),
        )
    return dim

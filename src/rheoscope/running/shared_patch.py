"""A change of what threads share: made by the first thread that needs it, undone by the last.

What is changed must go on to mean the same to all other threads: it asks a ContextVar what its own thread wants.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

from torch import nn

Undo = Callable[[], object]
_made: dict[Hashable, tuple[int, Undo]] = {}
_changing = RLock()


@contextmanager
def shared_change(key: Hashable, make: Callable[[], Undo]) -> Iterator[None]:
    """Inside, what `make` makes is made, once for all threads that are inside with this key."""
    with _changing:
        inside, undo = _made.get(key) or (0, make())
        _made[key] = inside + 1, undo
    try:
        yield
    finally:
        with _changing:
            inside, undo = _made.pop(key)
            if inside > 1:
                _made[key] = inside - 1, undo
            else:
                undo()


def set_method(module: nn.Module, name: str, method: Callable[..., Any]) -> Undo:
    """The method of one module becomes another; returns what gives it its own again."""
    held = vars(module).get(name)
    vars(module)[name] = method

    def undo() -> None:
        del vars(module)[name]
        if held is not None:
            vars(module)[name] = held

    return undo

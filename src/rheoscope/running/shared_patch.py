"""A patch that threads share: the first thread that needs it applies it, and the last one undoes it.

A patched object must behave as before in all other threads: it checks a ContextVar for what its own thread wants.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

from torch import nn

Undo = Callable[[], object]
_active_patches: dict[Hashable, tuple[int, Undo]] = {}
_patch_lock = RLock()


@contextmanager
def shared_patch(key: Hashable, apply_patch: Callable[[], Undo]) -> Iterator[None]:
    """Inside, the patch of `apply_patch` is active, once for all threads that are inside with this key."""
    with _patch_lock:
        n_inside, undo = _active_patches.get(key) or (0, apply_patch())
        _active_patches[key] = n_inside + 1, undo
    try:
        yield
    finally:
        with _patch_lock:
            n_inside, undo = _active_patches.pop(key)
            if n_inside > 1:
                _active_patches[key] = n_inside - 1, undo
            else:
                undo()


def replace_method(module: nn.Module, name: str, method: Callable[..., Any]) -> Undo:
    """Replace a method of one module; returns a function that restores it."""

    previous = vars(module).get(name)
    vars(module)[name] = method

    def undo() -> None:
        del vars(module)[name]
        if previous is not None:
            vars(module)[name] = previous

    return undo

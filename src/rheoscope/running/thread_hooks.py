"""Hooks that only the thread that asked for them sees, so that many threads can share one model.

A module that was once looked at keeps two plain hooks that do nothing, except in a thread (a context of `contextvars`) that has
asked for something there. To register hooks for every run instead would change lists that other threads are going through.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Any, Literal

from torch import nn

Act = Callable[..., Any]
"""Of side `in`: from (args, kwargs) to others, or None; of side `out`: from the output to another, or None."""


@dataclass(frozen=True, eq=False)
class Ask:
    """What shall happen where a module is called: before it computes, or after."""

    module: nn.Module
    side: Literal["in", "out"]
    act: Act


_asked: ContextVar[Mapping[tuple[nn.Module, str], tuple[Act, ...]]] = ContextVar(
    "what this thread asked for", default=MappingProxyType({})
)
_registering = Lock()


@contextmanager
def asking(asks: Sequence[Ask]) -> Iterator[None]:
    """Inside, and in this thread alone, every act happens where its module is called; those of one place in their order."""
    now = dict(_asked.get())
    for ask in asks:
        _listen(ask.module, ask.side)
        now[ask.module, ask.side] = (*now.get((ask.module, ask.side), ()), ask.act)
    token = _asked.set(now)
    try:
        yield
    finally:
        _asked.reset(token)


def on_call(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    """The hook that a module keeps before it computes: what this thread has asked for, mostly nothing."""
    acts = _asked.get().get((module, "in"))
    if acts is None:
        return None
    for act in acts:
        args, kwargs = act(args, kwargs) or (args, kwargs)
    return args, kwargs


def on_return(module: nn.Module, args: Any, out: Any) -> Any:
    """The hook that a module keeps after it has computed."""
    acts = _asked.get().get((module, "out"))
    if acts is None:
        return None
    for act in acts:
        new = act(out)
        out = out if new is None else new
    return out


def _listen(module: nn.Module, side: str) -> None:
    """The module has our hook, and has it last: hooks of its owner come first, whenever they were registered."""
    mine, hooks = (on_call, module._forward_pre_hooks) if side == "in" else (on_return, module._forward_hooks)
    if next(reversed(hooks.values()), None) is mine:
        return
    with _registering:
        there = [key for key, hook in hooks.items() if hook is mine]
        for key in there:
            hooks[key] = hooks.pop(key)
        if not there and side == "in":
            module.register_forward_pre_hook(on_call, with_kwargs=True)
        elif not there:
            module.register_forward_hook(on_return)

"""Module hooks that are visible to one thread only, so that many threads can share a model.

A module that a thread has hooked gets one hook for each side. It does nothing unless the current thread (a context of
`contextvars`) has registered an action there. The last thread that leaves the module removes its hooks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, Literal

from torch import nn

from rheoscope.running.shared_patch import Undo, shared_patch

HookAction = Callable[..., Any]
"""Side `in`: from (args, kwargs) to new ones or None; side `out`: from the output to a new one or None."""


@dataclass(frozen=True, eq=False)
class ModuleHook:
    """An action before (`in`) or after (`out`) the forward pass of a module."""

    module: nn.Module
    side: Literal["in", "out"]
    action: HookAction


def on_turn(hook: ModuleHook, turn: int, n_turns: int) -> ModuleHook:
    """The hook of a module that runs `n_turns` times in a forward pass, at one of these turns only."""
    if n_turns == 1:
        return hook
    calls = count()

    def action(*args: Any) -> Any:
        return hook.action(*args) if next(calls) % n_turns == turn else None

    return ModuleHook(hook.module, hook.side, action)


_active_actions: ContextVar[Mapping[tuple[nn.Module, str], tuple[HookAction, ...]]] = ContextVar(
    "module hooks of this thread", default=MappingProxyType({})
)


@contextmanager
def apply_module_hooks(hooks: Sequence[ModuleHook]) -> Iterator[None]:
    """Inside, and in this thread only, run every action when its module is called, in the order of `hooks`."""
    active = dict(_active_actions.get())
    for hook in hooks:
        active[hook.module, hook.side] = (*active.get((hook.module, hook.side), ()), hook.action)
    with ExitStack() as stack:
        for module, side in dict.fromkeys((hook.module, hook.side) for hook in hooks):
            stack.enter_context(shared_patch((module, "hook", side), partial(_register, module, side)))
        stack.callback(_active_actions.reset, _active_actions.set(active))
        yield


def on_call(module: nn.Module, args: Any, kwargs: dict[str, Any] | None = None) -> Any:
    """The hook before the forward pass: runs the actions of this thread.

    Without `kwargs` torch has looked up the hook just before another thread removed it, and this thread has no action.
    """
    actions = _active_actions.get().get((module, "in"))
    if actions is None:
        return None
    for action in actions:
        args, kwargs = action(args, kwargs or {}) or (args, kwargs)
    return args, kwargs


def on_return(module: nn.Module, args: Any, out: Any) -> Any:
    """The hook after the forward pass."""
    actions = _active_actions.get().get((module, "out"))
    if actions is None:
        return None
    for action in actions:
        new_output = action(out)
        out = out if new_output is None else new_output
    return out


def _register(module: nn.Module, side: str) -> Undo:
    """Register the hook of a module as its last one, after hooks of its owner."""
    if side == "in":
        return module.register_forward_pre_hook(on_call, with_kwargs=True).remove
    return module.register_forward_hook(on_return).remove

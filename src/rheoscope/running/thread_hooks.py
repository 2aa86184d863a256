"""Module hooks that are visible to one thread only, so that many threads can share a model.

Each hooked module keeps two permanent hooks. They do nothing unless the current thread (a context of `contextvars`) has
registered an action there. Registering hooks for each run would change lists that other threads iterate over.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Any, Literal

from torch import nn

HookAction = Callable[..., Any]
"""Side `in`: from (args, kwargs) to new ones or None; side `out`: from the output to a new one or None."""


@dataclass(frozen=True, eq=False)
class ModuleHook:
    """An action before (`in`) or after (`out`) the forward pass of a module."""

    module: nn.Module
    side: Literal["in", "out"]
    action: HookAction


_active_actions: ContextVar[Mapping[tuple[nn.Module, str], tuple[HookAction, ...]]] = ContextVar(
    "module hooks of this thread", default=MappingProxyType({})
)
_registration_lock = Lock()


@contextmanager
def apply_module_hooks(hooks: Sequence[ModuleHook]) -> Iterator[None]:
    """Inside, and in this thread only, run every action when its module is called, in the order of `hooks`."""
    active = dict(_active_actions.get())
    for hook in hooks:
        _register(hook.module, hook.side)
        active[hook.module, hook.side] = (*active.get((hook.module, hook.side), ()), hook.action)
    token = _active_actions.set(active)
    try:
        yield
    finally:
        _active_actions.reset(token)


def on_call(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    """The permanent hook before the forward pass: runs the actions of this thread, usually none."""
    actions = _active_actions.get().get((module, "in"))
    if actions is None:
        return None
    for action in actions:
        args, kwargs = action(args, kwargs) or (args, kwargs)
    return args, kwargs


def on_return(module: nn.Module, args: Any, out: Any) -> Any:
    """The permanent hook after the forward pass."""
    actions = _active_actions.get().get((module, "out"))
    if actions is None:
        return None
    for action in actions:
        new_output = action(out)
        out = out if new_output is None else new_output
    return out


def _register(module: nn.Module, side: str) -> None:
    """Register the permanent hook of a module as its last one, after hooks of its owner."""
    our_hook, hooks = (on_call, module._forward_pre_hooks) if side == "in" else (on_return, module._forward_hooks)
    if next(reversed(hooks.values()), None) is our_hook:
        return
    with _registration_lock:
        our_keys = [key for key, hook in hooks.items() if hook is our_hook]
        for key in our_keys:
            hooks[key] = hooks.pop(key)
        if not our_keys and side == "in":
            module.register_forward_pre_hook(on_call, with_kwargs=True)
        elif not our_keys:
            module.register_forward_hook(on_return)

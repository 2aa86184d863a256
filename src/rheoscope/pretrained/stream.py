"""Watching the stream of a model that runs, and changing it: plain hooks, taken away on exit."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.pretrained.family.parts import Description, Tap
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Hook


def taps(said: Description) -> list[Tap]:
    """Every step of the stream, from the embedding to the last point."""
    return [said.start, *(tap for layer in said.layers for tap in layer)]


@contextmanager
def watching(said: Description, points: Float[Tensor, "p b n d"]) -> Iterator[None]:
    """While the model runs, copy what passes each tap into `points`."""
    with ExitStack() as stack:
        for at, tap in enumerate(taps(said)):
            stack.enter_context(_looking(tap, partial(_keep, points, at, tap.added)))
        yield


def _keep(points: Tensor, at: int, added: bool, x: Tensor) -> None:
    points[at] = x.detach().reshape(points.shape[1:])
    if added:
        points[at] += points[at - 1]


@contextmanager
def changing(said: Description, hooks: Mapping[str, Hook]) -> Iterator[None]:
    """While the model runs, replace the points at labelled steps by hook(points), earlier steps first."""
    labels = [tap.label for tap in taps(said)]
    for label in hooks:
        if label not in labels:
            raise RheoscopeError(f"there is no step {label!r}; type one of {', '.join(labels[:3])}, …, {labels[-1]}")
    with ExitStack() as stack:
        for tap in taps(said):
            if tap.label in hooks:
                stack.enter_context(_changed(said, tap, partial(_asked, tap.label, hooks[tap.label])))
        yield


def _asked(label: str, hook: Hook, x: Tensor) -> Tensor:
    """hook(x), which must be points again."""
    new = hook(x)
    if not isinstance(new, Tensor) or new.shape != x.shape:
        came = f"a tensor {tuple(new.shape)}" if isinstance(new, Tensor) else type(new).__name__
        raise RheoscopeError(
            f"the hook at {label} must return points {tuple(x.shape)}, got {came}; end it with `return x`"
        )
    return new


def _looking(tap: Tap, see: Callable[[Tensor], None]) -> Any:
    if tap.side == "out":
        return _removed(tap.module.register_forward_hook(lambda module, args, out: see(_first(out))))
    return _removed(tap.module.register_forward_pre_hook(partial(_see_before, see), with_kwargs=True))


def _see_before(see: Callable[[Tensor], None], module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    see(args[0] if args else kwargs["hidden_states"])


def _changed(said: Description, tap: Tap, hook: Hook) -> Any:
    if tap.added:
        raise RheoscopeError(
            f"{tap.label} is no point that a parallel block reads; change L….resid_post or the step before"
        )
    if tap.side == "out":
        return _removed(tap.module.register_forward_hook(lambda module, args, out: _with_first(out, hook(_first(out)))))
    if tap.label.endswith("resid_mid"):
        return _changed_middle(said, int(tap.label[1:].split(".")[0]), hook)
    return _removed(tap.module.register_forward_pre_hook(partial(_change_before, hook), with_kwargs=True))


def _change_before(hook: Hook, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    if args:
        return (hook(args[0]), *args[1:]), kwargs
    return args, kwargs | {"hidden_states": hook(kwargs["hidden_states"])}


@contextmanager
def _changed_middle(said: Description, layer: int, hook: Hook) -> Iterator[None]:
    """The point after attention is a sum that no module holds: change what attention adds, so that the sum is hook(sum)."""
    read: list[Tensor] = []
    entry = said.layers[layer - 1][-1] if layer else said.start
    write = partial(_write_middle, read, hook)
    with _looking(entry, read.append), _removed(said.writers[layer].register_forward_hook(write)):
        yield


def _write_middle(read: list[Tensor], hook: Hook, module: nn.Module, args: Any, out: Any) -> Any:
    x, added = read.pop(), _first(out)
    middle = x + added
    wanted = hook(middle)
    untouched = wanted is middle and torch.equal(middle, x + added)  # a hook may work in place
    return out if untouched else _with_first(out, wanted - x)


@contextmanager
def _removed(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def _first(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else out[0]


def _with_first(out: Any, first: Tensor) -> Any:
    return first if isinstance(out, torch.Tensor) else (first, *out[1:])

"""Watching the stream of a model that runs, and changing it: plain hooks, taken away on exit."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
    shape = points.shape[1:]
    with ExitStack() as stack:
        for at, tap in enumerate(taps(said)):

            def keep(x: Tensor, at: int = at, tap: Tap = tap) -> None:
                points[at] = x.detach().reshape(shape)
                if tap.added:
                    points[at] += points[at - 1]

            stack.enter_context(_looking(tap, keep))
        yield


@contextmanager
def changing(said: Description, hooks: Mapping[str, Hook]) -> Iterator[None]:
    """While the model runs, replace the points at labelled steps by hook(points)."""
    labels = [tap.label for tap in taps(said)]
    with ExitStack() as stack:
        for label, hook in hooks.items():
            if label not in labels:
                raise RheoscopeError(
                    f"there is no step {label!r}; type one of {', '.join(labels[:3])}, …, {labels[-1]}"
                )
            stack.enter_context(_changed(said, taps(said)[labels.index(label)], hook))
        yield


def _looking(tap: Tap, see: Any) -> Any:
    if tap.side == "out":
        return _removed(tap.module.register_forward_hook(lambda module, args, out: see(_first(out))))

    def before(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        see(args[0] if args else kwargs["hidden_states"])

    return _removed(tap.module.register_forward_pre_hook(before, with_kwargs=True))


def _changed(said: Description, tap: Tap, hook: Hook) -> Any:
    if tap.added:
        raise RheoscopeError(
            f"{tap.label} is no point that a parallel block reads; change L….resid_post or the step before"
        )
    if tap.side == "out":
        return _removed(tap.module.register_forward_hook(lambda module, args, out: _with_first(out, hook(_first(out)))))
    if tap.label.endswith("resid_mid"):
        return _changed_middle(said, int(tap.label[1:].split(".")[0]), hook)

    def before(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if args:
            return (hook(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": hook(kwargs["hidden_states"])}

    return _removed(tap.module.register_forward_pre_hook(before, with_kwargs=True))


@contextmanager
def _changed_middle(said: Description, layer: int, hook: Hook) -> Iterator[None]:
    """The point after attention is a sum that no module holds: change what attention adds, so that the sum is hook(sum)."""
    read: list[Tensor] = []
    entry = said.layers[layer - 1][-1] if layer else said.start

    def write(module: nn.Module, args: Any, out: Any) -> Any:
        middle = read[-1] + _first(out)
        wanted = hook(middle)
        return out if wanted is middle else _with_first(out, wanted - read[-1])

    with _looking(entry, read.append), _removed(said.writers[layer].register_forward_hook(write)):
        yield


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

"""A device that is not the CPU, on a CPU: numbers are real, and what a GPU would refuse is refused.

Under `elsewhere()` a tensor on the device AWAY is a wrapper of one on the CPU. Work on it is done there, but tensors of two devices
in one operation, a CPU's generator for a tensor elsewhere and numpy of it raise, as they would with CUDA. So a tensor that was
made without the device of its inputs is found where no GPU is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

AWAY = torch.device("meta")
"""The one device of torch that has neither numbers nor a driver of its own: the numbers are kept beside."""
LISTS = (list, tuple)
MIXED = {"copy_", "_to_copy", "index", "index_put_", "_index_put_impl_", "index_put", "_unsafe_index"}
"""What takes tensors of two devices on a GPU too: copies, and places told by a CPU."""


LITERALS = {torch.tensor, torch.as_tensor, Tensor.new_tensor, Tensor.__getitem__, Tensor.__setitem__}
"""What is given numbers of Python, or may be."""


class Away(Tensor):
    """A tensor elsewhere; `here` has its numbers."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "Away":
        made = Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=AWAY,
            requires_grad=here.requires_grad,
        )
        made.here = here
        return made

    def tolist(self) -> Any:
        return self.here.tolist()

    def data_ptr(self) -> int:
        return self.here.data_ptr()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Away({self.here})"

    @classmethod
    def __torch_dispatch__(cls, call: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return done(call, args, kwargs or {})


class _Operations(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: what keeps the compiler out takes as long as the operations."""
        return False

    def __torch_dispatch__(self, call: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return done(call, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """Numbers of Python are made a tensor below the level of operations: they are sent away after that."""

    def __torch_function__(self, call: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if call not in LITERALS:
            return call(*args, **kwargs or {})
        kwargs = dict(kwargs or {})
        if call in (torch.tensor, torch.as_tensor) and kwargs.get("device") == AWAY:
            del kwargs["device"]
            return call(*args, **kwargs).to(AWAY)
        if call is Tensor.new_tensor and isinstance(args[0], Away):
            return torch.tensor(args[1], dtype=kwargs.get("dtype") or args[0].dtype).to(AWAY)
        if call in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Away):
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            told = tuple(
                torch.tensor(one, dtype=None if one else torch.long).to(AWAY) if isinstance(one, list) else one
                for one in places
            )
            return call(args[0], told, *args[2:])
        return call(*args, **kwargs)


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """While it is entered, tensors can be made on the device it gives and moved there."""
    asked = torch.is_autocast_enabled
    with _Operations(), _Literals(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "is_autocast_enabled", lambda device="cpu": device != AWAY.type and asked(device))
        yield AWAY


def done(call: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The operation on the CPU, told to be on the device where a GPU would have done it."""
    name, tensors = call.overloadpacket.__name__, [*tensors_in(args), *tensors_in(kwargs.values())]
    refuse(name, tensors)
    away = goes_away(name, tensors, args, kwargs.get("device"))
    if away and kwargs.get("generator") is not None:
        raise RuntimeError(f"{name} elsewhere with a generator of the CPU")
    if kwargs.get("device") is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    known = {id(_here(x)): x for x in tensors}
    out = call(*[each(_here, one) for one in args], **{word: each(_here, given) for word, given in kwargs.items()})

    def told(x: Tensor) -> Tensor:
        same = known.get(id(x))
        if same is not None and isinstance(same, Away) == away:
            return same
        return Away(x) if away else x

    return each(told, out)


def tensors_in(given: Iterable[Any]) -> list[Tensor]:
    """Of an operation's arguments, or of what stands in lists among them: torch's own trees take longer than the operations."""
    found = []
    for one in given:
        if isinstance(one, Tensor):
            found.append(one)
        elif type(one) in LISTS:
            found += tensors_in(one)
    return found


def each(change: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Every tensor changed, in lists too."""
    if isinstance(x, Tensor):
        return change(x)
    kind = type(x)
    return kind([each(change, one) for one in x]) if kind in LISTS else x


def refuse(name: str, tensors: Sequence[Tensor]) -> None:
    """Tensors of two devices; a number alone may come from the CPU."""
    near = [x for x in tensors if not isinstance(x, Away)]
    assert not any(x.is_meta for x in near), f"{name}: numbers were lost on the way, see _Literals"
    if 0 < len(near) < len(tensors) and name not in MIXED and any(x.ndim for x in near):
        shapes = [f"{tuple(x.shape)} {'elsewhere' if isinstance(x, Away) else 'on the CPU'}" for x in tensors]
        raise RuntimeError(f"{name} of tensors on two devices: {', '.join(shapes)}")


def goes_away(name: str, tensors: Sequence[Tensor], args: tuple, device: Any) -> bool:
    if name == "copy_":
        return isinstance(args[0], Away)
    if device is not None:
        return torch.device(device) == AWAY
    return any(isinstance(x, Away) for x in tensors)


def _here(x: Tensor) -> Tensor:
    return x.here if isinstance(x, Away) else x

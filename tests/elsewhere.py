"""A fake second device on the CPU: its numbers are real, and it raises where CUDA would.

Under `elsewhere()` a tensor on the device AWAY wraps a tensor on the CPU, which does the work. As with CUDA, an operation on
tensors of two devices raises, and so do a CPU generator for a tensor on AWAY and numpy of it. So tests without a GPU find a
tensor that was created without the device of its inputs.
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
"""The only device of torch with neither numbers nor a driver; the numbers are stored in the wrapped tensor."""
LISTS = (list, tuple)
MIXED = {"copy_", "_to_copy", "index", "index_put_", "_index_put_impl_", "index_put", "_unsafe_index"}
"""Operations that accept tensors of two devices on a GPU too: copies, and indexing with CPU indices."""


LITERALS = {torch.tensor, torch.as_tensor, Tensor.new_tensor, Tensor.__getitem__, Tensor.__setitem__}
"""Functions that may receive Python numbers."""


class Away(Tensor):
    """A tensor on AWAY; `here` is the CPU tensor with its numbers."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "Away":
        wrapper = Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=AWAY,
            requires_grad=here.requires_grad,
        )
        wrapper.here = here
        return wrapper

    def tolist(self) -> Any:
        return self.here.tolist()

    def data_ptr(self) -> int:
        return self.here.data_ptr()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Away({self.here})"

    @classmethod
    def __torch_dispatch__(cls, call: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return run_operation(call, args, kwargs or {})


class _Operations(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and keeping the compiler out takes as long as the operations."""
        return False

    def __torch_dispatch__(self, call: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return run_operation(call, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """Python numbers become tensors below the level of operations, so they are moved to AWAY afterwards."""

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
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            moved_indices = tuple(
                torch.tensor(index, dtype=None if index else torch.long).to(AWAY) if isinstance(index, list) else index
                for index in indices
            )
            return call(args[0], moved_indices, *args[2:])
        return call(*args, **kwargs)


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """Inside, tensors can be created on the yielded device and moved to it."""
    is_autocast_enabled = torch.is_autocast_enabled
    with _Operations(), _Literals(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch, "is_autocast_enabled", lambda device="cpu": device != AWAY.type and is_autocast_enabled(device)
        )
        yield AWAY


def run_operation(call: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU and put its result on the device on which a GPU would have put it."""
    name, tensors = call.overloadpacket.__name__, [*tensors_in(args), *tensors_in(kwargs.values())]
    check_devices(name, tensors)
    is_away = goes_away(name, tensors, args, kwargs.get("device"))
    if is_away and kwargs.get("generator") is not None:
        raise RuntimeError(f"{name} elsewhere with a generator of the CPU")
    if kwargs.get("device") is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    originals = {id(_here(x)): x for x in tensors}
    out = call(
        *[map_tensors(_here, argument) for argument in args],
        **{name: map_tensors(_here, argument) for name, argument in kwargs.items()},
    )

    def on_result_device(x: Tensor) -> Tensor:
        original = originals.get(id(x))
        if original is not None and isinstance(original, Away) == is_away:
            return original
        return Away(x) if is_away else x

    return map_tensors(on_result_device, out)


def tensors_in(arguments: Iterable[Any]) -> list[Tensor]:
    """The tensors among the arguments of an operation, also in lists; torch's pytrees take longer than the operations."""
    tensors = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            tensors.append(argument)
        elif type(argument) in LISTS:
            tensors += tensors_in(argument)
    return tensors


def map_tensors(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Apply a function to every tensor, also in lists."""
    if isinstance(x, Tensor):
        return function(x)
    kind = type(x)
    return kind([map_tensors(function, element) for element in x]) if kind in LISTS else x


def check_devices(name: str, tensors: Sequence[Tensor]) -> None:
    """Raise for tensors of two devices; a scalar may be on the CPU."""
    on_cpu = [x for x in tensors if not isinstance(x, Away)]
    assert not any(x.is_meta for x in on_cpu), f"{name}: numbers were lost, see _Literals"
    if 0 < len(on_cpu) < len(tensors) and name not in MIXED and any(x.ndim for x in on_cpu):
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

"""Records of host synchronisations: operations for which Python would wait on a GPU, and which a CUDA graph cannot capture."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_stack
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tests.elsewhere
from tests.elsewhere import AWAY, MIXED, Away, tensors_in

SYNCHRONISING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "aten.equal.")
INTERMEDIATE_FILES = (str(Path(torch.__file__).parent), tests.elsewhere.__file__, __file__)
"""Files between the caller and the operation on the call stack."""


class WaitRecorder(TorchDispatchMode):
    """Records the operations whose result Python needs before it can continue."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = (
            [x for x in args[1] if x is not None and x.dtype == torch.bool] if "index.Tensor" in str(function) else []
        )
        if masks or any(name in str(function) for name in SYNCHRONISING):
            self.operations.append(str(function))
        return function(*args, **(kwargs or {}))


@contextmanager
def record_waits() -> Iterator[list[str]]:
    """Under `elsewhere()`: the operations for which Python waits, with the calling file. Copies by `to_device` do not wait."""
    waits, run_operation = list[str](), tests.elsewhere.run_operation

    def record(operation: object) -> None:
        caller = next(frame for frame in reversed(extract_stack()) if not frame.filename.startswith(INTERMEDIATE_FILES))
        if not caller.filename.endswith("transfer.py"):
            waits.append(f"{Path(caller.filename).name}: {operation}")

    def run_and_record(call: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if is_synchronising(call, args, kwargs):
            record(call)
        return run_operation(call, args, kwargs)

    def tolist(x: Away) -> Any:
        record("tolist")
        return x.here.tolist()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.elsewhere.run_operation", run_and_record)
        patch.setattr(Away, "tolist", tolist)
        yield waits


def is_synchronising(call: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a GPU must finish this operation before Python continues."""
    name, device = call.overloadpacket.__name__, kwargs.get("device")
    is_away = [isinstance(x, Away) for x in (*tensors_in(args), *tensors_in(kwargs.values()))]
    if kwargs.get("non_blocking") or not (any(is_away) or (name == "_to_copy" and device == AWAY)):
        return False
    if name == "_to_copy":
        return device is not None and (torch.device(device) == AWAY) != is_away[0]
    masks = name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1])
    return masks or any(part in str(call) for part in SYNCHRONISING) or (name in MIXED and not all(is_away))

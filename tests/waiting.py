"""What Python waits for: on a GPU it stops until all that was asked before is computed, and a step that does cannot be recorded."""

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

ANSWERS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "aten.equal.")
BETWEEN = (str(Path(torch.__file__).parent), tests.elsewhere.__file__, __file__)
"""Files that stand between what asks and what is asked."""


class Waited(TorchDispatchMode):
    """Keeps the operations whose answer Python needs to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = (
            [x for x in args[1] if x is not None and x.dtype == torch.bool] if "index.Tensor" in str(function) else []
        )
        if masks or any(name in str(function) for name in ANSWERS):
            self.kept.append(str(function))
        return function(*args, **(kwargs or {}))


@contextmanager
def waited_elsewhere() -> Iterator[list[str]]:
    """Under `elsewhere()`: what Python waits for, and who asked. A copy waits for all that was asked before, but not by `to_device`."""
    found, done = list[str](), tests.elsewhere.done

    def wait(what: object) -> None:
        asking = next(one for one in reversed(extract_stack()) if not one.filename.startswith(BETWEEN))
        if not asking.filename.endswith("transfer.py"):
            found.append(f"{Path(asking.filename).name}: {what}")

    def watched(call: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if waits(call, args, kwargs):
            wait(call)
        return done(call, args, kwargs)

    def listed(x: Away) -> Any:
        wait("tolist")
        return x.here.tolist()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tests.elsewhere.done", watched)
        patched.setattr(Away, "tolist", listed)
        yield found


def waits(call: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a GPU would have to have done this before Python goes on."""
    name, device = call.overloadpacket.__name__, kwargs.get("device")
    far = [isinstance(x, Away) for x in (*tensors_in(args), *tensors_in(kwargs.values()))]
    if kwargs.get("non_blocking") or not (any(far) or (name == "_to_copy" and device == AWAY)):
        return False
    if name == "_to_copy":
        return device is not None and (torch.device(device) == AWAY) != far[0]
    masks = name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1])
    return masks or any(answer in str(call) for answer in ANSWERS) or (name in MIXED and not all(far))

"""What Python waits for: on a GPU it stops until all that was asked before is computed, and a step that does cannot be recorded."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ANSWERS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "aten.equal.")


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

"""What a lowering answers when it can run a call."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Offer:
    """A way to run a call and the reason for it; `reluctant` says why another way is better when there is one."""

    why: str
    run: Callable[[Tensor, Tensor, Tensor], Tensor]
    reluctant: str = ""

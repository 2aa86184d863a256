"""Attention modules of users: classes that are registered under a name, to which the field `attention` of a Config refers.

    class Mine(torch.nn.Module):
        def __init__(self, config): …          config has width, heads, depth, context, form, …
        def forward(self, u): …                 (b, n, width) → (b, n, width): the update of every token

A name that is not registered is refused. No file is imported because a stored config names it.
"""

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from rheoscope.models.config import Config

Cloud = Float[Tensor, "b n d"]
OWN_ATTENTION: dict[str, "Callable[[Config], nn.Module]"] = {}
"""The registered classes by name."""


class OwnAttention(nn.Module):
    """A module of a user in the place of self-attention.

    It gets the rotation of rotary positions if its `forward` has a second parameter. `rotation(q)` rotates queries or keys of
    shape (b, h, n, head_width). Texts with padding and cached keys are refused.
    """

    def __init__(self, config: "Config") -> None:
        super().__init__()
        if config.attention not in OWN_ATTENTION:
            raise RheoscopeError(
                Message(
                    "the attention module {name!r} is not loaded; name the file that defines it", name=config.attention
                ),
                Advice("", "--entrant FILE.py:CLASS"),
            )
        self.module = OWN_ATTENTION[config.attention](config)
        self.takes_rotation = len(signature(self.module.forward).parameters) > 1

    def forward(
        self, u: Cloud, token_mask: Any = None, rotation: Any = None, position: Any = None, cache: Any = None
    ) -> Cloud:
        if token_mask is not None or cache is not None:
            raise RheoscopeError(
                Message("an attention module from a file reads texts without padding and without cached keys")
            )
        update: Tensor = self.module(u, rotation) if self.takes_rotation else self.module(u)
        return update

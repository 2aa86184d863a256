"""A decoder with its key/value cache, which reads new tokens and returns the logits of the next one."""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.view import View


@runtime_checkable
class ReadTokens(Protocol):
    """Reads the ids of new tokens, extends the cache, and returns the logits after the last of them."""

    def __call__(self, ids: Int[Tensor, "1 m"]) -> Float[Tensor, "1 vocabulary"]: ...


@dataclass(frozen=True, eq=False)
class CachedNetwork:
    """A network during generation: `read(ids)` (1, m) returns the logits (1, vocabulary) of the next token.

    Reading a token costs one row of the network. `stop_ids` are the tokens that end a text. `start_ids` are the tokens with which
    the target of an encoder-decoder starts.

    **Laws** The logits are those of the whole text without a cache, up to rounding.
    """

    read: ReadTokens
    stop_ids: frozenset[int] = frozenset()
    start_ids: list[int] = field(default_factory=list)


def refuse_generation(view: View) -> RheoscopeError:
    """The error for a model that generates no text."""
    return RheoscopeError(
        Message("{model} does not generate text token by token; choose a decoder", model=view.name),
        Advice("rs.load()", "--model NAME"),
    )

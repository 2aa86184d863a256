"""Keys and values that one attention layer keeps of the tokens it has read, so that the next one costs one row."""

from jaxtyping import Float, Int
from torch import Tensor

Answering = Float[Tensor, "b g n k"]
Answers = Float[Tensor, "b g n e"]
Remembered = Float[Tensor, "b g s k"]
RememberedAnswers = Float[Tensor, "b g s e"]
"""Keys and values of new tokens, and of all tokens; values may have a width of their own."""


class Cache:
    """Keys and values of the tokens seen so far, as they are given: `len(cache)` tokens.

    Written in place into memory that doubles when it is full (or has `room` from the start), so that a token costs its own
    row and not a copy of the text. Where gradients are kept nothing is written over: every token copies the text.

    >>> import torch, rheoscope as rs
    >>> cache, layer = rs.nn.Cache(), rs.nn.MultiHeadAttention(8, heads=2)
    >>> for token in torch.randn(3, 1, 1, 8):
    ...     out = layer(token, mask="causal", cache=cache)
    >>> len(cache)
    3
    """

    def __init__(self, room: int = 0) -> None:
        self.room, self.length = room, 0
        self.past: list[Tensor] = []

    def extend(self, k: Answering, v: Answers) -> tuple[Remembered, RememberedAnswers]:
        """Keys and values of all tokens, the new ones last."""
        start, self.length = self.length, self.length + k.shape[-2]
        if not self.past or self.length > self.past[0].shape[-2] or k.requires_grad or v.requires_grad:
            self._grow(k, v, start)
        for held, new in zip(self.past, (k, v), strict=True):
            held[:, :, start : self.length] = new
        return self.past[0][:, :, : self.length], self.past[1][:, :, : self.length]

    def _grow(self, k: Answering, v: Answers, start: int) -> None:
        room = max(self.room, self.length, 2 * start)
        larger = [x.new_empty(*x.shape[:2], room, x.shape[-1]) for x in (k, v)]
        for new, held in zip(larger, self.past, strict=False):  # nothing is held yet the first time
            new[:, :, :start] = held[:, :, :start]
        self.past = larger

    def take(self, rows: Int[Tensor, " r"]) -> None:
        """Goes on with the past of these texts."""
        for held in self.past:
            held[:, :, : self.length] = held[rows, :, : self.length]

    def spread(self, times: int) -> None:
        """Every text `times` times, one after another."""
        self.past = [held.repeat_interleave(times, 0) for held in self.past]

    def __len__(self) -> int:
        return self.length

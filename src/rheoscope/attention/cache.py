"""A key/value cache for one attention layer, so that a new token costs one row."""

from jaxtyping import Float, Int
from torch import Tensor

NewKeys = Float[Tensor, "b g n k"]
NewValues = Float[Tensor, "b g n e"]
CachedKeys = Float[Tensor, "b g s k"]
CachedValues = Float[Tensor, "b g s e"]
"""Keys and values of the new tokens and of all tokens; keys and values may differ in width."""


class Cache:
    """The keys and values of all tokens so far; `len(cache)` is their number.

    The buffers are written in place and double when full, starting from `capacity` tokens. A new token thus costs one row
    rather than a copy of the text. With gradients nothing is overwritten, so every token copies the text.

    >>> import torch, rheoscope as rs
    >>> cache, layer = rs.nn.Cache(), rs.nn.MultiHeadAttention(8, heads=2)
    >>> for token in torch.randn(3, 1, 1, 8):
    ...     out = layer(token, mask="causal", cache=cache)
    >>> len(cache)
    3
    """

    def __init__(self, capacity: int = 0) -> None:
        self.capacity, self.length = capacity, 0
        self.buffers: list[Tensor] = []

    def extend(self, k: NewKeys, v: NewValues) -> tuple[CachedKeys, CachedValues]:
        """Keys and values of all tokens, the new ones last."""
        start, self.length = self.length, self.length + k.shape[-2]
        if not self.buffers or self.length > self.buffers[0].shape[-2] or k.requires_grad or v.requires_grad:
            self._grow(k, v, start)
        for buffer, new_rows in zip(self.buffers, (k, v), strict=True):
            buffer[:, :, start : self.length] = new_rows
        return self.buffers[0][:, :, : self.length], self.buffers[1][:, :, : self.length]

    def _grow(self, k: NewKeys, v: NewValues, start: int) -> None:
        new_capacity = max(self.capacity, self.length, 2 * start)
        new_buffers = [x.new_empty(*x.shape[:2], new_capacity, x.shape[-1]) for x in (k, v)]
        for new_buffer, buffer in zip(new_buffers, self.buffers, strict=False):  # no buffers on the first call
            new_buffer[:, :, :start] = buffer[:, :, :start]
        self.buffers = new_buffers

    def select_texts(self, text_indices: Int[Tensor, " r"]) -> None:
        """Keep these texts of the batch, in this order."""
        for buffer in self.buffers:
            buffer[:, :, : self.length] = buffer[text_indices, :, : self.length]

    def repeat_texts(self, n_repeats: int) -> None:
        """Repeat every text `n_repeats` times, copies adjacent."""
        self.buffers = [buffer.repeat_interleave(n_repeats, 0) for buffer in self.buffers]

    def __len__(self) -> int:
        return self.length

"""What a model keeps of the tokens it has read, so that the next one costs one row."""

from collections.abc import Callable

from jaxtyping import Float, Int
from torch import Tensor

Answering = Float[Tensor, "b g n k"]
Remembered = Float[Tensor, "b g s k"]
Remember = Callable[[], tuple[Tensor, Tensor]]


class LayerCache:
    """Keys and values of one layer: those of the text so far, and those of the source where there is one.

    Written in place into memory that doubles when it is full (or has `room` from the start), so that a token costs its
    own row and not a copy of the text: for generation, not for gradients.
    """

    def __init__(self, room: int = 0) -> None:
        self.room, self.length = room, 0
        self.past: list[Tensor] = []
        self.source: tuple[Tensor, Tensor] | None = None

    def extend(self, k: Answering, v: Answering) -> tuple[Remembered, Remembered]:
        start, self.length = self.length, self.length + k.shape[-2]
        if not self.past or self.length > self.past[0].shape[-2]:
            self._grow(k, v, start)
        for held, new in zip(self.past, (k, v), strict=True):
            held[:, :, start : self.length] = new
        return self.past[0][:, :, : self.length], self.past[1][:, :, : self.length]

    def _grow(self, k: Answering, v: Answering, start: int) -> None:
        room = max(self.room, self.length, 2 * start)
        larger = [x.new_empty(*x.shape[:2], room, x.shape[-1]) for x in (k, v)]
        for new, held in zip(larger, self.past, strict=False):  # nothing is held yet the first time
            new[:, :, :start] = held[:, :, :start]
        self.past = larger

    def remember(self, make: Remember) -> tuple[Remembered, Remembered]:
        if self.source is None:
            self.source = make()
        return self.source

    def take(self, rows: Int[Tensor, " r"]) -> None:
        """Goes on with the past of these texts; the sources stay, so a row goes on from a row of the same source."""
        for held in self.past:
            held[:, :, : self.length] = held[rows, :, : self.length]

    def spread(self, times: int) -> None:
        """Every text `times` times, one after another, its source too."""
        self.past = [held.repeat_interleave(times, 0) for held in self.past]
        if self.source is not None:
            self.source = self.source[0].repeat_interleave(times, 0), self.source[1].repeat_interleave(times, 0)


class Cache:
    """What generation keeps of the tokens so far, layer by layer, positions applied: `len(cache)` tokens.

    >>> import torch
    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import Transformer
    >>> model, cache = Transformer(Config(vocabulary=9, width=8, depth=1, heads=2)), Cache(depth=1)
    >>> with torch.no_grad():
    ...     first, second = model(torch.tensor([[1, 2]]), cache=cache), model(torch.tensor([[3]]), cache=cache)
    >>> len(cache), second.shape
    (3, torch.Size([1, 1, 9]))
    """

    def __init__(self, depth: int, room: int = 0) -> None:
        self.layers = [LayerCache(room) for _ in range(depth)]

    def layer(self, number: int) -> LayerCache:
        return self.layers[number]

    def take(self, rows: Int[Tensor, " r"]) -> None:
        for layer in self.layers:
            layer.take(rows)

    def spread(self, times: int) -> None:
        for layer in self.layers:
            layer.spread(times)

    def __len__(self) -> int:
        return self.layers[0].length

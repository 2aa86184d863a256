"""What a whole model keeps of the tokens it has read while it generates: a `Cache` for each layer, and the source's keys."""

from collections.abc import Callable

from jaxtyping import Int
from torch import Tensor

from rheoscope.attention.cache import Cache, Remembered, RememberedAnswers

Remember = Callable[[], tuple[Tensor, Tensor]]


class LayerCache:
    """Of one layer: keys and values of the text so far (`past`), and those of the source where there is one."""

    def __init__(self, room: int = 0) -> None:
        self.past = Cache(room)
        self.source: tuple[Tensor, Tensor] | None = None

    def remember(self, make: Remember) -> tuple[Remembered, RememberedAnswers]:
        """Keys and values of the source, made at the first call."""
        if self.source is None:
            self.source = make()
        return self.source

    def take(self, rows: Int[Tensor, " r"]) -> None:
        """Goes on with the past of these texts; the sources stay, so a row goes on from a row of the same source."""
        self.past.take(rows)

    def spread(self, times: int) -> None:
        """Every text `times` times, one after another, its source too."""
        self.past.spread(times)
        if self.source is not None:
            self.source = self.source[0].repeat_interleave(times, 0), self.source[1].repeat_interleave(times, 0)


class GenerationCache:
    """What generation keeps of the tokens so far, layer by layer, positions applied: `len(cache)` tokens.

    >>> import torch
    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import Transformer
    >>> model, cache = Transformer(Config(vocabulary=9, width=8, depth=1, heads=2)), GenerationCache(depth=1)
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
        return len(self.layers[0].past)

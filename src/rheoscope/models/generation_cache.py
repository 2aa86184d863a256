"""The cache of a whole model during generation: one `Cache` per layer, and the keys and values of the source."""

from collections.abc import Callable

from jaxtyping import Int
from torch import Tensor

from rheoscope.attention.cache import Cache, CachedKeys, CachedValues

ComputeKeysValues = Callable[[], tuple[Tensor, Tensor]]


class LayerCache:
    """The cache of one layer: keys and values of the text so far, and those of the source if there is one."""

    def __init__(self, capacity: int = 0) -> None:
        self.text_cache = Cache(capacity)
        self.source: tuple[Tensor, Tensor] | None = None

    def source_keys_values(self, compute: ComputeKeysValues) -> tuple[CachedKeys, CachedValues]:
        """Keys and values of the source, computed at the first call."""
        if self.source is None:
            self.source = compute()
        return self.source

    def select_texts(self, text_indices: Int[Tensor, " r"]) -> None:
        """Continue with these rows of the cache. Sources stay, so a row must continue a row of the same source."""
        self.text_cache.select_texts(text_indices)

    def repeat_texts(self, n_repeats: int) -> None:
        """Repeat every text and its source `n_repeats` times, one after the other."""
        self.text_cache.repeat_texts(n_repeats)
        if self.source is not None:
            self.source = self.source[0].repeat_interleave(n_repeats, 0), self.source[1].repeat_interleave(n_repeats, 0)


class GenerationCache:
    """Keys and values of the tokens so far, per layer, with positions applied. `len(cache)` counts tokens.

    >>> import torch
    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import Transformer
    >>> model, cache = Transformer(Config(vocabulary=9, width=8, depth=1, heads=2)), GenerationCache(depth=1)
    >>> with torch.no_grad():
    ...     first, second = model(torch.tensor([[1, 2]]), cache=cache), model(torch.tensor([[3]]), cache=cache)
    >>> len(cache), second.shape
    (3, torch.Size([1, 1, 9]))
    """

    def __init__(self, depth: int, capacity: int = 0) -> None:
        self.layers = [LayerCache(capacity) for _ in range(depth)]

    def layer(self, index: int) -> LayerCache:
        return self.layers[index]

    def select_texts(self, text_indices: Int[Tensor, " r"]) -> None:
        for layer in self.layers:
            layer.select_texts(text_indices)

    def repeat_texts(self, n_repeats: int) -> None:
        for layer in self.layers:
            layer.repeat_texts(n_repeats)

    def __len__(self) -> int:
        return len(self.layers[0].text_cache)

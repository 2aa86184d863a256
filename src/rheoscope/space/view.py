"""A model's weights as operators on one space E."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.notebook_html import card
from rheoscope.shapes import RheoscopeError
from rheoscope.space.cross_attention import Crossing
from rheoscope.space.head import Head, Heads, Norm


@dataclass(frozen=True, eq=False)
class View:
    """Weights as operators: per layer all heads (`blocks`), embedding, unembedding, final norm, MLPs as maps of E.

    `embed` is the table of words, mapped into E where it is narrower; `embedded(ids)` are its rows as they enter the stream, times
    `embed_scale`, before positions (BERT takes the norm of the sum of words, positions and segments).
    `mlps[l](x)` is what the MLP of layer l adds to the points that it reads, by the model's own modules. `context` is the
    longest text in tokens, where there is one; logits s are capped as c tanh(s / c) where there is a `logit_cap` c.
    `crossing[l]` are the heads by which layer l of a decoder reads a source, where there is one. `facts` say where it all
    comes from and decide no number: name, family, weight hash, dtype, device, and the certificate of exactness.
    `dtype` is what the model computes in: its points and weights are rounded to it, and stand here in float32 or better.
    """

    blocks: tuple[Heads, ...]
    embed: Float[Tensor, "vocabulary d"]
    embed_scale: float = 1.0
    unembed: Float[Tensor, "d vocabulary"] | None = None
    unembed_bias: Float[Tensor, " vocabulary"] | None = None
    final_norm: Norm = Norm()
    mlps: tuple[Callable[[Tensor], Tensor], ...] = ()
    context: int | None = None
    logit_cap: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    crossing: tuple[Crossing, ...] = ()
    dtype: torch.dtype = torch.float32

    def __repr__(self) -> str:
        return f"<View of {self.in_words}>"

    def _repr_html_(self) -> str:
        return card(self, f"View of {self.name}", self.in_numbers)

    @property
    def name(self) -> str:
        """What the model is called, on one line."""
        return " ".join(str(self.facts.get("model", "a model")).split())

    @property
    def in_words(self) -> str:
        """The model in a line: its name, its family, its sizes, where its weights are."""
        told = self.in_numbers
        return f"{self.name} ({told['family']}): {told['heads']}, width {told['width']}, {told['weights']}"

    @property
    def in_numbers(self) -> dict[str, str]:
        """The same by names, for a card."""
        kinds = dict.fromkeys(str(self.facts[key]) for key in ("type", "family") if key in self.facts)
        return {
            "family": " ".join(kinds) or "unknown",
            "heads": f"{self.layers} layers × {self.heads} heads",
            "width": str(self.width),
            "vocabulary": f"{len(self.embed):,} tokens",
            "weights": f"{str(self.embed.dtype).removeprefix('torch.')} on {self.embed.device}",
        }

    @property
    def layers(self) -> int:
        return len(self.blocks)

    @property
    def heads(self) -> int:
        return self.blocks[0].count

    @property
    def width(self) -> int:
        return self.embed.shape[-1]

    def embedded(self, ids: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """What words bring to the stream, before positions."""
        rows = self.embed[ids.to(self.embed.device)]
        return rows if self.embed_scale == 1 else rows * self.embed_scale

    def as_read(self, x: Tensor) -> Tensor:
        """x as the model itself would read it: rounded to its dtype where that is half precision and a GPU is fast in it.

        Norms and projections then compute what the model computes, and products of such numbers are summed in float32.
        """
        return x.to(self.dtype) if x.is_cuda and self.dtype.itemsize < 4 else x

    @cached_property
    def sees_next(self) -> bool:
        """Whether a token may read the one after it, as in an encoder: what comes next is then no prediction."""
        first, second = (torch.tensor([at], device=self.embed.device) for at in (0, 1))
        return any(bool(heads.mechanism.mask(first, second).any()) for heads in self.blocks)

    @property
    def reads_half(self) -> bool:
        """Whether `as_read` rounds."""
        return self.as_read(self.embed[:0]).dtype.itemsize < 4

    @cached_property
    def unembed_as_read(self) -> Float[Tensor, "d wider"] | None:
        """The unembedding as products with what `as_read` gives take it: columns of 0 make their number a multiple of 64.

        Rows of 50257 logits take a GPU four times as long.
        """
        if self.unembed is None or (own := self.as_read(self.unembed)).dtype == self.unembed.dtype:
            return self.unembed
        return torch.nn.functional.pad(own.mT, (0, 0, 0, -own.shape[-1] % 64)).mT

    def proved(self, certificate: Any) -> "View":
        """The same View, with its certificate among its facts."""
        return replace(self, facts=self.facts | {"certificate": certificate})

    def heads_of(self, layer: int, head: int = 0) -> Heads:
        """All heads of a layer, which must have the head that is asked for; layers and heads count from 0."""
        if not 0 <= layer < self.layers:
            raise RheoscopeError(f"there is no layer {layer}; this model has layers 0 to {self.layers - 1}")
        heads = self.blocks[layer]
        if not 0 <= head < heads.count:
            raise RheoscopeError(f"there is no head {head} in layer {layer}; it has heads 0 to {heads.count - 1}")
        return heads

    def heads_in(self, layer: int) -> list[tuple[int, int]]:
        """Every head of a layer as (layer, head), as the setting `heads` of an analysis takes them."""
        return [(layer, head) for head in range(self.heads_of(layer).count)]

    def head(self, layer: int, head: int) -> Head:
        """One head; layers and heads count from 0."""
        return Head(layer, head, self.heads_of(layer, head))

    def crossing_of(self, layer: int, head: int = 0) -> Crossing:
        """All heads of a layer's cross attention; a model without any is refused."""
        self.heads_of(layer, head)
        if not self.crossing:
            raise RheoscopeError("this View has no cross attention; type the target of an encoder-decoder's trace")
        return self.crossing[layer]

"""The weights of a model as operators on one space E."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, plural
from rheoscope.notebook_html import card
from rheoscope.shapes import RheoscopeError
from rheoscope.space.cpu_cores import map_on_cores
from rheoscope.space.cross_attention import CrossHeads
from rheoscope.space.head import Head, Heads
from rheoscope.space.model_parts import Norm

Result = TypeVar("Result")
DISTINCT_LAYERS = "distinct_layers"
"""The fact with the number of layers of a model that runs some of them several times (ALBERT)."""


@dataclass(frozen=True, eq=False)
class View:
    """Weights as operators: all heads of every layer (`layer_heads`), embedding, unembedding, final norm and MLPs.

    `embed` is the token embedding, mapped into E if it is narrower. `token_embeddings(ids)` are its rows in the stream, times
    `embed_scale`, before positions (BERT normalises the sum of tokens, positions and segments).
    `mlps[l](x)` is the displacement by the MLP of layer l, computed by the model's own modules. `context_length` is the longest
    text in tokens, if limited. Logits s become c tanh(s / c) if there is a `logit_cap` c.
    `prediction_head(x)` are the logits of a masked language model, which transforms its last points before the unembedding. Such
    a model has no `unembed`, because no component contributes a fixed amount to a logit.
    `cross_heads[l]` are the cross-attention heads of layer l of a decoder. `facts` describe the origin and affect no number:
    name, family, weight hash, dtype, device, certificate.
    `layers_at_once` limits how many layers are computed in parallel: a streamed model has two in memory. None is no limit.
    `dtype` is the model's own dtype: points and weights are rounded to it, and stored here in float32 or better.
    `check_current()` raises if the network has other weights by now than those that this View describes. With
    `reads_device=False` it does not wait for a GPU.
    """

    layer_heads: tuple[Heads, ...]
    embed: Float[Tensor, "vocabulary d"]
    embed_scale: float = 1.0
    unembed: Float[Tensor, "d vocabulary"] | None = None
    unembed_bias: Float[Tensor, " vocabulary"] | None = None
    prediction_head: Callable[[Tensor], Tensor] | None = None
    final_norm: Norm = Norm()
    mlps: tuple[Callable[[Tensor], Tensor], ...] = ()
    context_length: int | None = None
    logit_cap: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    cross_heads: tuple[CrossHeads, ...] = ()
    layers_at_once: int | None = None
    dtype: torch.dtype = torch.float32
    check_current: Callable[..., None] = lambda reads_device=True: None

    def __repr__(self) -> str:
        return f"<View of {self.summary}>"

    def _repr_html_(self) -> str:
        return card(self, f"View of {self.name}", self.summary_fields)

    @property
    def name(self) -> str:
        """The name of the model, on one line."""
        return " ".join(str(self.facts.get("model", "a model")).split())

    @property
    def summary(self) -> str:
        """The model in one line: its name, its family, its sizes, the device of its weights."""
        fields = self.summary_fields
        return f"{self.name} ({fields['family']}): {fields['heads']}, width {fields['width']}, {fields['weights']}"

    @property
    def summary_fields(self) -> dict[str, str]:
        """The summary by fields, for a card."""
        kinds = dict.fromkeys(str(self.facts[key]) for key in ("type", "family") if key in self.facts)
        return {
            "family": " ".join(kinds) or "unknown",
            "heads": f"{self.depth} × {self.heads} heads",
            "width": str(self.width),
            "vocabulary": f"{len(self.embed):,} tokens"
            if self.reads_tokens
            else f"none, it reads {self.facts.get('input')}",
            "weights": f"{str(self.dtype).removeprefix('torch.')} on {self.embed.device}",
        }

    @property
    def layers(self) -> int:
        return len(self.layer_heads)

    @property
    def distinct_layers(self) -> int:
        """The number of layers with weights of their own."""
        return int(self.facts.get(DISTINCT_LAYERS, self.layers))

    @property
    def depth(self) -> Message:
        """The number of layers in words. A layer that runs several times is counted once."""
        n, total = self.distinct_layers, self.layers
        if n == total:
            return plural("{n} layer", "{n:,} layers", n=n)
        return plural("{n} layer run {total} times", "{n:,} layers run {total} times in all", n=n, total=total)

    @property
    def heads(self) -> int:
        return self.layer_heads[0].n_heads

    @property
    def width(self) -> int:
        return self.embed.shape[-1]

    def map_layers(self, function: Callable[[Heads], Result]) -> Iterator[Result]:
        """The results of `function` for the heads of every layer, in order: on all cores, unless the model is streamed."""
        return map_on_cores(function, self.layer_heads, self.layers_at_once)

    def token_embeddings(self, ids: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """Token embeddings as they enter the stream, before positions."""
        rows = self.embed[ids.to(self.embed.device)]
        return rows if self.embed_scale == 1 else rows * self.embed_scale

    def to_model_precision(self, x: Tensor) -> Tensor:
        """x in the precision in which the model reads it: rounded to its dtype for a half-precision model on a GPU.

        Norms and projections then compute what the model computes, and their products are summed in float32.
        """
        return x.to(self.dtype) if x.is_cuda and self.dtype.itemsize < 4 else x

    @cached_property
    def is_bidirectional(self) -> bool:
        """Whether a token may attend to the one after it, as in an encoder; the next token is then no prediction."""
        first, second = (torch.tensor([position], device=self.embed.device) for position in (0, 1))
        return any(bool(heads.mechanism.mask(first, second).any()) for heads in self.layer_heads)

    @property
    def reads_tokens(self) -> bool:
        """Whether there is a vocabulary. Models of images and sounds have none: their tokens are patches and frames."""
        return len(self.embed) > 0

    @property
    def predicts_next_token(self) -> bool:
        """Whether the last point of a token gives logits for the next one."""
        return self.unembed is not None and not self.is_bidirectional

    @property
    def uses_half_precision(self) -> bool:
        """Whether `to_model_precision` rounds."""
        return self.to_model_precision(self.embed[:0]).dtype.itemsize < 4

    @cached_property
    def unembed_model_precision(self) -> Float[Tensor, "d wider"] | None:
        """The unembedding in model precision, padded with zero columns to a multiple of 64.

        Rows of 50257 logits take four times as long on a GPU.
        """
        if self.unembed is None or (unembed := self.to_model_precision(self.unembed)).dtype == self.unembed.dtype:
            return self.unembed
        return torch.nn.functional.pad(unembed.mT, (0, 0, 0, -unembed.shape[-1] % 64)).mT

    @property
    def predicts_tokens(self) -> bool:
        """Whether points have logits."""
        return self.unembed is not None or self.prediction_head is not None

    def with_check(self, check_current: Callable[..., None]) -> "View":
        """The same View with a function that raises if its weights are out of date."""
        return replace(self, check_current=check_current)

    def with_certificate(self, certificate: Any) -> "View":
        """The same View with a certificate among its facts."""
        return replace(self, facts=self.facts | {"certificate": certificate})

    def heads_of(self, layer: int, head: int = 0) -> Heads:
        """All heads of a layer; raises if the layer or the head does not exist. Layers and heads count from 0."""
        if not 0 <= layer < self.layers:
            raise RheoscopeError(
                Message(
                    "there is no layer {layer}; this model has layers 0 to {last}", layer=layer, last=self.layers - 1
                )
            )
        heads = self.layer_heads[layer]
        if not 0 <= head < heads.n_heads:
            raise RheoscopeError(
                Message(
                    "there is no head {head} in layer {layer}; it has heads 0 to {last}",
                    head=head,
                    layer=layer,
                    last=heads.n_heads - 1,
                )
            )
        return heads

    def head_indices(self, layer: int) -> list[tuple[int, int]]:
        """Every head of a layer as (layer, head), for the setting `heads` of an analysis."""
        return [(layer, head) for head in range(self.heads_of(layer).n_heads)]

    def head(self, layer: int, head: int) -> Head:
        """One head; layers and heads count from 0. Raises if the weights of the network have changed since."""
        self.check_current()
        return Head(layer, head, self.heads_of(layer, head))

    def cross_heads_of(self, layer: int, head: int = 0) -> CrossHeads:
        """All cross-attention heads of a layer; raises for a model without cross-attention."""
        self.heads_of(layer, head)
        if not self.cross_heads:
            raise RheoscopeError(
                Message("this View has no cross-attention, expected the decoder of an encoder-decoder"),
                Advice("model.trace((source, target)).target"),
            )
        return self.cross_heads[layer]

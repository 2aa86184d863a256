"""The Transformer, written like the formulas, with any mechanism.

    x_i ← x_i + Σ_h Δ_h(x̂)_i          attention: every head moves every token
    x_i ← x_i + FFN(x̂_i)              the FFN moves every token separately

Pre-norm reads x̂ = norm(x) and adds to x. Post-norm adds first and normalises the sum. Tokens are rows, and a text is a cloud of
shape (b, n, d). `build_view.py` describes these modules to `space/`, as the families do for models of Hugging Face.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rheoscope.attention.cache import Cache, CachedKeys, CachedValues, NewKeys, NewValues
from rheoscope.attention.mask import ExcludeSelf, Mask, NoMask, Padding, as_mask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.modules import Attention
from rheoscope.attention.parameters import with_fields
from rheoscope.attention.position import Position, RotaryMap
from rheoscope.messages.message import Message
from rheoscope.models.config import Config
from rheoscope.models.generation_cache import GenerationCache, LayerCache
from rheoscope.models.initialisation import INITIALISERS, InitialWeights, check_start
from rheoscope.models.linear_maps import INIT_STD, Embedding, Linear, make_unembedding
from rheoscope.models.own_attention import OwnAttention
from rheoscope.models.position_modules import POSITION_ENCODINGS
from rheoscope.models.projection import Projection, row_counts, separate_projections
from rheoscope.models.projections import PROJECTIONS
from rheoscope.models.qk_clip import largest_scores
from rheoscope.models.residual_branches import deepnet_gain, make_branch_end, residual_scale, xavier_std
from rheoscope.shapes import RheoscopeError

Ids = Int[Tensor, "b n"]
Cloud = Float[Tensor, "b n d"]
Memory = Float[Tensor, "b s d"]
PerHead = Float[Tensor, "b h n k"]
Sublayer = Callable[[Tensor], Tensor]


class Transformer(nn.Module):
    """An encoder or decoder with its vocabulary, from token ids to logits.

    **Formula** x⁰ = W_E[ids] (· √d, + position); blocks; logits = norm(x^L) W_U, with W_U = W_Eᵀ if tied.

    **Returns** Logits (b, n, vocabulary) for ids (b, n). `is_token` (b, n) is True for real tokens.

    **Laws** The logits of a decoder at i do not depend on tokens after i. An encoder without positions is permutation equivariant.
    Padding does not change the logits of real tokens. With the same weights, the logits equal those of Hugging Face's GPT-2 and
    Llama and of torch's encoder.

    **See also** `Translator` has two stacks, `Config` determines the architecture, and `recipes` has configs to train.

    >>> import torch
    >>> from rheoscope.models.config import Config
    >>> Transformer(Config(vocabulary=9, width=8, depth=1, heads=2))(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 9])
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.stack = Stack(config, causal=config.form == "decoder")
        self.unembed = make_unembedding(config, self.stack.embed)
        scale_initial_weights(self, config)

    def forward(
        self,
        ids: Ids,
        is_token: Bool[Tensor, "b n"] | None = None,
        cache: GenerationCache | None = None,
        hidden_states: list[Cloud] | None = None,
    ) -> Tensor:
        return self.unembed(self.points(ids, is_token, cache, hidden_states))

    def points(
        self,
        ids: Ids,
        is_token: Bool[Tensor, "b n"] | None = None,
        cache: GenerationCache | None = None,
        hidden_states: list[Cloud] | None = None,
    ) -> Cloud:
        """The final points, which are unembedded."""
        cloud: Tensor = self.stack(ids, is_token, cache, hidden_states=hidden_states)
        return cloud


class Translator(nn.Module):
    """An encoder and a decoder with cross attention (2017), from source and target ids to logits.

    One embedding serves the source, the target and, if tied, the unembedding.

    >>> import torch
    >>> from rheoscope.models.config import Config
    >>> model = Translator(Config(vocabulary=9, width=8, depth=1, heads=2, form="encoder-decoder"))
    >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).shape
    torch.Size([1, 2, 9])
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Stack(config, causal=False)
        self.decoder = Stack(config, causal=True, has_cross=True)
        self.decoder.embed.weight = self.encoder.embed.weight
        self.unembed = make_unembedding(config, self.encoder.embed)
        scale_initial_weights(self, config)

    def forward(
        self, source: Int[Tensor, "b s"], target: Int[Tensor, "b t"], source_is_token: Bool[Tensor, "b s"] | None = None
    ) -> Float[Tensor, "b t v"]:
        return self.unembed(self.points(source, target, source_is_token))

    def points(
        self, source: Int[Tensor, "b s"], target: Int[Tensor, "b t"], source_is_token: Bool[Tensor, "b s"] | None = None
    ) -> Cloud:
        """The final points of the target, which are unembedded."""
        cloud: Tensor = self.decoder(target, None, None, self.encoder(source, source_is_token), source_is_token)
        return cloud


def build(config: Config) -> "Transformer | Translator":
    """The module of a config, with initial weights."""
    model = make_architecture(config)
    initialise = INITIALISERS[config.start]
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, SelfAttention):
                check_start(module.projection, config.start)
                initialise(InitialWeights(module.projection, module.read.weight, module.write.weight))
    return model


def make_architecture(config: Config) -> "Transformer | Translator":
    """The module of a config without the `start` of its weights, for weights that are loaded afterwards."""
    return Translator(config) if config.form == "encoder-decoder" else Transformer(config)


class Stack(nn.Module):
    """Embedding, positions, blocks and final norm, from ids (b, n) to points (b, n, d)."""

    def __init__(self, config: Config, causal: bool, has_cross: bool = False) -> None:
        super().__init__()
        self.config, self.causal = config, causal
        self.embed = Embedding(config.vocabulary, config.width)
        self.scale = math.sqrt(config.width) if config.scaled_embedding else 1.0
        self.place = POSITION_ENCODINGS[config.position](config, causal)
        self.dropout = make_dropout(config)
        self.blocks = nn.ModuleList(Block(config, causal, has_cross, layer) for layer in range(config.depth))
        self.norm = nn.Identity() if config.placement == "post" else make_norm(config, config.depth - 1)

    def forward(
        self,
        ids: Ids,
        is_token: Bool[Tensor, "b n"] | None = None,
        cache: GenerationCache | None = None,
        memory: Memory | None = None,
        memory_is_token: Bool[Tensor, "b s"] | None = None,
        hidden_states: list[Cloud] | None = None,
    ) -> Cloud:
        """The final points. `hidden_states` is filled with the embedded points and the points after every half-layer."""
        positions = self.position_slice(ids, 0 if cache is None else len(cache))
        x, token_mask, memory_mask = (
            self.embed_tokens(ids, positions),
            _padding_mask(is_token),
            _padding_mask(memory_is_token),
        )
        rotation, position = self.place.rotation(positions), self.place.pair_bias()
        if hidden_states is not None:
            hidden_states.append(x)
        for index, block in enumerate(self.blocks):
            layer_cache = None if cache is None else cache.layer(index)
            x = block(x, token_mask, rotation, position, layer_cache, memory, memory_mask, hidden_states)
        return self.norm(x)

    def embed_tokens(self, ids: Ids, positions: slice) -> Cloud:
        """Tokens as points, with their positions."""
        x = self.embed(ids) if self.scale == 1 else self.embed(ids) * self.scale
        return self.dropout(self.place.add_to_embeddings(x, positions))

    def position_slice(self, ids: Ids, n_past: int = 0) -> slice:
        """The positions of tokens after `n_past` earlier ones. Raises beyond the context of the model."""
        if n_past + ids.shape[-1] > self.config.context:
            raise RheoscopeError(
                Message(
                    "the text has {n} tokens, but the model reads at most {context}; use a shorter text",
                    n=n_past + ids.shape[-1],
                    context=self.config.context,
                )
            )
        return slice(n_past, n_past + ids.shape[-1])


class Block(nn.Module):
    """Attention, cross attention if there is a memory, and the FFN, each with its norm and residual connection.

    The output of a sublayer passes the end of its branch: a norm, a learned gain, or nothing (`residual_branches.py`).
    """

    warmup: Tensor | None

    def __init__(self, config: Config, causal: bool, has_cross: bool = False, layer: int = 0) -> None:
        super().__init__()
        self.is_pre_norm, self.centred = config.placement != "post", config.norm == "layer"
        self.branch = config.branch / residual_scale(config, layer)
        self.norm_attention = make_norm(config, layer - 1)
        self.attention: Any = OwnAttention(config) if config.attention else SelfAttention(config, causal)
        self.end_attention = make_branch_end(config)
        if has_cross:
            self.norm_cross, self.cross = make_norm(config, layer), CrossAttention(config)
            self.end_cross = make_branch_end(config)
        self.norm_ffn, self.ffn = make_norm(config, layer), GatedFFN(config) if config.ffn == "swiglu" else FFN(config)
        self.end_ffn = make_branch_end(config)
        self.dropout = make_dropout(config)
        self.warmup_end = config.branch_warmup * (layer + 1) / config.depth
        self.register_buffer("warmup", torch.ones(()) if config.branch_warmup else None)

    @property
    def update_scale(self) -> float:
        """The constant that multiplies every update at this point of the training."""
        return self.branch if self.warmup is None else self.branch * float(self.warmup)

    def forward(
        self,
        x: Cloud,
        token_mask: Mask | None,
        rotation: RotaryMap | None,
        position: Position | None,
        cache: LayerCache | None = None,
        memory: Memory | None = None,
        memory_mask: Mask | None = None,
        hidden_states: list[Cloud] | None = None,
    ) -> Cloud:
        text_cache = None if cache is None else cache.text_cache
        x = self._add_sublayer(
            x,
            self.norm_attention,
            lambda u: self.end_attention(self.attention(u, token_mask, rotation, position, text_cache)),
        )
        if memory is not None:
            x = self._add_sublayer(
                x, self.norm_cross, lambda u: self.end_cross(self.cross(u, memory, memory_mask, cache))
            )
        after_ffn = self._add_sublayer(x, self.norm_ffn, lambda u: self.end_ffn(self.ffn(u)))
        if hidden_states is not None:
            hidden_states += [x, after_ffn]
        return after_ffn

    def _add_sublayer(self, x: Cloud, norm: nn.Module, sublayer: Sublayer) -> Cloud:
        if not self.is_pre_norm:
            return norm(x + self._scaled_update(sublayer(x)))
        return x + self._scaled_update(sublayer(norm(x)))

    def _scaled_update(self, update: Cloud) -> Cloud:
        update = self.dropout(update)
        update = update if self.branch == 1 else self.branch * update
        return update if self.warmup is None else self.warmup * update


class SelfAttention(nn.Module):
    """Self-attention. One fused linear map computes everything that its `projection` needs.

    The causal mask is part of the mechanism from the start. Composing a mechanism inside a forward pass breaks the graph of
    `torch.compile` (torch 2.11).
    """

    def __init__(self, config: Config, causal: bool) -> None:
        super().__init__()
        self.projection: Projection = PROJECTIONS[config.projection](config)
        self.read = Linear(config.width, sum(row_counts(self.projection.full_layout)), bias=config.bias)
        self.projection.select_rows(self.read)
        self.write = Linear(config.heads * config.value_width, config.width, bias=config.bias)
        mask = as_mask("causal" if causal else None) & (NoMask() if config.diagonal else ExcludeSelf())
        self.mechanism = Attention(config.build_mechanism().with_mask(mask))
        self.weight_dropout, self.tracks_scores = config.attention_dropout, config.qk_clip > 0
        self.score_maxima: Tensor | None = None

    def forward(
        self,
        u: Cloud,
        token_mask: Mask | None = None,
        rotation: RotaryMap | None = None,
        position: Position | None = None,
        cache: Cache | None = None,
    ) -> Cloud:
        rows = self.projection.read_rows(self.read, u)
        q, k, v = self.projection.project_heads(rows, u, rotation)
        if cache is not None:
            k, v = cache.extend(k, v)
        mechanism = with_weight_dropout(
            self.mechanism.current_mechanism(), self.weight_dropout if self.training else 0.0
        )
        if self.tracks_scores and self.training:
            n_models = 1 if self.read.weight.ndim == 2 else len(self.read.weight)
            maxima = largest_scores(mechanism, q, k, token_mask, position, n_models)
            self.score_maxima = maxima if self.score_maxima is None else self.score_maxima.maximum(maxima)
        out, gate = attend(mechanism, q, k, v, token_mask, position), self.projection.gate(rows)
        return self.write((out if gate is None else out * gate).transpose(1, 2).flatten(2))

    def matrices(self) -> dict[str, Float[Tensor, "rows columns"]]:
        """The weights by name, as views."""
        rows = self.read.weight.split(row_counts(self.projection.layout)) if self.projection.layout else ()
        return dict(zip(self.projection.layout, rows, strict=True)) | {"out": self.write.weight}

    def project(self, u: Cloud, rotation: RotaryMap | None = None) -> tuple[PerHead, NewKeys, NewValues]:
        """q, k and v, with q and k rotated if there is a rotation."""
        return self.projection.project_heads(self.projection.read_rows(self.read, u), u, rotation)

    def gate(self, u: Cloud) -> Float[Tensor, "b h n 1"] | None:
        """The factors of the head outputs, or None."""
        return self.projection.gate(self.projection.read_rows(self.read, u))


class CrossAttention(nn.Module):
    """Attention from target tokens to source tokens. Keys and values of the source are computed once per text."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.head_width, self.value_width = config.head_width, config.value_width
        self.ask = Linear(config.width, self.heads * self.head_width, bias=config.bias)
        self.read = Linear(config.width, self.kv_heads * (self.head_width + self.value_width), bias=config.bias)
        self.write = Linear(self.heads * self.value_width, config.width, bias=config.bias)
        self.mechanism, self.weight_dropout = Attention(config.build_mechanism()), config.attention_dropout

    def forward(
        self, u: Cloud, memory: Memory, memory_mask: Mask | None = None, cache: LayerCache | None = None
    ) -> Cloud:
        q = separate_projections(self.ask(u), self.head_width)
        k, v = (
            self.source_keys_values(memory)
            if cache is None
            else cache.source_keys_values(lambda: self.source_keys_values(memory))
        )
        mechanism = with_weight_dropout(
            self.mechanism.current_mechanism(), self.weight_dropout if self.training else 0.0
        )
        return self.write(attend(mechanism, q, k, v, memory_mask, None).transpose(1, 2).flatten(2))

    def matrices(self) -> dict[str, Float[Tensor, "rows columns"]]:
        """The weights by name, as views."""
        k, v = self.read.weight.split([self.kv_heads * self.head_width, self.kv_heads * self.value_width])
        return {"q": self.ask.weight, "k": k, "v": v, "out": self.write.weight}

    def source_keys_values(self, memory: Memory) -> tuple[CachedKeys, CachedValues]:
        widths = self.kv_heads * self.head_width, self.kv_heads * self.value_width
        k, v = self.read(memory).split(widths, dim=-1)
        return separate_projections(k, self.head_width), separate_projections(v, self.value_width)


def attend(
    mechanism: Mechanism,
    q: PerHead,
    k: CachedKeys,
    v: CachedValues,
    mask: Mask | None,
    position: Position | None,
) -> Float[Tensor, "b h n e"]:
    """Apply a mechanism under a mask, with a position that adds a bias if there is one."""
    return (mechanism if position is None else with_fields(mechanism, position=position)).attend(q, k, v, mask)


def with_weight_dropout(mechanism: Mechanism, fraction: float) -> Mechanism:
    """The mechanism with dropout on its weights, for training."""
    return with_fields(mechanism, normaliser=mechanism.normaliser.with_dropout(fraction)) if fraction else mechanism


class FFN(nn.Module):
    """act(u W + b) W' + b', act = ReLU or GELU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.read = Linear(config.width, config.hidden, bias=config.bias)
        self.write = Linear(config.hidden, config.width, bias=config.bias)
        self.act = nn.ReLU() if config.ffn == "relu" else nn.GELU(approximate="tanh")

    def matrices(self) -> dict[str, Float[Tensor, "rows columns"]]:
        """The weights by name, as views."""
        return {"in": self.read.weight, "out": self.write.weight}

    def forward(self, u: Cloud) -> Cloud:
        return self.write(self.act(self.read(u)))


class GatedFFN(nn.Module):
    """(silu(u W) * u V) W' (SwiGLU, arXiv:2002.05202). W and V are one matrix."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.read = Linear(config.width, 2 * config.hidden, bias=config.bias)
        self.write = Linear(config.hidden, config.width, bias=config.bias)

    def matrices(self) -> dict[str, Float[Tensor, "rows columns"]]:
        """The weights by name, as views."""
        gate, up = self.read.weight.chunk(2)
        return {"gate": gate, "in": up, "out": self.write.weight}

    def forward(self, u: Cloud) -> Cloud:
        gate, up = self.read(u).chunk(2, -1)
        return self.write(functional.silu(gate) * up)


def make_dropout(config: Config) -> nn.Module:
    """Dropout, or the identity."""
    return nn.Dropout(config.dropout) if config.dropout else nn.Identity()


def make_norm(config: Config, layer: int) -> nn.Module:
    """RMSNorm, LayerNorm or the identity, for the stream after the attention of a layer (−1: the embedding)."""
    eps = config.eps / residual_scale(config, layer) ** 2
    if config.norm == "none":
        return nn.Identity()
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=eps)
    return nn.LayerNorm(config.width, eps=eps, bias=config.bias)


@torch.no_grad()
def scale_initial_weights(model: nn.Module, config: Config) -> None:
    """Scale the initial weights that write to the stream by 1/√(number of writers), so its size does not grow with depth.

    With start=deepnet, all matrices of sublayers have the scales of DeepNet instead.
    """
    sublayers: list[Any] = [
        m for m in model.modules() if isinstance(m, SelfAttention | OwnAttention | CrossAttention | FFN | GatedFFN)
    ]
    for sublayer in (m for m in sublayers if not isinstance(m, OwnAttention)):  # whose weights are those of its class
        if config.start == "deepnet":
            for name, W in sublayer.matrices().items():
                W.mul_(xavier_std(W, 1.0 if name in ("q", "k") else deepnet_gain(config)) / INIT_STD)
        else:
            sublayer.write.weight.mul_(1 / math.sqrt(len(sublayers)))


def parameter_count(model: nn.Module, include_embedding: bool = True) -> int:
    """The number of trained parameters. Tied matrices count once."""
    sizes = {id(p): p.numel() for p in model.parameters()}
    embedding_sizes = {id(p): p.numel() for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    return sum(sizes.values()) - (0 if include_embedding else sum(embedding_sizes.values()))


def _padding_mask(is_token: Bool[Tensor, "b n"] | None) -> Mask | None:
    return None if is_token is None else Padding(is_token)

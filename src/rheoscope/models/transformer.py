"""The Transformer as the maths states it, on any mechanism.

    x_i ← x_i + Σ_h Δ_h(x̂)_i          every head moves every token (attention)
    x_i ← x_i + FFN(x̂_i)              every token moves by itself

Pre-norm reads x̂ = norm(x) and adds to x; post-norm adds first and normalises the sum. Tokens are rows; a text is a
cloud of shape (b, n, d). `space/` sees these modules through `describing.py`, exactly as it sees those of Hugging Face.
"""

import math
from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rheoscope.attention.cache import Answering, Answers, Cache, Remembered, RememberedAnswers
from rheoscope.attention.mask import Mask, Padding, as_mask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.modules import Attention
from rheoscope.attention.parameters import with_parts
from rheoscope.attention.position import Position, Turn
from rheoscope.models.config import Config
from rheoscope.models.generation_cache import GenerationCache, LayerCache
from rheoscope.models.initialisation import STARTS, Drawn
from rheoscope.models.position_modules import PLACES
from rheoscope.models.projections import PROJECTIONS, Projection, apart, sizes
from rheoscope.shapes import RheoscopeError

Ids = Int[Tensor, "b n"]
Cloud = Float[Tensor, "b n d"]
Memory = Float[Tensor, "b s d"]
PerHead = Float[Tensor, "b h n k"]
Move = Callable[[Tensor], Tensor]


class Transformer(nn.Module):
    """An encoder or a decoder with its vocabulary: token ids in, logits out.

    **Formula** x⁰ = W_E[ids] (· √d, + position); blocks; logits = norm(x^L) W_U, with W_U = W_Eᵀ where tied.

    **Shapes** ids (b, n) give logits (b, n, vocabulary). `padding` (b, n), True for a real token.

    **Laws** a decoder's logits at i do not depend on tokens after i; an encoder without position is permutation
    equivariant; padding changes nothing at real tokens; equal to Hugging Face's GPT-2 and Llama and to torch's own
    encoder with the same weights.

    **Siblings** `Translator` has two of these stacks; `Config` says what is inside; `recipes` names good ones.

    >>> import torch
    >>> from rheoscope.models.config import Config
    >>> Transformer(Config(vocabulary=9, width=8, depth=1, heads=2))(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 9])
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.stack = Stack(config, causal=config.form == "decoder")
        self.unembed = unembedding(config, self.stack.embed)
        calm_writers(self)

    def forward(
        self,
        ids: Ids,
        padding: Bool[Tensor, "b n"] | None = None,
        cache: GenerationCache | None = None,
        hidden_states: list[Cloud] | None = None,
    ) -> Tensor:
        return self.unembed(self.points(ids, padding, cache, hidden_states))

    def points(
        self,
        ids: Ids,
        padding: Bool[Tensor, "b n"] | None = None,
        cache: GenerationCache | None = None,
        hidden_states: list[Cloud] | None = None,
    ) -> Cloud:
        """What is unembedded."""
        cloud: Tensor = self.stack(ids, padding, cache, hidden_states=hidden_states)
        return cloud


class Translator(nn.Module):
    """An encoder and a decoder with cross attention between them (2017): source and target ids in, logits out.

    One embedding serves source, target and, where tied, the unembedding.

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
        self.decoder = Stack(config, causal=True, crossed=True)
        self.decoder.embed.weight = self.encoder.embed.weight
        self.unembed = unembedding(config, self.encoder.embed)
        calm_writers(self)

    def forward(
        self, source: Int[Tensor, "b s"], target: Int[Tensor, "b t"], real: Bool[Tensor, "b s"] | None = None
    ) -> Float[Tensor, "b t v"]:
        return self.unembed(self.points(source, target, real))

    def points(
        self, source: Int[Tensor, "b s"], target: Int[Tensor, "b t"], real: Bool[Tensor, "b s"] | None = None
    ) -> Cloud:
        """What is unembedded: tokens of the target that have seen the source."""
        cloud: Tensor = self.decoder(target, None, None, self.encoder(source, real), real)
        return cloud


def build(config: Config) -> "Transformer | Translator":
    """The module that a config describes, at its start."""
    model = architecture(config)
    start = STARTS[config.start]
    with torch.no_grad():
        for one in model.modules():
            if isinstance(one, SelfAttention):
                start(Drawn(one.projection, one.read.weight, one.write.weight))
    return model


def architecture(config: Config) -> "Transformer | Translator":
    """The same as its modules draw it, for weights that are put in afterwards."""
    return Translator(config) if config.form == "encoder-decoder" else Transformer(config)


class Stack(nn.Module):
    """Embedding, positions, blocks, final norm: ids (b, n) to points (b, n, d)."""

    def __init__(self, config: Config, causal: bool, crossed: bool = False) -> None:
        super().__init__()
        self.config, self.causal = config, causal
        self.embed = Embedding(config.vocabulary, config.width)
        self.scale = math.sqrt(config.width) if config.scaled_embedding else 1.0
        self.place = PLACES[config.position](config, causal)
        self.dropout = dropout(config)
        self.blocks = nn.ModuleList(Block(config, causal, crossed) for _ in range(config.depth))
        self.norm = norm(config) if config.placement == "pre" else nn.Identity()

    def forward(
        self,
        ids: Ids,
        padding: Bool[Tensor, "b n"] | None = None,
        cache: GenerationCache | None = None,
        memory: Memory | None = None,
        remembered: Bool[Tensor, "b s"] | None = None,
        hidden_states: list[Cloud] | None = None,
    ) -> Cloud:
        """`hidden_states` is filled with the points before every layer, and after the last."""
        at = self.places_of(ids, 0 if cache is None else len(cache))
        x, real, across = self.enter(ids, at), _there(padding), _there(remembered)
        turn, position = self.place.turn(at), self.place.between()
        for number, block in enumerate(self.blocks):
            if hidden_states is not None:
                hidden_states.append(x)
            x = block(x, real, turn, position, None if cache is None else cache.layer(number), memory, across)
        if hidden_states is not None:
            hidden_states.append(x)
        return self.norm(x)

    def enter(self, ids: Ids, at: slice) -> Cloud:
        """Tokens as points, at their places."""
        x = self.embed(ids) if self.scale == 1 else self.embed(ids) * self.scale
        return self.dropout(self.place.embedded(x, at))

    def places_of(self, ids: Ids, past: int = 0) -> slice:
        """Where tokens stand that come after so many others; more than the model reads are refused."""
        if past + ids.shape[-1] > self.config.context:
            raise RheoscopeError(
                f"the text has {past + ids.shape[-1]} tokens, the model reads at most {self.config.context}; "
                "type a shorter text"
            )
        return slice(past, past + ids.shape[-1])


class Block(nn.Module):
    """Attention, then cross attention where there is a memory, then the FFN, each with its norm and its skip."""

    def __init__(self, config: Config, causal: bool, crossed: bool = False) -> None:
        super().__init__()
        self.pre, self.centred, self.branch = config.placement == "pre", config.norm == "layer", config.branch
        self.norm_attention, self.attention = norm(config), SelfAttention(config, causal)
        if crossed:
            self.norm_cross, self.cross = norm(config), CrossAttention(config)
        self.norm_ffn, self.ffn = norm(config), GatedFFN(config) if config.ffn == "swiglu" else FFN(config)
        self.dropout = dropout(config)

    def forward(
        self,
        x: Cloud,
        real: Mask | None,
        turn: Turn | None,
        position: Position | None,
        cache: LayerCache | None = None,
        memory: Memory | None = None,
        across: Mask | None = None,
    ) -> Cloud:
        past = None if cache is None else cache.past
        x = self._step(x, self.norm_attention, lambda u: self.attention(u, real, turn, position, past))
        if memory is not None:
            x = self._step(x, self.norm_cross, lambda u: self.cross(u, memory, across, cache))
        return self._step(x, self.norm_ffn, self.ffn)

    def _step(self, x: Cloud, norm: nn.Module, move: Move) -> Cloud:
        if not self.pre:
            return norm(x + self._branch(move(x)))
        return x + self._branch(move(norm(x)))

    def _branch(self, moved: Cloud) -> Cloud:
        moved = self.dropout(moved)
        return moved if self.branch == 1 else self.branch * moved


class SelfAttention(nn.Module):
    """Every token asks, every permitted token answers; one fused linear map reads all that its `projection` needs.

    The causal mask is part of the mechanism from the start: a mechanism put together inside a forward breaks the graph
    of `torch.compile` (torch 2.11).
    """

    def __init__(self, config: Config, causal: bool) -> None:
        super().__init__()
        self.projection: Projection = PROJECTIONS[config.projection](config)
        self.read = Linear(config.width, sum(sizes(self.projection.whole)), bias=config.bias)
        self.projection.keep_rows(self.read)
        self.write = Linear(config.heads * config.value_width, config.width, bias=config.bias)
        mask = as_mask("causal" if causal else None) & self.projection.mask
        self.mechanism = Attention(config.attention().under(mask))
        self.dropped = config.attention_dropout

    def forward(
        self,
        u: Cloud,
        real: Mask | None = None,
        turn: Turn | None = None,
        position: Position | None = None,
        cache: Cache | None = None,
    ) -> Cloud:
        rows = self.projection.rows(self.read, u)
        q, k, v = self.projection.heads(rows, u, turn)
        if cache is not None:
            k, v = cache.extend(k, v)
        mechanism = dropping(self.mechanism.current(), self.dropped if self.training else 0.0)
        out, gate = attend(mechanism, q, k, v, real, position), self.projection.gate(rows)
        return self.write((out if gate is None else out * gate).transpose(1, 2).flatten(2))

    def project(self, u: Cloud, turn: Turn | None = None) -> tuple[PerHead, Answering, Answers]:
        """q, k, v; before positions, or with q and k turned."""
        return self.projection.heads(self.projection.rows(self.read, u), u, turn)

    def gate(self, u: Cloud) -> Float[Tensor, "b h n 1"] | None:
        """What multiplies the outputs of heads, if anything does."""
        return self.projection.gate(self.projection.rows(self.read, u))


class CrossAttention(nn.Module):
    """Tokens of the target ask tokens of the source; keys and values of the source are computed once per text."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.head_width, self.value_width = config.head_width, config.value_width
        self.ask = Linear(config.width, self.heads * self.head_width, bias=config.bias)
        self.read = Linear(config.width, self.kv_heads * (self.head_width + self.value_width), bias=config.bias)
        self.write = Linear(self.heads * self.value_width, config.width, bias=config.bias)
        self.mechanism, self.dropped = Attention(config.attention()), config.attention_dropout

    def forward(self, u: Cloud, memory: Memory, across: Mask | None = None, cache: LayerCache | None = None) -> Cloud:
        q = apart(self.ask(u), self.head_width)
        k, v = self.remember(memory) if cache is None else cache.remember(lambda: self.remember(memory))
        mechanism = dropping(self.mechanism.current(), self.dropped if self.training else 0.0)
        return self.write(attend(mechanism, q, k, v, across, None).transpose(1, 2).flatten(2))

    def remember(self, memory: Memory) -> tuple[Remembered, RememberedAnswers]:
        widths = self.kv_heads * self.head_width, self.kv_heads * self.value_width
        k, v = self.read(memory).split(widths, dim=-1)
        return apart(k, self.head_width), apart(v, self.value_width)


def attend(
    mechanism: Mechanism,
    q: PerHead,
    k: Remembered,
    v: RememberedAnswers,
    mask: Mask | None,
    position: Position | None,
) -> Float[Tensor, "b h n e"]:
    """The mechanism under a mask, with a position that adds a bias where there is one."""
    return (mechanism if position is None else with_parts(mechanism, position=position)).attend(q, k, v, mask)


def dropping(mechanism: Mechanism, share: float) -> Mechanism:
    """The mechanism with a share of its weights dropped: while it trains."""
    return with_parts(mechanism, normaliser=mechanism.normaliser.dropping(share)) if share else mechanism


class FFN(nn.Module):
    """act(u W + b) W' + b', act = ReLU or GELU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.read = Linear(config.width, config.hidden, bias=config.bias)
        self.write = Linear(config.hidden, config.width, bias=config.bias)
        self.act = nn.ReLU() if config.ffn == "relu" else nn.GELU(approximate="tanh")

    def forward(self, u: Cloud) -> Cloud:
        return self.write(self.act(self.read(u)))


class GatedFFN(nn.Module):
    """(silu(u W) * u V) W' (SwiGLU, arXiv:2002.05202); W and V are one matrix."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.read = Linear(config.width, 2 * config.hidden, bias=config.bias)
        self.write = Linear(config.hidden, config.width, bias=config.bias)

    def forward(self, u: Cloud) -> Cloud:
        gate, up = self.read(u).chunk(2, -1)
        return self.write(functional.silu(gate) * up)


def dropout(config: Config) -> nn.Module:
    """Dropout, or nothing to call where there is none."""
    return nn.Dropout(config.dropout) if config.dropout else nn.Identity()


def norm(config: Config) -> nn.Module:
    """x̂ with a gain: RMSNorm, LayerNorm, or nothing."""
    if config.norm == "none":
        return nn.Identity()
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=config.eps)
    return nn.LayerNorm(config.width, eps=config.eps, bias=config.bias)


SPREAD = 0.02
"""Standard deviation of initial weights (GPT-2)."""


@final
class Linear(nn.Linear):
    """Torch's, but that it starts as GPT-2's do: N(0, .02²), biases 0."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=SPREAD)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


@final
class Embedding(nn.Embedding):
    """Torch's, but that it starts as GPT-2's do: N(0, .02²)."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=SPREAD)


def unembedding(config: Config, embedding: nn.Embedding) -> Linear:
    """Points to logits: the embedding itself where the two are tied."""
    made = Linear(config.width, 0 if config.tied else config.vocabulary, bias=False)
    if config.tied:  # no weights of its own are drawn
        made.weight, made.out_features = embedding.weight, config.vocabulary
    return made


@torch.no_grad()
def calm_writers(model: nn.Module) -> None:
    """What writes to the stream starts smaller, by 1/√(number of writers): the stream's size does not grow with depth."""
    writers = [m.write for m in model.modules() if isinstance(m, SelfAttention | CrossAttention | FFN | GatedFFN)]
    for writer in writers:
        writer.weight.mul_(1 / math.sqrt(len(writers)))


def parameter_count(model: nn.Module, embedding: bool = True) -> int:
    """How many numbers are trained; tied matrices count once."""
    counted = {id(p): p.numel() for p in model.parameters()}
    held = {id(p): p.numel() for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    return sum(counted.values()) - (0 if embedding else sum(held.values()))


def _there(real: Bool[Tensor, "b n"] | None) -> Mask | None:
    return None if real is None else Padding(real)

"""A Transformer of this project seen as operators on E: the same View, Trace and edits as any other model.

A Translator is seen as two of them, linked by cross attention.

W_Q, W_K, W_V    rows of the fused projection        W_O, b_O    the output projection, times `branch`
mechanism        the module's own, with its mask, and its position where that stands between tokens
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rheoscope.attention.mechanism import Masked, Mechanism
from rheoscope.attention.position import Position
from rheoscope.models.config import Config
from rheoscope.models.pairs import END, SPECIALS, START
from rheoscope.models.transformer import (
    Block,
    CrossAttention,
    SelfAttention,
    Stack,
    Translator,
    Turn,
    rotary_tables,
)
from rheoscope.shapes import RheoscopeError
from rheoscope.space import certificate
from rheoscope.space.certificate import Certificate, probe
from rheoscope.space.crossing import Crossing
from rheoscope.space.editing import by_layer
from rheoscope.space.head import Heads, Norm, Turned
from rheoscope.space.linked import Linked, Pairing
from rheoscope.space.model import Edits, LayerEdit
from rheoscope.space.running import Running
from rheoscope.space.shared_change import Undo, set_method, shared_change
from rheoscope.space.step import EMBED, Step
from rheoscope.space.stream import Description, Tap, post_norm_taps, pre_norm_taps
from rheoscope.space.trace import Trace
from rheoscope.space.view import View
from rheoscope.space.weights import check_weights, fingerprint

Rows = list[tuple[Tensor, Tensor | None]]
"""Weights (g, d, k) and biases (g, k) of queries, of keys and of values."""
Project = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
Weigh = Callable[[list[Tensor], Any, tuple[Any, ...], Tensor], None]
Both = tuple[Int[Tensor, "b s"], Int[Tensor, "b t"]]


class Ours(Running):
    """What both kinds of models of this project share: how heads are edited and how text becomes ids."""

    def editing(self, edit: Edits) -> AbstractContextManager[None]:
        return editing(self.said, edit)

    def encode(self, text: str) -> list[int]:
        try:
            return list(self.tokenizer.encode(text).ids)
        except Exception as error:  # the library raises Exception itself
            raise RheoscopeError(
                f"the tokenizer cannot read this text ({error}); type a text of the characters it was made from"
            ) from error

    def decode(self, token: int) -> str:
        return str(self.tokenizer.decode([token], skip_special_tokens=False))


@dataclass(frozen=True, eq=False)
class Trained(Ours):
    """A Transformer of this project, its tokenizer, its description and its View. `rheoscope.load` makes one."""

    def call(self, ids: Int[Tensor, "b n"], real: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b n vocabulary"]:
        return self.network(ids, real)

    def pass_through(self, ids: Int[Tensor, "b n"], real: Bool[Tensor, "b n"] | None) -> None:
        self.network.stack(ids, real)


@dataclass(frozen=True, eq=False)
class Translating(Ours, Pairing):
    """A Translator of this project: its decoder as `view`, its encoder as `encoder`. `rheoscope.load` makes one.

    A source is its tokens and ``<|end|>``, a target ``<|start|>`` and its tokens, as it was trained.
    """

    def call(self, ids: Both, real: Bool[Tensor, "b s"] | None) -> Float[Tensor, "b t vocabulary"]:
        return self.network(*ids, real)

    def pass_through(self, ids: Both, real: Bool[Tensor, "b s"] | None) -> None:
        self.network.decoder(ids[1], None, None, self.network.encoder(ids[0], real), real)

    def encode_source(self, text: str) -> list[int]:
        return [*super().encode(text.strip()), self._special(END)]

    def encode(self, text: str) -> list[int]:
        return [self._special(START), *super().encode(text.strip())]

    def _special(self, at: int) -> int:
        if self.tokenizer.token_to_id(SPECIALS[at]) != at:
            raise RheoscopeError(f"this tokenizer has no {SPECIALS[at]} with id {at}; type token ids (source, target)")
        return at


def seen(network: Any, tokenizer: Any, name: str) -> Trained | Translating:
    """The model with its View, not yet certified."""
    check_weights(network)
    if isinstance(network, Translator):
        source = describe(network.encoder)
        target = describe(network.decoder, source.final_norm)
        far = view_of(source, network.encoder.config, None, facts(network.encoder, name))
        near = view_of(target, network.config, network.unembed, facts(network, name))
        return Translating(network, _library(tokenizer), target, near, source, far)
    said = describe(network.stack)
    view = view_of(said, network.config, network.unembed, facts(network, name))
    return Trained(network, _library(tokenizer), said, view)


def view_of(said: Description, config: Config, unembed: nn.Linear | None, facts: dict[str, Any]) -> View:
    """The View of a stack; the encoder of a Translator has no unembedding."""
    return View(
        blocks=said.blocks,
        embed=_scaled(said.embed.weight, math.sqrt(config.width) if config.scaled_embedding else 1.0),
        unembed=None if unembed is None else unembed.weight.T,
        final_norm=said.final_norm,
        mlps=said.mlps,
        facts=facts,
        crossing=said.crossing,
    )


def facts(network: Any, name: str) -> dict[str, Any]:
    """Where a result comes from: stored with everything that is computed."""
    config, weight = network.config, next(network.parameters())
    return {
        "model": name,
        "type": "rheoscope",
        "family": config.form,
        "mechanism": config.mechanism,
        "weights": fingerprint(network, config.function()),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": str(weight.device),
        "context": config.context,
        "logit_cap": None,
    }


def describe(stack: Stack, memory: Norm | None = None) -> Description:
    """Taps and operators of a stack, with cross attention where it reads a `memory` behind that norm."""
    blocks: list[Any] = list(stack.blocks)
    crossed = [] if memory is None else blocks
    return Description(
        start=Tap(EMBED, blocks[0], "in"),
        layers=taps_of(blocks, stack.config, memory is not None),
        blocks=tuple(heads(block, stack) for block in blocks),
        attentions=tuple(block.attention for block in blocks),
        mlps=tuple(partial(mlp, block) for block in blocks),
        embed=stack.embed,
        final_norm=norm_of(stack.norm),
        encoder=not stack.causal,
        crossing=tuple(Crossing(cross_heads(block), memory or Norm()) for block in crossed),
        crosses=tuple(block.cross for block in crossed),
    )


def taps_of(blocks: list[Any], config: Config, crossed: bool) -> tuple[tuple[Tap, ...], ...]:
    """Half-layers; cross attention is a step of its own between attention and FFN."""
    if config.placement == "post":
        layers = [post_norm_taps(i, block, block.norm_attention, block.norm_ffn) for i, block in enumerate(blocks)]
        return tuple((*x[:2], *_cross_taps(i, blocks[i]), *x[2:]) if crossed else x for i, x in enumerate(layers))
    middle = "norm_cross" if crossed else "norm_ffn"
    halves = pre_norm_taps(blocks, middle, "attention", config.branch)
    return tuple((x[0], *_cross_taps(i, blocks[i]), x[1]) if crossed else x for i, x in enumerate(halves))


def _cross_taps(layer: int, block: Any) -> tuple[Tap, ...]:
    crossed = Step(layer, "resid_cross")
    if block.pre:
        return (Tap(crossed, block.norm_ffn, "in", writer=block.cross, share=block.branch),)
    return Tap(Step(layer, "cross_sum"), block.norm_cross, "in"), Tap(crossed, block.norm_cross, "out")


def heads(block: Any, stack: Any) -> Heads:
    """The heads of self attention of a block."""
    attention: SelfAttention = block.attention
    rows = per_head(attention.read, attention.head_width, attention.heads, attention.kv_heads, attention.kv_heads)
    return _heads(block, attention, rows, mechanism_of(attention, stack), attention.project, block.norm_attention)


def cross_heads(block: Any) -> Heads:
    """The heads of cross attention of a block, behind the norm of the target."""
    cross: CrossAttention = block.cross
    asking = per_head(cross.ask, cross.head_width, cross.heads)
    rows = asking + per_head(cross.read, cross.head_width, cross.kv_heads, cross.kv_heads)
    return _heads(block, cross, rows, cross.mechanism.current(), partial(projected, cross), block.norm_cross)


def projected(cross: CrossAttention, u: Float[Tensor, "b n d"]) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one cloud: q counts where it is the target's, k and v where it is the source's."""
    q = cross.ask(u).unflatten(-1, (-1, cross.head_width)).transpose(1, 2)
    return q, *cross.remember(u)


def per_head(read: nn.Linear, width: int, *counts: int) -> Rows:
    """The weights (g, d, k) and biases (g, k) of queries, keys or values that one projection holds, one after another."""
    weights = read.weight.unflatten(0, (-1, width)).mT.split(counts)
    biases = [None] * len(counts) if read.bias is None else read.bias.unflatten(0, (-1, width)).split(counts)
    return list(zip(weights, biases, strict=True))


def _heads(block: Any, attention: Any, rows: Rows, mechanism: Mechanism, project: Project, norm: nn.Module) -> Heads:
    """Heads from their parts; what `branch` multiplies is folded into W_O and b_O."""
    (W_Q, b_Q), (W_K, b_K), (W_V, b_V) = rows
    return Heads(
        W_Q,
        W_K,
        W_V,
        _scaled(attention.write.weight.T.unflatten(0, (attention.heads, -1)), block.branch),
        scale_of(mechanism, W_Q),
        mechanism,
        project,
        b_Q,
        b_K,
        b_V,
        None if attention.write.bias is None else _scaled(attention.write.bias, block.branch),
        norm_of(norm) if block.pre else Norm(),
    )


def mechanism_of(attention: SelfAttention, stack: Stack) -> Mechanism:
    """The module's own mechanism, with what the stack gives to every call: the rotation or the bias between tokens."""
    rotary = stack.place.kind == "rotary"
    position = Turned(partial(turn, stack)) if rotary else stack.place.between() or Position()
    return replace(attention.mechanism.current(), position=position)


def turn(stack: Stack, x: Float[Tensor, "b h n k"], at: Int[Tensor, " n"]) -> Float[Tensor, "b h n k"]:
    """x at positions `at`, by the module's own tables; beyond the longest text, by tables of the same formula."""
    cos, sin, longest = stack.place.cos, stack.place.sin, int(at.max()) + 1
    if longest > len(cos):
        cos, sin = (table.to(x.device) for table in rotary_tables(longest, x.shape[-1], stack.config.base))
    return Turn(cos[at], sin[at])(x)


def scale_of(mechanism: Mechanism, like: Tensor) -> float:
    """What M multiplies its products by: 1/√k, or 2 · scale of a metric; 1 where a score is no dot product at all."""
    one = like.new_zeros(1, 1, 1, like.shape[-1])
    form = mechanism.score.dot(one, one)
    return 1.0 if form is None else form.scale


def norm_of(module: Any) -> Norm:
    """RMSNorm, LayerNorm or nothing, as the space knows them."""
    if isinstance(module, nn.LayerNorm):
        return Norm(module, module.weight, module.bias, module.eps, centred=True)
    return Norm(module, module.weight, None, module.eps) if isinstance(module, nn.RMSNorm) else Norm()


def mlp(block: Block, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
    """What the FFN of a block adds to every token."""
    u = block.norm_ffn(x) if block.pre else x
    return block.branch * block.ffn(u.reshape(1, -1, u.shape[-1])).reshape(x.shape)


def _scaled(W: Tensor, by: float) -> Tensor:
    return W if by == 1 else by * W.detach()  # the module's own tensor wherever it can be


def _library(tokenizer: Any) -> Any:
    """The tokenizer of the tokenizers library, also where one of transformers is wrapped around it."""
    return getattr(tokenizer, "backend_tokenizer", tokenizer)


# Edited heads


@dataclass(frozen=True, eq=False)
class Edited(Mechanism):
    """A mechanism whose heads are computed as ever, and then changed as their edit says."""

    edit: LayerEdit = lambda q, k, v, mechanism, out: out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None, lowering: str | None = None) -> Tensor:
        own = Mechanism(self.score, self.mask, self.position, self.normaliser, self.value).under(mask)
        return self.edit(q, k, v, own, own.attend(q, k, v, lowering=lowering))


_edits: ContextVar[Mapping[nn.Module, LayerEdit]] = ContextVar("edits of this thread", default=MappingProxyType({}))


@contextmanager
def editing(said: Description, edit: Edits) -> Iterator[None]:
    """Inside, and in this thread alone, heads (layer, head) or whole layers are computed by their edits."""
    attentions: Sequence[Any] = said.attentions
    edits = {attentions[layer].mechanism: change for layer, change in by_layer(said.blocks, edit).items()}
    with ExitStack() as stack:
        for attention in edits:
            stack.enter_context(shared_change((attention, "current"), partial(_asking_first, attention)))
        stack.callback(_edits.reset, _edits.set({**_edits.get(), **edits}))
        yield


def _asking_first(attention: Any) -> Undo:
    """`current()` of one module, which every forward asks for its mechanism, answers threads that edit with the edited one."""
    own = attention.current

    def current() -> Mechanism:
        now, change = own(), _edits.get().get(attention)
        return now if change is None else Edited(now.score, now.mask, now.position, now.normaliser, now.value, change)

    return set_method(attention, "current", current)


# The certificate


def certify(model: Trained | Translating) -> Certificate:
    """The View against the running modules on eight tokens; refused where they differ."""
    ids = probe(model.view)
    if isinstance(model, Trained):
        return certificate.certify(*attended(model, ids))
    return certify_linked(model, ids)


def attended(model: Trained, ids: Int[Tensor, " n"]) -> tuple[Trace, list[Float[Tensor, "h n n"]]]:
    """One run: its points, and the weights of every layer by the module itself."""
    with weighing(model.said.attentions, _weigh) as own:
        return model.trace(ids), own


def certify_linked(model: Translating, ids: Int[Tensor, " n"]) -> Certificate:
    """The encoder, the decoder and cross attention between them, in one run on a source and its tokens backwards."""
    with (
        weighing(model.said_of_source.attentions, _weigh) as source,
        weighing(model.said.attentions, _weigh) as target,
        weighing(model.said.crosses, _weigh_across) as across,
    ):
        linked: Linked = model.trace((ids, ids.flip(0)[: max(1, len(ids) - 2)]))
    return certificate.together(
        [
            certificate.certify(linked.source, source),
            certificate.certify(linked.target, target),
            certificate.certify_across(linked.target, across),
        ]
    )


@contextmanager
def weighing(modules: Sequence[nn.Module], weigh: Weigh) -> Iterator[list[Tensor]]:
    """While a model runs, the weights of every layer by the module itself, from what it was given in that run."""
    own: list[Tensor] = []
    with ExitStack() as stack, torch.no_grad():
        for module in modules:
            stack.callback(module.register_forward_hook(partial(weigh, own)).remove)
        yield own


def _weigh_across(own: list[Tensor], cross: Any, args: tuple[Any, ...], out: Tensor) -> None:
    u, memory, mask, *_ = args
    own.append(cross.mechanism.current().weights(projected(cross, u)[0], cross.remember(memory)[0], mask)[0])


def _weigh(own: list[Tensor], attention: Any, args: tuple[Any, ...], out: Tensor) -> None:
    u, mask, turning, position, *_ = args
    q, k, _ = attention.project(u, turning)
    mechanism = attention.mechanism.current()
    own.append((mechanism if position is None else replace(mechanism, position=position)).weights(q, k, mask)[0])

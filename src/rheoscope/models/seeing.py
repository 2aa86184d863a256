"""A Transformer of this project seen as operators on E: the same View, Trace and edits as any other model.

W_Q, W_K, W_V    rows of the fused projection        W_O, b_O    the output projection, times `branch`
mechanism        the module's own, with its mask, and its position where that stands between tokens
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rheoscope.attention.mask import as_mask
from rheoscope.attention.mechanism import Masked, Mechanism
from rheoscope.attention.position import Position
from rheoscope.models.transformer import Block, SelfAttention, Stack, Transformer, Translator, Turn, rotary_tables
from rheoscope.shapes import RheoscopeError
from rheoscope.space import certificate
from rheoscope.space.certificate import Certificate, probe
from rheoscope.space.editing import by_layer
from rheoscope.space.head import Heads, Norm, Turned, of_head
from rheoscope.space.model import Edit
from rheoscope.space.running import Running
from rheoscope.space.stream import Description, Tap, post_norm_taps, pre_norm_taps
from rheoscope.space.trace import Trace
from rheoscope.space.view import View
from rheoscope.space.weights import check_weights, fingerprint


@dataclass(frozen=True, eq=False)
class Trained(Running):
    """A Transformer of this project, its tokenizer, its description and its View. `rheoscope.load` makes one."""

    def call(self, ids: Int[Tensor, "b n"], real: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b n vocabulary"]:
        return self.network(ids, real)

    def pass_through(self, ids: Int[Tensor, "b n"], real: Bool[Tensor, "b n"] | None) -> None:
        self.network.stack(ids, real)

    def editing(self, edit: Mapping[tuple[int, int], Edit]) -> AbstractContextManager[None]:
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


def seen(network: Any, tokenizer: Any, name: str) -> Trained:
    """The model with its View, not yet certified."""
    if isinstance(network, Translator):
        raise RheoscopeError(
            "an encoder-decoder is trained and generates, but has no View yet; type the directory of a decoder or an encoder"
        )
    check_weights(network)
    said, config = describe(network), network.config
    table = network.stack.embed.weight
    view = View(
        blocks=said.blocks,
        embed=_scaled(table, math.sqrt(config.width) if config.scaled_embedding else 1.0),
        unembed=network.unembed.weight.T,
        final_norm=said.final_norm,
        mlps=said.mlps,
        facts=facts(network, name),
    )
    return Trained(network, _library(tokenizer), said, view)


def facts(network: Any, name: str) -> dict[str, Any]:
    """Where a result comes from: stored with everything that is computed."""
    config, weight = network.config, next(network.parameters())
    return {
        "model": name,
        "type": "rheoscope",
        "family": config.form,
        "mechanism": config.mechanism,
        "weights": fingerprint(network, json.dumps(asdict(config))),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": str(weight.device),
        "context": config.context,
        "logit_cap": None,
    }


def describe(network: Transformer) -> Description:
    """Taps and operators of a Transformer."""
    stack, config = network.stack, network.config
    blocks: list[Any] = list(stack.blocks)
    before = config.placement == "pre"
    after = tuple(post_norm_taps(i, block, block.norm_attention, block.norm_ffn) for i, block in enumerate(blocks))
    return Description(
        start=Tap("embed", blocks[0], "in"),
        layers=pre_norm_taps(blocks, "norm_ffn", "attention", config.branch) if before else after,
        blocks=tuple(heads(block, stack) for block in blocks),
        attentions=tuple(block.attention for block in blocks),
        mlps=tuple(partial(mlp, block) for block in blocks),
        embed=stack.embed,
        final_norm=norm_of(stack.norm),
        encoder=config.form == "encoder",
    )


def heads(block: Any, stack: Any) -> Heads:
    """The heads of a block; what `branch` multiplies is folded into W_O and b_O."""
    attention: SelfAttention = block.attention
    counts = attention.heads, attention.kv_heads, attention.kv_heads
    W_Q, W_K, W_V = attention.read.weight.unflatten(0, (-1, attention.head_width)).mT.split(counts)
    bias = attention.read.bias
    b_Q, b_K, b_V = (None,) * 3 if bias is None else bias.unflatten(0, (-1, attention.head_width)).split(counts)
    mechanism = mechanism_of(attention, stack)
    return Heads(
        W_Q,
        W_K,
        W_V,
        _scaled(attention.write.weight.T.unflatten(0, (attention.heads, -1)), block.branch),
        scale_of(mechanism, W_Q),
        mechanism,
        attention.project,
        b_Q,
        b_K,
        b_V,
        None if attention.write.bias is None else _scaled(attention.write.bias, block.branch),
        norm_of(block.norm_attention) if block.pre else Norm(),
    )


def mechanism_of(attention: SelfAttention, stack: Stack) -> Mechanism:
    """The module's own mechanism, with what the stack gives to every call: mask, and rotation or bias between tokens."""
    rotary = stack.place.kind == "rotary"
    position = Turned(partial(turn, stack)) if rotary else stack.place.between() or Position()
    return replace(attention.mechanism.current(), position=position).under(as_mask("causal" if stack.causal else None))


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
    """A mechanism whose heads are computed as ever, and then some of them replaced by what their edits say."""

    edits: Mapping[int, Edit] = field(default_factory=dict)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None, lowering: str | None = None) -> Tensor:
        own = Mechanism(self.score, self.mask, self.position, self.normaliser, self.value).under(mask)
        out, size = own.attend(q, k, v, lowering=lowering).clone(), q.shape[1] // k.shape[1]
        for head, change in self.edits.items():
            its, group = slice(head, head + 1), slice(head // size, head // size + 1)
            out[:, its] = change(q[:, its], k[:, group], v[:, group], of_head(own, head)).to(out.dtype)
        return out


@contextmanager
def editing(said: Description, edit: Mapping[tuple[int, int], Edit]) -> Iterator[None]:
    """Inside, heads (layer, head) are computed by their edits; every mechanism is its own again on exit."""
    with ExitStack() as stack:
        for layer, edits in by_layer(said.blocks, edit).items():
            stack.enter_context(_edited(said.attentions[layer].mechanism, edits))
        yield


@contextmanager
def _edited(attention: Any, edits: Mapping[int, Edit]) -> Iterator[None]:
    """`current()` of one module, which every forward asks for its mechanism, answers with the edited one."""
    own, held = attention.current, vars(attention).get("current")

    def current() -> Mechanism:
        now = own()
        return Edited(now.score, now.mask, now.position, now.normaliser, now.value, edits)

    vars(attention)["current"] = current
    try:
        yield
    finally:
        del vars(attention)["current"]
        if held is not None:
            vars(attention)["current"] = held


# The certificate


def certify(model: Trained) -> Certificate:
    """The View against the running modules on eight tokens; refused where they differ."""
    return certificate.certify(*attended(model, probe(model.view)))


@torch.no_grad()
def attended(model: Trained, ids: Int[Tensor, " n"]) -> tuple[Trace, list[Float[Tensor, "h n n"]]]:
    """One run: its points, and the weights of every layer by the module itself, from what it was given in that run."""
    own: list[Tensor] = []
    with ExitStack() as stack:
        for attention in model.said.attentions:
            stack.callback(attention.register_forward_hook(partial(_weigh, own)).remove)
        trace = model.trace(ids)
    return trace, own


def _weigh(own: list[Tensor], attention: Any, args: tuple[Any, ...], out: Tensor) -> None:
    u, mask, turning, position, *_ = args
    q, k, _ = attention.project(u, turning)
    mechanism = attention.mechanism.current()
    own.append((mechanism if position is None else replace(mechanism, position=position)).weights(q, k, mask)[0])

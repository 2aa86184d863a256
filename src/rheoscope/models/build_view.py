"""From a Transformer of this project to its View: the same operators on E as of any other model.

A Translator is described as two of them, linked by cross attention.

W_Q, W_K, W_V    what the projection does to the axes        W_O, b_O    the output projection, times `branch`
mechanism        the module's own, with its mask, and its position where that stands between tokens
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.attention.mechanism import Mechanism
from rheoscope.models.config import Config
from rheoscope.models.projections import Factors, apart
from rheoscope.models.trained_model import Trained, Translating
from rheoscope.models.transformer import (
    Block,
    CrossAttention,
    SelfAttention,
    Stack,
    Translator,
)
from rheoscope.running.half_precision import in_float32, words_in_float32
from rheoscope.running.loading_stages import Progress
from rheoscope.running.stream import Description, Tap, post_norm_taps, pre_norm_taps
from rheoscope.running.weight_files import check_weights, fingerprint
from rheoscope.space.cross_attention import Crossing
from rheoscope.space.head import Heads, Norm
from rheoscope.space.step import EMBED, Step
from rheoscope.space.view import View

Project = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def described(network: Any, tokenizer: Any, name: str, progress: Progress | None = None) -> Trained | Translating:
    """The model with its View, not yet certified."""
    check_weights(network)
    if isinstance(network, Translator):
        source = describe(network.encoder)
        target = describe(network.decoder, source.final_norm)
        far = view_of(source, network.encoder, None, facts(network.encoder, name))
        near = view_of(target, network.decoder, network.unembed, facts(network, name, progress))
        return Translating(network, _library(tokenizer), target, near, source, far)
    description = describe(network.stack)
    view = view_of(description, network.stack, network.unembed, facts(network, name, progress))
    return Trained(network, _library(tokenizer), description, view)


def view_of(description: Description, stack: Stack, unembed: nn.Linear | None, facts: dict[str, Any]) -> View:
    """The View of a stack; the encoder of a Translator has no unembedding."""
    embed, read_out = words_in_float32(stack.embed.weight, None if unembed is None else unembed.weight.T)
    return View(
        blocks=description.blocks,
        embed=embed,
        embed_scale=stack.scale,
        unembed=read_out,
        final_norm=description.final_norm,
        mlps=description.mlps,
        context=stack.config.context,
        facts=facts,
        crossing=description.crossing,
        dtype=stack.embed.weight.dtype,
    )


def facts(network: Any, name: str, progress: Progress | None = None) -> dict[str, Any]:
    """Where a result comes from: stored with everything that is computed."""
    config, weight = network.config, next(network.parameters())
    return {
        "model": name,
        "type": "rheoscope",
        "family": config.form,
        "mechanism": config.mechanism,
        "weights": fingerprint(network, config.function(), progress),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": str(weight.device),
    }


def describe(stack: Stack, memory: Norm | None = None) -> Description:
    """Taps and operators of a stack, with cross attention where it reads a `memory` behind that norm."""
    blocks: list[Any] = list(stack.blocks)
    crossed = [] if memory is None else blocks
    own = Description(
        start=Tap(EMBED, blocks[0], "in"),
        layers=taps_of(blocks, stack.config, memory is not None),
        blocks=tuple(heads(block, stack) for block in blocks),
        attentions=tuple(block.attention for block in blocks),
        projections=tuple(block.attention.write for block in blocks),
        mlps=tuple(partial(mlp, block) for block in blocks),
        embed=stack.embed,
        final_norm=norm_of(stack.norm),
        encoder=not stack.causal,
        crossing=tuple(Crossing(cross_heads(block), memory or Norm()) for block in crossed),
        crosses=tuple(block.cross for block in crossed),
    )
    return in_float32(own)


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
    factors, mechanism = attention.projection.factors(attention.read), mechanism_of(attention, stack)
    made = _heads(block, attention.write, factors, mechanism, attention.project, block.norm_attention)
    gated = attention.gate(factors[0][0].new_zeros(1, 1, stack.config.width)) is not None
    return replace(made, gate=partial(gates, attention, made.norm)) if gated else made


def gates(attention: SelfAttention, norm: Norm, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n 1"]:
    """What multiplies the outputs of gated heads, from the stream."""
    found = attention.gate(norm.own(x))
    assert found is not None
    return found


def cross_heads(block: Any) -> Heads:
    """The heads of cross attention of a block, behind the norm of the target."""
    cross: CrossAttention = block.cross
    asking = per_head(cross.ask, (cross.heads, cross.head_width))
    rows = asking + per_head(cross.read, (cross.kv_heads, cross.head_width), (cross.kv_heads, cross.value_width))
    return _heads(block, cross.write, rows, cross.mechanism.current(), partial(projected, cross), block.norm_cross)


def projected(cross: CrossAttention, u: Float[Tensor, "b n d"]) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one cloud: q counts where it is the target's, k and v where it is the source's."""
    return apart(cross.ask(u), cross.head_width), *cross.remember(u)


def per_head(read: nn.Linear, *parts: tuple[int, int]) -> Factors:
    """The weights (g, d, k) and biases (g, k) of queries, keys or values that one projection holds, one after another.

    `parts` are the number of heads and their width for each of them.
    """
    sizes = [count * width for count, width in parts]
    biases = [None] * len(parts) if read.bias is None else read.bias.split(sizes)
    return [
        (W.unflatten(0, part).mT, None if b is None else b.unflatten(0, part))
        for W, b, part in zip(read.weight.split(sizes), biases, parts, strict=True)
    ]


def _heads(
    block: Any, write: nn.Linear, rows: Factors, mechanism: Mechanism, project: Project, norm: nn.Module
) -> Heads:
    """Heads from their parts; what `branch` multiplies is folded into W_O and b_O."""
    (W_Q, b_Q), (W_K, b_K), (W_V, b_V) = rows
    return Heads(
        W_Q,
        W_K,
        W_V,
        _scaled(write.weight.T.unflatten(0, (len(W_Q), -1)), block.branch),
        scale_of(mechanism, W_Q),
        mechanism,
        project,
        b_Q,
        b_K,
        b_V,
        None if write.bias is None else _scaled(write.bias, block.branch),
        norm_of(norm) if block.pre else Norm(),
    )


def mechanism_of(attention: SelfAttention, stack: Stack) -> Mechanism:
    """The module's own mechanism, with what the stack gives to every call: the rotation or the bias between tokens."""
    return replace(attention.mechanism.current(), position=stack.place.position())


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

"""The View of a model of this project: its heads as operators on E, its norms, MLPs and hook points.

A Translator is described as two stacks that cross attention links. The matrices of a head are:

W_Q, W_K, W_V    the images of the axes under the projection
W_O, b_O         the output projection, multiplied by the factor of updates and by a learned gain
mechanism        the mechanism of the module, with its mask and with the position encoding that acts on pairs of tokens
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.attention.mechanism import Mechanism
from rheoscope.messages.message import Message
from rheoscope.models.config import Config
from rheoscope.models.projection import Factors, separate_projections
from rheoscope.models.residual_branches import BranchGain
from rheoscope.models.trained_model import NativeTransformer, NativeTranslator
from rheoscope.models.transformer import (
    Block,
    CrossAttention,
    SelfAttention,
    Stack,
    Translator,
)
from rheoscope.running.eval_mode import description_in_eval_mode
from rheoscope.running.half_precision import description_in_float32, embeddings_in_float32
from rheoscope.running.loading_stages import Progress
from rheoscope.running.stream import ModelDescription, Tap, post_norm_taps, pre_norm_taps
from rheoscope.running.weight_files import check_weights, fingerprint
from rheoscope.shapes import RheoscopeError
from rheoscope.space.cross_attention import CrossHeads
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import Norm
from rheoscope.space.step import EMBED, Step
from rheoscope.space.view import View

Project = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def describe_model(
    network: Any, tokenizer: Any, name: str, progress: Progress | None = None
) -> NativeTransformer | NativeTranslator:
    """The model with its View, before certification."""
    check_weights(network)
    if isinstance(network, Translator):
        source = description_in_eval_mode(describe_stack(network.encoder), network)
        target = description_in_eval_mode(describe_stack(network.decoder, source.final_norm), network)
        source_view = build_view(source, network.encoder, None, model_facts(network.encoder, name))
        target_view = build_view(target, network.decoder, network.unembed, model_facts(network, name, progress))
        return NativeTranslator(network, _backend_tokenizer(tokenizer), target, target_view, source, source_view)
    description = description_in_eval_mode(describe_stack(network.stack), network)
    view = build_view(description, network.stack, network.unembed, model_facts(network, name, progress))
    return NativeTransformer(network, _backend_tokenizer(tokenizer), description, view)


def build_view(description: ModelDescription, stack: Stack, unembed: nn.Linear | None, facts: dict[str, Any]) -> View:
    """The View of a stack. The encoder of a Translator has no unembedding."""
    embed, unembed_matrix = embeddings_in_float32(stack.embed.weight, None if unembed is None else unembed.weight.T)
    return View(
        layer_heads=description.layer_heads,
        embed=embed,
        embed_scale=stack.scale,
        unembed=unembed_matrix,
        final_norm=description.final_norm,
        mlps=description.mlps,
        context_length=stack.config.context,
        facts=facts,
        cross_heads=description.cross_heads,
        dtype=stack.embed.weight.dtype,
    )


def model_facts(network: Any, name: str, progress: Progress | None = None) -> dict[str, Any]:
    """The provenance of a model, stored with every result."""
    config, weight = network.config, next(network.parameters())
    return {
        "model": name,
        "type": "rheoscope",
        "family": config.form,
        "mechanism": config.mechanism,
        "weights": fingerprint(network, config.function_key(), progress),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": str(weight.device),
    }


def describe_stack(stack: Stack, memory_norm: Norm | None = None) -> ModelDescription:
    """The hook points and heads of a stack. With `memory_norm`, the norm of the source, cross attention is included."""
    blocks: list[Any] = list(stack.blocks)
    cross_blocks = [] if memory_norm is None else blocks
    description = ModelDescription(
        embed_tap=Tap(EMBED, blocks[0], "in"),
        layer_taps=layer_taps(blocks, stack.config, memory_norm is not None),
        layer_heads=tuple(self_attention_heads(block, stack) for block in blocks),
        attention_modules=tuple(block.attention for block in blocks),
        output_projections=tuple(block.attention.write for block in blocks),
        mlps=tuple(partial(mlp_update, block) for block in blocks),
        embedding=stack.embed,
        final_norm=as_norm(stack.norm),
        is_encoder=not stack.causal,
        cross_heads=tuple(CrossHeads(cross_attention_heads(block), memory_norm or Norm()) for block in cross_blocks),
        cross_attention_modules=tuple(block.cross for block in cross_blocks),
    )
    return description_in_float32(description)


def layer_taps(blocks: list[Any], config: Config, has_cross: bool) -> tuple[tuple[Tap, ...], ...]:
    """The hook points of each half-layer. Cross attention is a step of its own between attention and FFN."""
    if config.placement == "post":
        layers = [post_norm_taps(i, block, block.norm_attention, block.norm_ffn) for i, block in enumerate(blocks)]
        return tuple(
            (*taps[:2], *_cross_taps(i, blocks[i]), *taps[2:]) if has_cross else taps for i, taps in enumerate(layers)
        )
    middle_norm = "norm_cross" if has_cross else "norm_ffn"
    half_layers = [
        (replace(middle, writer=branch_writer(block, "attention"), writer_scale=block.update_scale), end)
        for block, (middle, end) in zip(blocks, pre_norm_taps(blocks, middle_norm, "attention"), strict=True)
    ]
    return tuple(
        (taps[0], *_cross_taps(i, blocks[i]), taps[1]) if has_cross else taps for i, taps in enumerate(half_layers)
    )


def branch_writer(block: Any, name: str) -> nn.Module:
    """The last module of a branch: its end, or the sublayer itself if the end does nothing."""
    end: nn.Module = getattr(block, f"end_{name}")
    sublayer: nn.Module = getattr(block, name)
    return sublayer if isinstance(end, nn.Identity) else end


def _cross_taps(layer: int, block: Any) -> tuple[Tap, ...]:
    cross_step = Step(layer, "resid_cross")
    if block.is_pre_norm:
        return (
            Tap(
                cross_step, block.norm_ffn, "in", writer=branch_writer(block, "cross"), writer_scale=block.update_scale
            ),
        )
    return Tap(Step(layer, "cross_sum"), block.norm_cross, "in"), Tap(cross_step, block.norm_cross, "out")


def self_attention_heads(block: Any, stack: Any) -> Heads:
    """The self-attention heads of a block."""
    attention: SelfAttention = block.attention
    if not isinstance(attention, SelfAttention):
        raise RheoscopeError(
            Message("{name} comes from a file and has no description as M and F", name=stack.config.attention)
        )
    factors, mechanism = attention.projection.factors(attention.read), mechanism_with_position(attention, stack)
    result = _build_heads(
        block, attention.write, factors, mechanism, attention.project, block.norm_attention, block.end_attention
    )
    is_gated = attention.gate(factors[0][0].new_zeros(1, 1, stack.config.width)) is not None
    return replace(result, gate=partial(head_gates, attention, result.norm)) if is_gated else result


def head_gates(attention: SelfAttention, norm: Norm, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n 1"]:
    """The factors that multiply the outputs of gated heads, computed from the residual stream."""
    gate = attention.gate(norm.apply(x))
    assert gate is not None
    return gate


def cross_attention_heads(block: Any) -> Heads:
    """The cross-attention heads of a block, behind the norm of the target."""
    cross: CrossAttention = block.cross
    if isinstance(block.end_cross, nn.RMSNorm):
        raise RheoscopeError(Message("cross-attention with placement=peri has no description as M and F"))
    query_factors = per_head_factors(cross.ask, (cross.heads, cross.head_width))
    factors = query_factors + per_head_factors(
        cross.read, (cross.kv_heads, cross.head_width), (cross.kv_heads, cross.value_width)
    )
    return _build_heads(
        block,
        cross.write,
        factors,
        cross.mechanism.current_mechanism(),
        partial(project_cross, cross),
        block.norm_cross,
        block.end_cross,
    )


def project_cross(cross: CrossAttention, u: Float[Tensor, "b n d"]) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one cloud. q is used if the cloud is the target, k and v if it is the source."""
    return separate_projections(cross.ask(u), cross.head_width), *cross.source_keys_values(u)


def per_head_factors(linear: nn.Linear, *shapes: tuple[int, int]) -> Factors:
    """The weights (g, d, k) and biases (g, k) of the projections that are stacked in one linear map.

    `shapes` holds the number of heads and the head width of each projection.
    """
    sizes = [count * width for count, width in shapes]
    biases = [None] * len(shapes) if linear.bias is None else linear.bias.split(sizes)
    return [
        (W.unflatten(0, shape).mT, None if b is None else b.unflatten(0, shape))
        for W, b, shape in zip(linear.weight.split(sizes), biases, shapes, strict=True)
    ]


def _build_heads(
    block: Any,
    output_map: nn.Linear,
    factors: Factors,
    mechanism: Mechanism,
    project: Project,
    norm: nn.Module,
    end: nn.Module,
) -> Heads:
    """Assemble Heads from their parts. The factors of updates are folded into W_O and b_O, or into a norm behind them."""
    (W_Q, b_Q), (W_K, b_K), (W_V, b_V) = factors
    output_norm = scaled_norm(end, block.update_scale) if isinstance(end, nn.RMSNorm) else None
    gain = end.gain.detach() if isinstance(end, BranchGain) else None
    scale = 1.0 if output_norm else block.update_scale
    return Heads(
        W_Q,
        W_K,
        W_V,
        _scaled(output_map.weight.T.unflatten(0, (len(W_Q), -1)), scale, gain),
        score_scale(mechanism, W_Q),
        mechanism,
        project,
        b_Q,
        b_K,
        b_V,
        None if output_map.bias is None else _scaled(output_map.bias, scale, gain),
        as_norm(norm) if block.is_pre_norm else Norm(),
        output_norm=output_norm,
    )


def mechanism_with_position(attention: SelfAttention, stack: Stack) -> Mechanism:
    """The mechanism of the module, with the rotation or pairwise bias that the stack passes to every call."""
    return replace(attention.mechanism.current_mechanism(), position=stack.place.position())


def score_scale(mechanism: Mechanism, reference: Tensor) -> float:
    """The factor that multiplies M: 1/√k, or 2 · scale for a metric, or 1 if the score is not a dot product."""
    zeros = reference.new_zeros(1, 1, 1, reference.shape[-1])
    dot_form = mechanism.score.dot_form(zeros, zeros)
    return 1.0 if dot_form is None else dot_form.scale


def as_norm(module: Any) -> Norm:
    """An RMSNorm, a LayerNorm or no norm as a `Norm`."""
    if isinstance(module, nn.LayerNorm):
        return Norm(module, module.weight, module.bias, module.eps, subtracts_mean=True)
    return Norm(module, module.weight, None, module.eps) if isinstance(module, nn.RMSNorm) else Norm()


def scaled_norm(module: nn.RMSNorm, scale: float) -> Norm:
    """The norm at the end of a branch, times the constant of its updates."""
    if scale == 1:
        return as_norm(module)
    return Norm(lambda update: scale * module(update), _scaled(module.weight, scale), None, module.eps)


def mlp_update(block: Block, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
    """The update that the FFN of a block adds to every token."""
    u = block.norm_ffn(x) if block.is_pre_norm else x
    return block.update_scale * block.end_ffn(block.ffn(u.reshape(1, -1, u.shape[-1]))).reshape(x.shape)


def _scaled(W: Tensor, scale: float, gain: Float[Tensor, " #d"] | None = None) -> Tensor:
    scaled = W if scale == 1 else scale * W.detach()  # without factors, the module's own tensor
    return scaled if gain is None else scaled.detach() * gain


def _backend_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer of the tokenizers library, unwrapped if transformers wraps it."""
    return getattr(tokenizer, "backend_tokenizer", tokenizer)

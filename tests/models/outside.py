"""Small models with random parameters, token ids, and reference models of torch and Hugging Face to compare with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from rheoscope.attention.zoo import ZOO
from rheoscope.models.config import Config
from rheoscope.models.transformer import Stack, Transformer, Translator, build
from tests.attention.cases import gap

POSITIONS = ("rotary", "learned", "sinusoidal", "alibi", "buckets", "none")
CAUSAL = [name for name, row in ZOO.items() if row.domain.allows_masks]
"""Mechanisms that a decoder can use: all that are defined under a mask."""
GROWING = [name for name in CAUSAL if not ZOO[name].domain.requires_square]
"""Mechanisms that can continue from a cache, with fewer queries than keys."""


def tiny(**changes: Any) -> Config:
    defaults: dict[str, Any] = {"vocabulary": 17, "width": 16, "depth": 2, "heads": 4, "hidden": 24, "context": 24}
    return Config(**(defaults | changes))


def randomised(model: nn.Module, seed: int = 0, size: float = 0.3) -> Any:
    """The model in float64 and eval mode with noise on every parameter. Gains of 1 and biases of 0 would hide errors."""
    generator = Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def random_model(seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return randomised(build(tiny(**changes)), seed)


def translator(seed: int = 0, **changes: Any) -> Translator:
    return random_model(seed, form="encoder-decoder", **changes)


def texts(seed: int, b: int, n: int, vocabulary: int = 17) -> Tensor:
    return torch.randint(0, vocabulary, (b, n), generator=Generator().manual_seed(seed))


def lengths(token_counts: list[int]) -> Tensor:
    """A mask (b, longest) for padding on the right, True for tokens."""
    return torch.arange(max(token_counts)) < torch.tensor(token_counts)[:, None]


# Reference models: which of their tensors corresponds to which of our parameters


def _identity(x: Tensor) -> Tensor:
    return x


def _transposed(x: Tensor) -> Tensor:
    return x.T


def _concatenated(*parts: Tensor) -> Tensor:
    return torch.cat(parts)


@dataclass(frozen=True)
class Pair:
    """Our parameter and the reference parameters that it is read from, for weights and gradients alike."""

    ours: nn.Parameter
    theirs: tuple[nn.Parameter, ...]
    read: Callable[..., Tensor] = _identity


def copy_weights(pairs: list[Pair]) -> None:
    with torch.no_grad():
        for pair in pairs:
            pair.ours.copy_(pair.read(*pair.theirs))


def largest_gradient_gap(pairs: list[Pair]) -> float:
    """The largest gap between a gradient of ours and theirs. A parameter without a gradient fails."""
    gaps = []
    for pair in pairs:
        theirs = [p.grad for p in pair.theirs]
        assert pair.ours.grad is not None
        assert all(grad is not None for grad in theirs)
        gaps.append(gap(pair.ours.grad, pair.read(*theirs)))
    return max(gaps)


def uncompared(model: nn.Module, pairs: list[Pair]) -> set[str]:
    """Our parameters that no pair compares."""
    compared = {id(pair.ours) for pair in pairs}
    return {name for name, p in model.named_parameters() if id(p) not in compared}


def same_names(ours: nn.Module, theirs: nn.Module) -> list[Pair]:
    """The pairs of a linear map or a norm whose parameters have the same names."""
    named = dict(theirs.named_parameters())
    return [Pair(p, (named[name],)) for name, p in ours.named_parameters()]


def torch_pairs(stack: Stack, theirs: Any) -> list[Pair]:
    """The pairs of `torch.nn.TransformerEncoder` or `TransformerDecoder`."""
    pairs = [] if theirs.norm is None else same_names(stack.norm, theirs.norm)
    for ours, layer in zip(stack.blocks, theirs.layers, strict=True):
        their_attention = layer.self_attn
        pairs += [Pair(ours.attention.read.weight, (their_attention.in_proj_weight,))]
        pairs += [Pair(ours.attention.read.bias, (their_attention.in_proj_bias,))]
        pairs += same_names(ours.attention.write, their_attention.out_proj) + same_names(
            ours.norm_attention, layer.norm1
        )
        pairs += same_names(ours.ffn.read, layer.linear1) + same_names(ours.ffn.write, layer.linear2)
        if hasattr(layer, "multihead_attn"):
            pairs += _torch_cross_pairs(ours, layer) + same_names(ours.norm_ffn, layer.norm3)
        else:
            pairs += same_names(ours.norm_ffn, layer.norm2)
    return pairs


def _torch_cross_pairs(ours: Any, layer: Any) -> list[Pair]:
    attention, d = layer.multihead_attn, ours.cross.ask.in_features
    query_rows, key_value_rows = (lambda x: x[:d]), (lambda x: x[d:])
    return [
        Pair(ours.cross.ask.weight, (attention.in_proj_weight,), query_rows),
        Pair(ours.cross.ask.bias, (attention.in_proj_bias,), query_rows),
        Pair(ours.cross.read.weight, (attention.in_proj_weight,), key_value_rows),
        Pair(ours.cross.read.bias, (attention.in_proj_bias,), key_value_rows),
        *same_names(ours.cross.write, attention.out_proj),
        *same_names(ours.norm_cross, layer.norm2),
    ]


def gpt2_pairs(model: Transformer, theirs: Any) -> list[Pair]:
    stack, body = model.stack, theirs.transformer
    pairs = [Pair(stack.embed.weight, (body.wte.weight,)), Pair(stack.place.table, (body.wpe.weight,))]
    pairs += same_names(stack.norm, body.ln_f)
    for ours, layer in zip(stack.blocks, body.h, strict=True):
        pairs += same_names(ours.norm_attention, layer.ln_1) + same_names(ours.norm_ffn, layer.ln_2)
        for linear, conv in (
            (ours.attention.read, layer.attn.c_attn),
            (ours.attention.write, layer.attn.c_proj),
            (ours.ffn.read, layer.mlp.c_fc),
            (ours.ffn.write, layer.mlp.c_proj),
        ):
            pairs += [Pair(linear.weight, (conv.weight,), _transposed), Pair(linear.bias, (conv.bias,))]
    return pairs


def llama_pairs(model: Transformer, theirs: Any) -> list[Pair]:
    stack, body = model.stack, theirs.model
    pairs = (
        same_names(stack.norm, body.norm)
        + same_names(stack.embed, body.embed_tokens)
        + same_names(model.unembed, theirs.lm_head)
    )
    for ours, layer in zip(stack.blocks, body.layers, strict=True):
        their_attention, ffn = layer.self_attn, layer.mlp
        parts = their_attention.q_proj.weight, their_attention.k_proj.weight, their_attention.v_proj.weight
        pairs += [Pair(ours.attention.read.weight, parts, _concatenated)]
        pairs += [Pair(ours.ffn.read.weight, (ffn.gate_proj.weight, ffn.up_proj.weight), _concatenated)]
        pairs += same_names(ours.attention.write, their_attention.o_proj) + same_names(ours.ffn.write, ffn.down_proj)
        pairs += same_names(ours.norm_attention, layer.input_layernorm)
        pairs += same_names(ours.norm_ffn, layer.post_attention_layernorm)
    return pairs


def gpt2(seed: int = 0) -> tuple[Transformer, Any, list[Pair]]:
    """Hugging Face's GPT-2 with a tiny random config, and our model with its weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=17, n_positions=24, n_embd=16, n_layer=2, n_head=4, n_inner=24, bos_token_id=0, eos_token_id=0
    )
    theirs = randomised(GPT2LMHeadModel(config), seed)
    ours = random_model(position="learned", norm="layer", ffn="gelu", bias=True)
    pairs = gpt2_pairs(ours, theirs)
    copy_weights(pairs)
    return ours, theirs, pairs

"""Small models with every parameter moved, token ids, and outside models whose weights become ours."""

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
"""Mechanisms that a decoder can have: all that are defined under a mask."""
GROWING = [name for name in CAUSAL if not ZOO[name].domain.requires_square]
"""Those that can go on from a cache: fewer queries than keys."""


def tiny(**changes: Any) -> Config:
    usual: dict[str, Any] = {"vocabulary": 17, "width": 16, "depth": 2, "heads": 4, "hidden": 24, "context": 24}
    return Config(**(usual | changes))


def stirred(model: nn.Module, seed: int = 0, size: float = 0.3) -> Any:
    """In float64, at rest, every parameter moved at random: gains of 1 and biases of 0 hide mistakes."""
    draw = Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return model


def made(seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return stirred(build(tiny(**changes)), seed)


def translator(seed: int = 0, **changes: Any) -> Translator:
    return made(seed, form="encoder-decoder", **changes)


def texts(seed: int, b: int, n: int, vocabulary: int = 17) -> Tensor:
    return torch.randint(0, vocabulary, (b, n), generator=Generator().manual_seed(seed))


def lengths(real: list[int]) -> Tensor:
    """Padding on the right: (b, longest), True for a token."""
    return torch.arange(max(real)) < torch.tensor(real)[:, None]


# Outside models as ours: which of their tensors is which of our parameters


def _same(x: Tensor) -> Tensor:
    return x


def _turned(x: Tensor) -> Tensor:
    return x.T


def _stacked(*parts: Tensor) -> Tensor:
    return torch.cat(parts)


@dataclass(frozen=True)
class Pair:
    """Our parameter, and how it is read off theirs: the same for weights and for gradients."""

    ours: nn.Parameter
    theirs: tuple[nn.Parameter, ...]
    read: Callable[..., Tensor] = _same


def copy(pairs: list[Pair]) -> None:
    with torch.no_grad():
        for pair in pairs:
            pair.ours.copy_(pair.read(*pair.theirs))


def furthest_gradient(pairs: list[Pair]) -> float:
    """The largest gap between a gradient of ours and theirs; a parameter without one fails."""
    gaps = []
    for pair in pairs:
        theirs = [p.grad for p in pair.theirs]
        assert pair.ours.grad is not None
        assert all(grad is not None for grad in theirs)
        gaps.append(gap(pair.ours.grad, pair.read(*theirs)))
    return max(gaps)


def left_out(model: nn.Module, pairs: list[Pair]) -> set[str]:
    """Parameters of ours that no pair compares."""
    compared = {id(pair.ours) for pair in pairs}
    return {name for name, p in model.named_parameters() if id(p) not in compared}


def alike(ours: nn.Module, theirs: nn.Module) -> list[Pair]:
    """A linear map or a norm with the same names."""
    named = dict(theirs.named_parameters())
    return [Pair(p, (named[name],)) for name, p in ours.named_parameters()]


def of_torch(stack: Stack, theirs: Any) -> list[Pair]:
    """`torch.nn.TransformerEncoder` or `TransformerDecoder`."""
    pairs = [] if theirs.norm is None else alike(stack.norm, theirs.norm)
    for ours, layer in zip(stack.blocks, theirs.layers, strict=True):
        own = layer.self_attn
        pairs += [Pair(ours.attention.read.weight, (own.in_proj_weight,))]
        pairs += [Pair(ours.attention.read.bias, (own.in_proj_bias,))]
        pairs += alike(ours.attention.write, own.out_proj) + alike(ours.norm_attention, layer.norm1)
        pairs += alike(ours.ffn.read, layer.linear1) + alike(ours.ffn.write, layer.linear2)
        if hasattr(layer, "multihead_attn"):
            pairs += _of_torch_cross(ours, layer) + alike(ours.norm_ffn, layer.norm3)
        else:
            pairs += alike(ours.norm_ffn, layer.norm2)
    return pairs


def _of_torch_cross(ours: Any, layer: Any) -> list[Pair]:
    both, d = layer.multihead_attn, ours.cross.ask.in_features
    asked, answering = (lambda x: x[:d]), (lambda x: x[d:])
    return [
        Pair(ours.cross.ask.weight, (both.in_proj_weight,), asked),
        Pair(ours.cross.ask.bias, (both.in_proj_bias,), asked),
        Pair(ours.cross.read.weight, (both.in_proj_weight,), answering),
        Pair(ours.cross.read.bias, (both.in_proj_bias,), answering),
        *alike(ours.cross.write, both.out_proj),
        *alike(ours.norm_cross, layer.norm2),
    ]


def of_gpt2(model: Transformer, theirs: Any) -> list[Pair]:
    stack, body = model.stack, theirs.transformer
    pairs = [Pair(stack.embed.weight, (body.wte.weight,)), Pair(stack.place.table, (body.wpe.weight,))]
    pairs += alike(stack.norm, body.ln_f)
    for ours, layer in zip(stack.blocks, body.h, strict=True):
        pairs += alike(ours.norm_attention, layer.ln_1) + alike(ours.norm_ffn, layer.ln_2)
        for linear, conv in (
            (ours.attention.read, layer.attn.c_attn),
            (ours.attention.write, layer.attn.c_proj),
            (ours.ffn.read, layer.mlp.c_fc),
            (ours.ffn.write, layer.mlp.c_proj),
        ):
            pairs += [Pair(linear.weight, (conv.weight,), _turned), Pair(linear.bias, (conv.bias,))]
    return pairs


def of_llama(model: Transformer, theirs: Any) -> list[Pair]:
    stack, body = model.stack, theirs.model
    pairs = alike(stack.norm, body.norm) + alike(stack.embed, body.embed_tokens) + alike(model.unembed, theirs.lm_head)
    for ours, layer in zip(stack.blocks, body.layers, strict=True):
        own, ffn = layer.self_attn, layer.mlp
        parts = own.q_proj.weight, own.k_proj.weight, own.v_proj.weight
        pairs += [Pair(ours.attention.read.weight, parts, _stacked)]
        pairs += [Pair(ours.ffn.read.weight, (ffn.gate_proj.weight, ffn.up_proj.weight), _stacked)]
        pairs += alike(ours.attention.write, own.o_proj) + alike(ours.ffn.write, ffn.down_proj)
        pairs += alike(ours.norm_attention, layer.input_layernorm)
        pairs += alike(ours.norm_ffn, layer.post_attention_layernorm)
    return pairs


def gpt2(seed: int = 0) -> tuple[Transformer, Any, list[Pair]]:
    """Hugging Face's GPT-2 from a tiny random config, and ours with its weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=17, n_positions=24, n_embd=16, n_layer=2, n_head=4, n_inner=24, bos_token_id=0, eos_token_id=0
    )
    theirs = stirred(GPT2LMHeadModel(config), seed)
    ours = made(position="learned", norm="layer", ffn="gelu", bias=True)
    pairs = of_gpt2(ours, theirs)
    copy(pairs)
    return ours, theirs, pairs

"""Moves of a model's weights that change nothing it says: its gauges, the order of its heads, the axes of E.

A move is made on the weights themselves (the View holds the model's own tensors), then the model is opened again.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.models.build_view import describe_model as described_ours
from rheoscope.pretrained.build_view import describe_model
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import ModelRotary
from tests.cases import double, gap, network, ours, random, text, theirs
from tests.pretrained.cases import once

Move = Callable[[Any], None]
F64 = torch.float64
OWN = ["own", "own_biased", "own_encoder", "own_encoder_buckets", "own_alibi", "own_bare"]
"""Our own models whose scores are scaled dot products under softmax, their tensors views of the module's."""
KINDS = [*theirs.KINDS, *OWN]
TURNABLE = ["llama", "llama_yarn", "mistral", "qwen2", "qwen3", "phi3", "phi3_partial"]
"""Models whose axes `fold` and `turn` know how to turn."""
ORDERED = [name for name in KINDS if name not in OWN or ours.CASES[name].position not in {"alibi", "buckets"}]
"""Models whose positions do not know a head by its number."""


def opened(name: str, net: Any) -> Any:
    """A network as a model, without a certificate."""
    return (described_ours if name in ours.CASES else describe_model)(net, None, name)


@once
def moved(name: str, *moves: Move) -> Any:
    """The model after moves on a copy of its weights, one after the other."""
    net = copy.deepcopy(network(name, F64))
    for move in moves:
        with torch.no_grad():
            move(opened(name, net))  # opened anew: a View may hold a copy of a gain
    return rs.load(net)


def words(model: Any) -> tuple[Tensor, Tensor]:
    """The tables that read words in and out."""
    if hasattr(model.network, "stack"):
        return model.network.stack.embed.weight, model.network.unembed.weight
    return model.network.get_input_embeddings().weight, model.network.get_output_embeddings().weight


def is_tied(model: Any) -> bool:
    embed, unembed = words(model)
    return embed is unembed


def probabilities(model: Any) -> Tensor:
    """What the model says of a text."""
    return model.trace(text(), logits=True).logits.log_softmax(-1)


def regular(seed: int, k: int) -> Tensor:
    """An invertible matrix, far from a rotation and well conditioned."""
    u, v = (torch.linalg.qr(random(seed + at, k, k))[0] for at in (0, 1))
    return u * (0.5 + random(seed + 2, k).abs()) @ v


def commuting(seed: int, block: Heads) -> Tensor:
    """A matrix that commutes with every rotation: a scaled rotation for each frequency, anything where nothing turns."""
    k, position = block.W_Q.shape[-1], block.mechanism.position
    if not isinstance(position, ModelRotary):
        return regular(seed, k)
    still = (
        position.rotation_matrix(5, k, block.W_Q).diagonal() - position.rotation_matrix(0, k, block.W_Q).diagonal()
    ).abs() < 1e-9
    turning = int((~still).sum())
    A = torch.zeros(k, k, dtype=F64, device=block.W_Q.device)
    A[turning:, turning:] = regular(seed, k - turning) if turning < k else 0
    a, b = 1 + random(seed + 3, turning // 2), random(seed + 4, turning // 2)
    at = torch.arange(turning, device=A.device)
    first, second = at[: turning // 2], at[turning // 2 :]
    A[first, first], A[second, second], A[first, second], A[second, first] = a, a, b, -b
    for offset in (1, 7):
        R = position.rotation_matrix(offset, k, block.W_Q)
        assert gap(A @ R, R @ A) <= 1e-9
    return A


def members(block: Heads) -> list[slice]:
    size = block.n_heads // len(block.W_K)
    return [slice(g * size, (g + 1) * size) for g in range(len(block.W_K))]


def set_(x: Tensor | None, to: Callable[[Tensor], Tensor]) -> None:
    if x is not None:
        x.copy_(to(x.clone()))


# The moves of the gauge


def move_qk(model: Any) -> None:
    """(W_Q A, W_K A^-T), A shared by a group and commuting with the rotations."""
    for layer, block in enumerate(model.view.layer_heads):
        for g, group in enumerate(members(block)):
            A = commuting(10 * layer + g, block)
            inverse = torch.linalg.inv(A).mT
            set_(block.W_Q[group], lambda W, A=A: W @ A)
            set_(block.W_K[g], lambda W, B=inverse: W @ B)
            set_(None if block.b_Q is None else block.b_Q[group], lambda b, A=A: b @ A)
            set_(None if block.b_K is None else block.b_K[g], lambda b, B=inverse: b @ B)


def move_qk_norms(model: Any) -> None:
    """Gains of the QK-norms: s on the queries, 1/s on the keys, one s for each frequency."""
    for layer, attn in enumerate(model.description.attention_modules):
        half = 0.5 + random(layer, len(attn.q_norm.weight) // 2).abs()
        scale_gain(attn.q_norm, half.repeat(2))
        scale_gain(attn.k_norm, 1 / half.repeat(2))


def move_ov(model: Any) -> None:
    """(W_V B, B^-1 W_O), B shared by a group."""
    for layer, block in enumerate(model.view.layer_heads):
        for g, group in enumerate(members(block)):
            B = regular(10 * layer + g, block.W_V.shape[-1])
            set_(block.W_V[g], lambda W, B=B: W @ B)
            set_(block.W_O[group], lambda W, B=B: torch.linalg.solve(B, W))
            set_(None if block.b_V is None else block.b_V[g], lambda b, B=B: b @ B)


def scale_gain(norm: Any, by: Tensor) -> None:
    """A module's gain times a vector; Gemma's gain is 1 + weight."""
    shift = 1 if "Gemma" in type(norm).__name__ else 0
    norm.weight.copy_((norm.weight + shift) * by - shift)
    set_(getattr(norm, "bias", None), lambda b: b * by)


def move_gains(model: Any) -> None:
    """A gain grows, the weights that read it shrink: the norm before attention, and the last one where W_U is free."""
    for layer, block in enumerate(model.view.layer_heads):
        by = 0.5 + 2 * random(layer, model.view.width).abs()
        scale_gain(block.norm.apply, by)
        for W in (block.W_Q, block.W_K, block.W_V):
            set_(W, lambda W, by=by: W / by[:, None])
    embed, unembed = words(model)
    if unembed is not embed and model.view.final_norm.gain is not None:
        by = 0.5 + 2 * random(99, model.view.width).abs()
        scale_gain(model.view.final_norm.apply, by)
        set_(unembed, lambda W: W / by)


def move_along_ones(model: Any) -> None:
    """A centred token has no share along (1, …, 1): what W does there is nothing (its part of the norm's bias goes back)."""
    for layer, block in enumerate(model.view.layer_heads):
        for at, (W, b) in enumerate(((block.W_Q, block.b_Q), (block.W_K, block.b_K), (block.W_V, block.b_V))):
            by = random(10 * layer + at, len(W), W.shape[-1])
            set_(W, lambda W, by=by, g=block.norm.gain: W + by[:, None] / g[:, None])
            set_(b, lambda b, by=by, norm=block.norm: b - by * (norm.bias / norm.gain).sum())


def move_key_bias(model: Any) -> None:
    """A constant added to every key: constant along a row of scores."""
    for layer, block in enumerate(model.view.layer_heads):
        set_(block.b_K, lambda b, at=layer: b + random(at, *b.shape))


def move_value_bias(model: Any) -> None:
    """Weights sum to 1: a constant added to every value is a constant added to the output, taken away again."""
    for layer, block in enumerate(model.view.layer_heads):
        by = random(layer, *block.b_V.shape)
        set_(block.b_V, lambda b, by=by: b + by)
        lost = (by.repeat_interleave(block.n_heads // len(by), 0)[:, None] @ block.W_O).sum((0, 1))
        set_(block.b_O, lambda b, lost=lost: b - lost)


def move_unembedding(model: Any) -> None:
    """One vector added to the column of every word: all logits of a token grow alike."""
    set_(words(model)[1], lambda W: W + 3 * random(0, W.shape[-1]))


GAUGES: dict[Move, Callable[[Any, Heads], bool]] = {
    move_qk: lambda model, heads: heads.q_norm is None,
    move_qk_norms: lambda model, heads: heads.q_norm is not None,
    move_ov: lambda model, heads: True,
    move_gains: lambda model, heads: heads.norm.gain is not None,
    move_along_ones: lambda model, heads: heads.norm.gain is not None and heads.norm.subtracts_mean,
    move_key_bias: lambda model, heads: heads.b_K is not None and not isinstance(heads.mechanism.position, ModelRotary),
    move_value_bias: lambda model, heads: heads.b_V is not None and heads.b_O is not None and heads.output_norm is None,
    move_unembedding: lambda model, heads: model.view.unembed is not None and not is_tied(model),
}
"""Move → whether a model has it."""


def gauges(name: str) -> list[Move]:
    """All that a model has."""
    model = double(name)
    return [move for move, has in GAUGES.items() if has(model, model.view.layer_heads[0])]


# The order of heads


def order(block: Heads) -> list[int]:
    """Heads permuted inside their group, and whole groups."""
    groups = len(block.W_K)
    return torch.arange(4).view(groups, 4 // groups).flip(0).roll(1, -1).flatten().tolist()


def reorder(model: Any) -> None:
    """Heads in that order, with what reads and writes them."""
    for block in model.view.layer_heads:
        for x in (block.W_Q, block.b_Q, block.W_O):
            set_(x, lambda x, at=order(block): x[at])
        for x in (block.W_K, block.b_K, block.W_V, block.b_V):
            set_(x, lambda x, at=order(block): x.flip(0) if len(x) == 2 else x[at])


# The axes of E


def fold(model: Any) -> None:
    """Every gain into the weights that read it, so that only directions are left."""
    for layer, block in zip(model.network.model.layers, model.view.layer_heads, strict=True):
        for W in (block.W_Q, block.W_K, block.W_V):
            set_(W, lambda W, g=layer.input_layernorm.weight.clone(): W * g[:, None])
        layer.input_layernorm.weight.fill_(1)
        for part in readers(layer.mlp):
            part.weight.mul_(layer.post_attention_layernorm.weight)
        layer.post_attention_layernorm.weight.fill_(1)
    model.network.lm_head.weight.mul_(model.network.model.norm.weight)
    model.network.model.norm.weight.fill_(1)


def readers(mlp: Any) -> list[Any]:
    return [mlp.gate_up_proj] if hasattr(mlp, "gate_up_proj") else [mlp.gate_proj, mlp.up_proj]


def axes() -> Tensor:
    return torch.linalg.qr(random(7, 32, 32))[0]


def turn(model: Any) -> None:
    """x → x Q for every point of E."""
    network, Q = model.network, axes()
    for weight in (network.model.embed_tokens.weight, network.lm_head.weight):
        set_(weight, lambda W: W @ Q)
    for layer, block in zip(network.model.layers, model.view.layer_heads, strict=True):
        for W in (block.W_Q, block.W_K, block.W_V):
            set_(W, lambda W: Q.mT @ W)
        set_(block.W_O, lambda W: W @ Q)
        set_(block.b_O, lambda b: b @ Q)
        for part in readers(layer.mlp):
            set_(part.weight, lambda W: W @ Q)
        set_(layer.mlp.down_proj.weight, lambda W: Q.mT @ W)
        set_(layer.mlp.down_proj.bias, lambda b: b @ Q)


# What must not move


def different() -> Tensor:
    """A text without a token twice: of two equal points, either may take the other's place."""
    return torch.randperm(37, generator=torch.Generator().manual_seed(0))[:18] + 3


WITHIN = {"operators": 1e-7, "scores": 1e-7, "agreement": 1e-7, "stack": 1e-7, "composition": 1e-6}
"""How far a field may move; what is read off points moves with the float32 steps inside Hugging Face models."""


def same(found: Any, wanted: Any, but: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Every field the same, NaN only where it was (what lies before the start or past the end)."""
    within = WITHIN.get(wanted.attrs["analysis"], 1e-5)
    assert set(found.data_vars) == set(wanted.data_vars)
    for field in wanted.data_vars:
        if field in but:
            continue
        if wanted[field].dtype.kind == "U":
            assert (found[field].values == wanted[field].values).all(), field
            continue
        a, b = (np.asarray(x[field].values, dtype=float) for x in (found, wanted))
        assert a.shape == b.shape
        there = np.isfinite(b)
        assert there.any() or not b.size, field
        assert (np.isfinite(a) == there).all(), field
        gaps = np.abs(a - b)[there]
        if gaps.size:
            assert gaps.max() <= within * max(1.0, np.abs(b)[there].max()), f"{field} is off by {gaps.max():.1e}"


def marked_as(mark: str, found: Any) -> set[str]:
    """The fields that declare that they depend on coordinates: of E ("basis") or of a head ("gauge")."""
    return {str(field) for field in found.data_vars if mark in found[field].attrs}


def holds_still(analyse: Callable[[Any], Any], plain: Any, name: str, moves: list[Move]) -> None:
    """No field moves with all moves at once but those marked as dependent on the coordinates of a head; or the culprits are named."""
    marked = marked_as("gauge", plain)
    assert {field.removesuffix("_raw") for field in marked} <= set(plain.data_vars) - marked
    try:
        same(analyse(moved(name, *moves)), plain, but=marked)
    except AssertionError as fault:
        culprits = []
        for move in moves:
            try:
                same(analyse(moved(name, move)), plain, but=marked)
            except AssertionError:
                culprits.append(move.__name__)
        raise AssertionError(f"{fault}\nmoved by {', '.join(culprits) or 'no move alone'}") from fault

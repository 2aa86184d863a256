"""Changes of a model's weights that leave its logits unchanged: gauges, permutations of heads and rotations of E.

A move edits the weights in place, since the View holds the model's own tensors. Then the model is described again.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rheoscope.models.build_view import describe_model as describe_own_model
from rheoscope.pretrained.build_view import describe_model
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import ModelRotary
from tests.cases import double, gap, network, ours, random, theirs
from tests.pretrained.cases import once

Move = Callable[[Any], None]
F64 = torch.float64
OWN = ["own", "own_biased", "own_encoder", "own_encoder_buckets", "own_alibi", "own_bare"]
"""Our own models with scaled dot products and softmax, whose View holds views of the module's tensors."""
KINDS = [*theirs.KINDS, *OWN]
ROTATABLE = ["llama", "llama_yarn", "mistral", "qwen2", "qwen3", "phi3", "phi3_partial"]
"""Models whose axes `fold_gains` and `rotate_axes` can rotate."""
PERMUTABLE = [name for name in KINDS if name not in OWN or ours.CASES[name].position not in {"alibi", "buckets"}]
"""Models whose position encoding does not depend on the number of a head."""


def describe_network(name: str, net: Any) -> Any:
    """The Model of a network, without a certificate."""
    return (describe_own_model if name in ours.CASES else describe_model)(net, None, name)


@once
def model_after(name: str, *moves: Move) -> Any:
    """The model after these moves, applied in turn to a copy of its weights.

    It has no certificate. every_move.py compares its logits, weights and displacements with those of the certified original.
    """
    net = copy.deepcopy(network(name, F64))
    for move in moves:
        with torch.no_grad():
            move(describe_network(name, net))  # described again, because a View may hold a copy of a gain
    return describe_network(name, net)


def embedding_tables(model: Any) -> tuple[Tensor, Tensor]:
    """The embedding and the unembedding table."""
    if hasattr(model.network, "stack"):
        return model.network.stack.embed.weight, model.network.unembed.weight
    return model.network.get_input_embeddings().weight, model.network.get_output_embeddings().weight


def is_tied(model: Any) -> bool:
    embed, unembed = embedding_tables(model)
    return embed is unembed


def log_probabilities(trace: Any) -> Tensor:
    """The log-probabilities of the next token at every position of a text."""
    return trace.logits.log_softmax(-1)


def invertible_matrix(seed: int, k: int) -> Tensor:
    """A well-conditioned invertible matrix that is far from a rotation."""
    u, v = (torch.linalg.qr(random(seed + offset, k, k))[0] for offset in (0, 1))
    return u * (0.5 + random(seed + 2, k).abs()) @ v


def commuting_matrix(seed: int, block: Heads) -> Tensor:
    """A matrix that commutes with the rotary rotations.

    It is a scaled rotation in the plane of each frequency, and arbitrary in the dimensions that do not rotate.
    """
    k, position = block.W_Q.shape[-1], block.mechanism.position
    if not isinstance(position, ModelRotary):
        return invertible_matrix(seed, k)
    is_fixed = (
        position.rotation_matrix(5, k, block.W_Q).diagonal() - position.rotation_matrix(0, k, block.W_Q).diagonal()
    ).abs() < 1e-9
    n_rotating = int((~is_fixed).sum())
    A = torch.zeros(k, k, dtype=F64, device=block.W_Q.device)
    A[n_rotating:, n_rotating:] = invertible_matrix(seed, k - n_rotating) if n_rotating < k else 0
    a, b = 1 + random(seed + 3, n_rotating // 2), random(seed + 4, n_rotating // 2)
    index = torch.arange(n_rotating, device=A.device)
    first, second = index[: n_rotating // 2], index[n_rotating // 2 :]
    A[first, first], A[second, second], A[first, second], A[second, first] = a, a, b, -b
    for offset in (1, 7):
        R = position.rotation_matrix(offset, k, block.W_Q)
        assert gap(A @ R, R @ A) <= 1e-9
    return A


def group_slices(block: Heads) -> list[slice]:
    """The query heads of every key head."""
    size = block.n_heads // len(block.W_K)
    return [slice(g * size, (g + 1) * size) for g in range(len(block.W_K))]


def overwrite(x: Tensor | None, function: Callable[[Tensor], Tensor]) -> None:
    """Replace a tensor in place by a function of it."""
    if x is not None:
        x.copy_(function(x.clone()))


# Gauges


def move_qk(model: Any) -> None:
    """(W_Q A, W_K A^-T), where A is shared by a group and commutes with the rotations."""
    for layer, block in enumerate(model.view.layer_heads):
        for g, group in enumerate(group_slices(block)):
            A = commuting_matrix(10 * layer + g, block)
            inverse = torch.linalg.inv(A).mT
            overwrite(block.W_Q[group], lambda W, A=A: W @ A)
            overwrite(block.W_K[g], lambda W, B=inverse: W @ B)
            overwrite(None if block.b_Q is None else block.b_Q[group], lambda b, A=A: b @ A)
            overwrite(None if block.b_K is None else block.b_K[g], lambda b, B=inverse: b @ B)


def move_qk_norms(model: Any) -> None:
    """Multiply the gain of the query norm by s and that of the key norm by 1/s, with one s per frequency."""
    for layer, attn in enumerate(model.description.attention_modules):
        half = 0.5 + random(layer, len(attn.q_norm.weight) // 2).abs()
        scale_gain(attn.q_norm, half.repeat(2))
        scale_gain(attn.k_norm, 1 / half.repeat(2))


def move_ov(model: Any) -> None:
    """(W_V B, B^-1 W_O), where B is shared by a group."""
    for layer, block in enumerate(model.view.layer_heads):
        for g, group in enumerate(group_slices(block)):
            B = invertible_matrix(10 * layer + g, block.W_V.shape[-1])
            overwrite(block.W_V[g], lambda W, B=B: W @ B)
            overwrite(block.W_O[group], lambda W, B=B: torch.linalg.solve(B, W))
            overwrite(None if block.b_V is None else block.b_V[g], lambda b, B=B: b @ B)


def scale_gain(norm: Any, factor: Tensor) -> None:
    """Multiply the gain of a norm by a vector. Gemma's gain is 1 + weight."""
    shift = 1 if "Gemma" in type(norm).__name__ else 0
    norm.weight.copy_((norm.weight + shift) * factor - shift)
    overwrite(getattr(norm, "bias", None), lambda b: b * factor)


def move_gains(model: Any) -> None:
    """Multiply a gain and divide the weights that read it.

    This applies to the norm before attention, and to the final norm if the unembedding is not tied.
    """
    for layer, block in enumerate(model.view.layer_heads):
        factor = 0.5 + 2 * random(layer, model.view.width).abs()
        scale_gain(block.norm.apply, factor)
        for W in (block.W_Q, block.W_K, block.W_V):
            overwrite(W, lambda W, factor=factor: W / factor[:, None])
    embed, unembed = embedding_tables(model)
    if unembed is not embed and model.view.final_norm.gain is not None:
        factor = 0.5 + 2 * random(99, model.view.width).abs()
        scale_gain(model.view.final_norm.apply, factor)
        overwrite(unembed, lambda W: W / factor)


def move_along_ones(model: Any) -> None:
    """Add a multiple of (1, …, 1) to the columns of W.

    A centred token has no component along (1, …, 1), so only the bias of the norm has to be compensated.
    """
    for layer, block in enumerate(model.view.layer_heads):
        for index, (W, b) in enumerate(((block.W_Q, block.b_Q), (block.W_K, block.b_K), (block.W_V, block.b_V))):
            addend = random(10 * layer + index, len(W), W.shape[-1])
            overwrite(W, lambda W, addend=addend, g=block.norm.gain: W + addend[:, None] / g[:, None])
            overwrite(b, lambda b, addend=addend, norm=block.norm: b - addend * (norm.bias / norm.gain).sum())


def move_key_bias(model: Any) -> None:
    """Add a constant to every key, which adds a constant to every row of scores."""
    for layer, block in enumerate(model.view.layer_heads):
        overwrite(block.b_K, lambda b, seed=layer: b + random(seed, *b.shape))


def move_value_bias(model: Any) -> None:
    """Add a constant to every value and subtract its image from the output bias, since the weights sum to 1."""
    for layer, block in enumerate(model.view.layer_heads):
        addend = random(layer, *block.b_V.shape)
        overwrite(block.b_V, lambda b, addend=addend: b + addend)
        output_shift = (addend.repeat_interleave(block.n_heads // len(addend), 0)[:, None] @ block.W_O).sum((0, 1))
        overwrite(block.b_O, lambda b, output_shift=output_shift: b - output_shift)


def move_unembedding(model: Any) -> None:
    """Add one vector to every column of the unembedding, which adds one constant to all logits of a position."""
    overwrite(embedding_tables(model)[1], lambda W: W + 3 * random(0, W.shape[-1]))


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
"""Move → whether it applies to a model."""


def gauges(name: str) -> list[Move]:
    """The gauges that apply to a model."""
    model = double(name)
    return [move for move, applies in GAUGES.items() if applies(model, model.view.layer_heads[0])]


# Permutations of heads


def head_permutation(block: Heads) -> list[int]:
    """A permutation of the groups and of the heads inside every group."""
    groups = len(block.W_K)
    return torch.arange(4).view(groups, 4 // groups).flip(0).roll(1, -1).flatten().tolist()


def permute_heads(model: Any) -> None:
    """Permute the heads together with their weights and biases."""
    for block in model.view.layer_heads:
        for x in (block.W_Q, block.b_Q, block.W_O):
            overwrite(x, lambda x, permutation=head_permutation(block): x[permutation])
        for x in (block.W_K, block.b_K, block.W_V, block.b_V):
            overwrite(x, lambda x, permutation=head_permutation(block): x.flip(0) if len(x) == 2 else x[permutation])


# Rotations of E


def fold_gains(model: Any) -> None:
    """Multiply every gain into the weights that read it, and set it to 1."""
    for layer, block in zip(model.network.model.layers, model.view.layer_heads, strict=True):
        for W in (block.W_Q, block.W_K, block.W_V):
            overwrite(W, lambda W, g=layer.input_layernorm.weight.clone(): W * g[:, None])
        layer.input_layernorm.weight.fill_(1)
        for part in mlp_input_layers(layer.mlp):
            part.weight.mul_(layer.post_attention_layernorm.weight)
        layer.post_attention_layernorm.weight.fill_(1)
    model.network.lm_head.weight.mul_(model.network.model.norm.weight)
    model.network.model.norm.weight.fill_(1)


def mlp_input_layers(mlp: Any) -> list[Any]:
    return [mlp.gate_up_proj] if hasattr(mlp, "gate_up_proj") else [mlp.gate_proj, mlp.up_proj]


def random_rotation() -> Tensor:
    return torch.linalg.qr(random(7, 32, 32))[0]


def rotate_axes(model: Any) -> None:
    """Apply x → x Q to every point of E."""
    network, Q = model.network, random_rotation()
    for weight in (network.model.embed_tokens.weight, network.lm_head.weight):
        overwrite(weight, lambda W: W @ Q)
    for layer, block in zip(network.model.layers, model.view.layer_heads, strict=True):
        for W in (block.W_Q, block.W_K, block.W_V):
            overwrite(W, lambda W: Q.mT @ W)
        overwrite(block.W_O, lambda W: W @ Q)
        overwrite(block.b_O, lambda b: b @ Q)
        for part in mlp_input_layers(layer.mlp):
            overwrite(part.weight, lambda W: W @ Q)
        overwrite(layer.mlp.down_proj.weight, lambda W: Q.mT @ W)
        overwrite(layer.mlp.down_proj.bias, lambda b: b @ Q)


# Comparison of results


def distinct_tokens() -> Tensor:
    """A text without a repeated token, because two equal points are interchangeable."""
    return torch.randperm(37, generator=torch.Generator().manual_seed(0))[:18] + 3


TOLERANCES = {"operators": 1e-7, "scores": 1e-7, "agreement": 1e-7, "stack": 1e-7, "composition": 1e-6}
"""The relative tolerance of an analysis. Results of points vary with the float32 steps inside Hugging Face models."""


def assert_same_fields(result: Any, expected: Any, ignored: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Assert that all fields are equal up to the tolerance, and NaN in the same places."""
    tolerance = TOLERANCES.get(expected.attrs["analysis"], 1e-5)
    assert set(result.data_vars) == set(expected.data_vars)
    for field in expected.data_vars:
        if field in ignored:
            continue
        if expected[field].dtype.kind == "U":
            assert (result[field].values == expected[field].values).all(), field
            continue
        a, b = (np.asarray(x[field].values, dtype=float) for x in (result, expected))
        assert a.shape == b.shape
        is_finite = np.isfinite(b)
        assert is_finite.any() or not b.size, field
        assert (np.isfinite(a) == is_finite).all(), field
        gaps = np.abs(a - b)[is_finite]
        if gaps.size:
            assert gaps.max() <= tolerance * max(1.0, np.abs(b)[is_finite].max()), f"{field} is off by {gaps.max():.1e}"


def marked_fields(mark: str, dataset: Any) -> set[str]:
    """The fields that are declared to depend on the coordinates of E ("basis") or of a head ("gauge")."""
    return {str(field) for field in dataset.data_vars if mark in dataset[field].attrs}


def assert_unchanged(analyse: Callable[[Any], Any], expected: Any, name: str, moves: list[Move]) -> None:
    """Assert that all moves together leave every field unchanged, except those marked as dependent on the gauge.

    On failure, the error names the moves that change a field by themselves.
    """
    marked = marked_fields("gauge", expected)
    assert {field.removesuffix("_raw") for field in marked} <= set(expected.data_vars) - marked
    try:
        assert_same_fields(analyse(model_after(name, *moves)), expected, ignored=marked)
    except AssertionError as error:
        culprits = []
        for move in moves:
            try:
                assert_same_fields(analyse(model_after(name, move)), expected, ignored=marked)
            except AssertionError:
                culprits.append(move.__name__)
        raise AssertionError(f"{error}\nchanged by {', '.join(culprits) or 'no move alone'}") from error

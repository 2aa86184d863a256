"""One battery for every analysis: a move that leaves the logits unchanged leaves every reported field unchanged.

A number that moves under a gauge says nothing of the model. Moves are made on the weights themselves (the View holds the
model's own tensors), the model is opened again, its logits are shown to be the same, and then every field must be.
"""

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.models.describing import described as ours_described
from rheoscope.pretrained.describing import described
from rheoscope.space.dataset import dataset
from rheoscope.space.head import Heads, Turned
from tests.cases import CAUSAL, distance, double, gap, model, network, ours, random, text, theirs, traced
from tests.pretrained.cases import once


def different() -> Tensor:
    """A text without a token twice: of two equal points, either may take the other's place."""
    return torch.randperm(37, generator=torch.Generator().manual_seed(0))[:18] + 3


def of_heads(make: Callable[[int], Any]) -> Any:
    """An analysis of one head, of all four side by side."""
    import xarray as xr

    return xr.concat([make(head) for head in range(4)], "head")


def purity(trace: Any) -> Any:
    return rs.purity(trace, rs.clusters(trace), draws=20)


def labelled(analysis: str, x: Tensor) -> Any:
    """A map of weights as a Dataset."""
    return dataset({"map": (("query", "key"), x)}, {"map": "a map"}, {}, {"analysis": analysis})


def faithful(model: Any) -> Any:
    prompts = [text(at) for at in range(5)]
    return rs.faithfulness(model, prompts, [5, 6, 7, 8, 9], kept=(0.0, 0.5)).drop_sel(ranking="random", rival="random")


def several(model: Any) -> Any:
    """Agreement over texts; a correlation of halves and the null are of draws that are not made here."""
    each = [rs.agreement(model.view, model.trace(text(at)), draws=0, least=4) for at in range(3)]
    return rs.agreement_over_texts(each, resamples=20, splits=4)


ANALYSES: dict[str, Callable[[Any], Any]] = {
    "operators": lambda model: rs.operators(model.view),
    "scores": lambda model: rs.scores(model.trace(text())),
    "trajectory": lambda model: rs.trajectory(model.trace(text())),
    "transport": lambda model: rs.transport(model.trace(different())),
    "kept": lambda model: rs.kept(model.trace(text())),
    "clusters": lambda model: rs.clusters(model.trace(text())),
    "massive": lambda model: rs.massive(model.trace(text()), times=1.02),
    "readout": lambda model: rs.readout(model.view, model.trace(text())),
    "energy": lambda model: rs.energy(model.view, model.trace(text())),
    "agreement": lambda model: rs.agreement(model.view, model.trace(text()), draws=0, least=4),
    "agreement_over_texts": several,
    "prefix_stability": lambda model: rs.prefix_stability(model, text(), [[7, 19, 4], [30, 5, 5, 21]], least=3),
    "distortion": lambda model: rs.distortion(model.view, model.trace(text()), k=3, draws=2),
    "stack": lambda model: rs.stack(model.view, model.trace(text()), draws=2),
    "composition": lambda model: rs.composition(model.view, top=1).drop_dims("kind"),
    "head_types": lambda model: rs.head_types(model, model.trace(text()), window=2),
    "density_clusters": lambda model: rs.density_clusters(model.trace(text()), least=2),
    "purity": lambda model: purity(model.trace(text())),
    "torn": lambda model: of_heads(lambda head: rs.torn(model.view, model.trace(different()), 1, head)),
    "why": lambda model: of_heads(lambda head: rs.why(model.view, model.trace(text()), 1, head).drop_vars("weight")),
    "why of a score": lambda model: of_heads(lambda head: rs.why(model.view, model.trace(text()), 1, head, 9, 8)),
    "path_weights": lambda model: of_heads(
        lambda head: labelled("path_weights", rs.path_weights(model.trace(text()), [(0, head), (1, head)]))
    ),
    "fixed_point": lambda model: rs.fixed_point(model, model.trace(text(n=2)), [1], iterations=64),
    "boundary": lambda model: rs.boundary(model, [[3, 9, 12, 5], [8, 12, 5]], [1], iterations=64),
    "rollout": lambda model: rs.rollout(model, model.trace(text())),
    "reversed_attention": lambda model: rs.reversed_attention(model, model.trace(text()), target=7),
    "reversed_map": lambda model: of_heads(
        lambda head: labelled("reversed_map", rs.reversed_map(model, model.trace(text()), 1, head, target=7))
    ),
    "attention_patching": lambda model: rs.attention_patching(model, model.trace(text()), 7, (-0.1, 0.0)),
    "surgery": lambda model: rs.surgery(
        model, [text(at) for at in range(5)], M="symmetric", F="rank 3", against=rs.Against(("mean", "uniform"))
    ),
    "surgery_by_head": lambda model: rs.surgery_by_head(
        model, [text(at) for at in range(5)], 1, M="symmetric", F="rank 3", against=rs.Against(("mean", "uniform"))
    ),
    "decay": lambda model: rs.decay(model, [text(at) for at in range(5)], 0, M="symmetric").drop_sel(
        change="isotropic"
    ),
    "operated": lambda model: rs.trajectory(rs.operated(model, text(), M="symmetric", F="rank 3")),
    "faithfulness": lambda model: faithful(model),
}
"""Name → what it gives for a model. A new analysis is tested by a new line here."""
RUNNING = {
    "fixed_point", "boundary", "rollout", "reversed_attention", "reversed_map", "attention_patching", "surgery", "operated",
    "surgery_by_head", "decay", "faithfulness",
}  # fmt: skip
"""Those that run the model many times, or backwards: tried on one model of each sort."""
SORTS = ["gpt2", "llama", "qwen3", "gemma3", "neox", "own_biased"]
COORDINATES = {
    "directionality", "layer_directionality", "effective_rank_null", "effective_rank_null_sd", "cluster_count_null",
    "cluster_count_null_sd", "participation_ratio_null", "intrinsic_dimension_null", "coordinate", "coordinate_share",
    "boundary", "jacobian", "correlation", "correlation_null",
} | {
    f"{name}_null"
    for name in ("spread", "neighbours", "trustworthiness", "continuity", "rsa", "cka", "recovered", "recovered_cka")
}  # fmt: skip
"""Fields marked as dependent on the basis of E: what they are, or the draws they are means of."""
COUNTS = {"cluster_count_null", "cluster_count_null_sd", "coordinate", "correlation", "correlation_null"}
"""Those of them that may stay as they are by chance."""
BY_NUMBER = {"order", "recovered_random"}
"""Fields that name heads by their number, or draw them by it."""
WITHIN = {"operators": 1e-7, "scores": 1e-7, "agreement": 1e-7, "stack": 1e-7, "composition": 1e-6}
"""How far a field may move; what is read off points moves with the float32 steps inside Hugging Face models."""

Move = Callable[[Any], None]
F64 = torch.float64
OWN = ["own", "own_biased", "own_encoder", "own_encoder_buckets", "own_alibi", "own_bare"]
"""Our own models whose scores are scaled dot products under softmax, their tensors views of the module's."""
KINDS = [*theirs.KINDS, *OWN]
PER_HEAD = ("alibi", "buckets")
"""Positions that know their head by its number."""
TURNING = [name for name in KINDS if isinstance(double(name).view.blocks[0].mechanism.position, Turned)]
QK_NORM = [name for name in KINDS if double(name).view.blocks[0].q_norm is not None]
PLAIN_QK = [name for name in KINDS if name not in QK_NORM]
STILL = [name for name in KINDS if name not in TURNING]
PRE_NORM = [name for name in KINDS if double(name).view.blocks[0].norm.gain is not None]


def uncertified(name: str, net: Any) -> Any:
    return (ours_described if name in ours.CASES else described)(net, None, name)


def words(model: Any) -> tuple[Tensor, Tensor]:
    """The tables that read words in and out."""
    if hasattr(model.network, "stack"):
        return model.network.stack.embed.weight, model.network.unembed.weight
    return model.network.get_input_embeddings().weight, model.network.get_output_embeddings().weight


def is_tied(name: str) -> bool:
    embed, unembed = words(double(name))
    return embed is unembed


UNTIED = [name for name in KINDS if double(name).view.unembed is not None and not is_tied(name)]


@once
def moved(name: str, move: Move) -> Any:
    """The model after a move on a copy of its weights."""
    plain = uncertified(name, copy.deepcopy(network(name, F64)))
    with torch.no_grad():
        move(plain)
    return rs.load(plain.network)


def regular(seed: int, k: int) -> Tensor:
    """An invertible matrix, far from a rotation and well conditioned."""
    u, v = (torch.linalg.qr(random(seed + at, k, k))[0] for at in (0, 1))
    return u * (0.5 + random(seed + 2, k).abs()) @ v


def commuting(seed: int, block: Heads) -> Tensor:
    """A matrix that commutes with every rotation: a scaled rotation for each frequency, anything where nothing turns."""
    k, position = block.W_Q.shape[-1], block.mechanism.position
    if not isinstance(position, Turned):
        return regular(seed, k)
    still = (position.rotation(5, k, block.W_Q).diagonal() - position.rotation(0, k, block.W_Q).diagonal()).abs() < 1e-9
    turning = int((~still).sum())
    A = torch.zeros(k, k, dtype=F64)
    A[turning:, turning:] = regular(seed, k - turning) if turning < k else 0
    a, b = 1 + random(seed + 3, turning // 2), random(seed + 4, turning // 2)
    first, second = torch.arange(turning // 2), torch.arange(turning // 2, turning)
    A[first, first], A[second, second], A[first, second], A[second, first] = a, a, b, -b
    for offset in (1, 7):
        R = position.rotation(offset, k, block.W_Q)
        assert gap(A @ R, R @ A) <= 1e-9
    return A


def members(block: Heads) -> list[slice]:
    size = block.count // len(block.W_K)
    return [slice(g * size, (g + 1) * size) for g in range(len(block.W_K))]


def set_(x: Tensor | None, to: Callable[[Tensor], Tensor]) -> None:
    if x is not None:
        x.copy_(to(x.clone()))


# The moves


def move_qk(model: Any) -> None:
    """(W_Q A, W_K A^-T), A shared by a group and commuting with the rotations."""
    for layer, block in enumerate(model.view.blocks):
        for g, group in enumerate(members(block)):
            A = commuting(10 * layer + g, block)
            inverse = torch.linalg.inv(A).mT
            set_(block.W_Q[group], lambda W, A=A: W @ A)
            set_(block.W_K[g], lambda W, B=inverse: W @ B)
            set_(None if block.b_Q is None else block.b_Q[group], lambda b, A=A: b @ A)
            set_(None if block.b_K is None else block.b_K[g], lambda b, B=inverse: b @ B)


def move_qk_norms(model: Any) -> None:
    """Gains of the QK-norms: s on the queries, 1/s on the keys, one s for each frequency."""
    for layer, attn in enumerate(model.said.attentions):
        half = 0.5 + random(layer, len(attn.q_norm.weight) // 2).abs()
        scale_gain(attn.q_norm, half.repeat(2))
        scale_gain(attn.k_norm, 1 / half.repeat(2))


def move_ov(model: Any) -> None:
    """(W_V B, B^-1 W_O), B shared by a group."""
    for layer, block in enumerate(model.view.blocks):
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
    for layer, block in enumerate(model.view.blocks):
        by = 0.5 + 2 * random(layer, model.view.width).abs()
        scale_gain(block.norm.own, by)
        for W in (block.W_Q, block.W_K, block.W_V):
            set_(W, lambda W, by=by: W / by[:, None])
    embed, unembed = words(model)
    if unembed is not embed and model.view.final_norm.gain is not None:
        by = 0.5 + 2 * random(99, model.view.width).abs()
        scale_gain(model.view.final_norm.own, by)
        set_(unembed, lambda W: W / by)


def move_along_ones(model: Any) -> None:
    """A centred token has no share along (1, …, 1): what W does there is nothing (its part of the norm's bias goes back)."""
    for layer, block in enumerate(model.view.blocks):
        for at, (W, b) in enumerate(((block.W_Q, block.b_Q), (block.W_K, block.b_K), (block.W_V, block.b_V))):
            by = random(10 * layer + at, len(W), W.shape[-1])
            set_(W, lambda W, by=by, g=block.norm.gain: W + by[:, None] / g[:, None])
            set_(b, lambda b, by=by, norm=block.norm: b - by * (norm.bias / norm.gain).sum())


def move_key_bias(model: Any) -> None:
    """A constant added to every key: constant along a row of scores."""
    for layer, block in enumerate(model.view.blocks):
        set_(block.b_K, lambda b, at=layer: b + random(at, *b.shape))


def move_value_bias(model: Any) -> None:
    """Weights sum to 1: a constant added to every value is a constant added to the output, taken away again."""
    for layer, block in enumerate(model.view.blocks):
        by = random(layer, *block.b_V.shape)
        set_(block.b_V, lambda b, by=by: b + by)
        lost = (by.repeat_interleave(block.count // len(by), 0)[:, None] @ block.W_O).sum((0, 1))
        set_(block.b_O, lambda b, lost=lost: b - lost)


def move_unembedding(model: Any) -> None:
    """One vector added to the column of every word: all logits of a token grow alike."""
    set_(words(model)[1], lambda W: W + 3 * random(0, W.shape[-1]))


def has_output_biases(heads: Heads) -> bool:
    return heads.b_V is not None and heads.b_O is not None and heads.after is None


MOVES: list[tuple[str, Move, list[str]]] = [
    ("queries against keys", move_qk, PLAIN_QK),
    ("gains of QK-norms", move_qk_norms, QK_NORM),
    ("values against outputs", move_ov, KINDS),
    ("gains against weights", move_gains, PRE_NORM),
    ("weights along (1, …, 1)", move_along_ones, [name for name in PRE_NORM if double(name).view.blocks[0].norm.centred]),
    ("bias of keys", move_key_bias, [name for name in STILL if double(name).view.blocks[0].b_K is not None]),
    ("bias of values", move_value_bias, [name for name in KINDS if has_output_biases(double(name).view.blocks[0])]),
    ("columns of the unembedding", move_unembedding, UNTIED),
]  # fmt: skip
EACH = [pytest.param(move, name, id=f"{what}-{name}") for what, move, names in MOVES for name in names]
FEW = [
    pytest.param(move, name, id=f"{what}-{name}")
    for what, move, names in MOVES
    for name in names
    if name in {"gpt2", "qwen3"}
]
"""Every move on two models, for what has random controls besides."""


def tried(analysis: str, name: str) -> bool:
    """Whether an analysis has an answer for a model, and the battery asks for it."""
    if analysis == "readout":
        return double(name).view.unembed is not None
    return analysis not in RUNNING or name in SORTS


ALL = [
    pytest.param(analysis, move, name, id=f"{analysis}-{what}-{name}")
    for analysis in ANALYSES
    for what, move, names in MOVES
    for name in names
    if tried(analysis, name) and (analysis, move) != ("why of a score", move_key_bias)  # tests/covers/test_why.py
]


def probabilities(model: Any) -> Tensor:
    """What the model says of a text."""
    return model.trace(text(), logits=True).logits.log_softmax(-1)


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
        assert not gaps.size or gaps.max() <= within * max(1.0, np.abs(b)[there].max()), field


@once
def plainly(analysis: str, name: str) -> Any:
    return ANALYSES[analysis](double(name))


def in_order(found: Any, order: list[int]) -> Any:
    """The same answer with the heads of every layer in another order, also where they are components by name."""
    heads = [dim for dim in ("head", "other") if dim in found.dims and found[dim].dtype.kind != "U"]
    dims: dict[str, Any] = dict.fromkeys(heads, order)
    for dim in {"head_from", "head_to"} & set(found.dims):
        dims[dim] = [first + at for first in range(0, found.sizes[dim], len(order)) for at in order]
    found = found.isel(dims)
    for dim in {"component", "from", "to"} & set(found.dims):
        old = [str(name) for name in found[dim].values]
        new = [re.sub(r"H(\d+)$", lambda at: f"H{order[int(at[1])]}", name) for name in old]
        found = found.sel({dim: new}).assign_coords({dim: old})
    return found


@pytest.mark.parametrize(("analysis", "move", "name"), ALL)
def test_a_gauge_moves_no_field(analysis: str, move: Move, name: str) -> None:
    """Law 1; what is marked as dependent on the coordinates of a head stands beside an invariant field."""
    found, plain = ANALYSES[analysis](moved(name, move)), plainly(analysis, name)
    marked = set(plain.attrs.get("coordinate_dependent", []))
    assert {field.removesuffix("_raw") for field in marked} <= set(plain.data_vars) - marked
    same(found, plain, but=marked)


def test_every_analysis_is_in_the_battery() -> None:
    """All that the package offers of flow/ and covers/; the theory bench has no model whose weights could be written otherwise."""
    homes = {name: home for name, home in rs._HOME.items() if home.startswith(("rheoscope.flow", "rheoscope.covers"))}
    parts = {"Against", "pieces"}  # of other analyses
    assert {name for name, home in homes.items() if ".dynamics." not in home} <= set(ANALYSES) | parts
    for analysis in ANALYSES:
        assert {move for (one, move, _) in (case.values for case in ALL) if one == analysis} >= {move_ov, move_gains}


@pytest.mark.parametrize(("move", "name"), EACH)
def test_a_gauge_moves_weights_but_nothing_that_the_model_says(move: Move, name: str) -> None:
    plain, other = double(name), moved(name, move)
    assert other.view.facts["weights"] != plain.view.facts["weights"]
    assert gap(probabilities(other), probabilities(plain)) <= 2e-5
    one, two = other.trace(text()), traced(name, F64)
    for layer, block in enumerate(plain.view.blocks):
        for head in (0, block.count - 1):
            assert gap(one.weights(layer, head), two.weights(layer, head)) <= 1e-5
            if move is not move_key_bias:
                continue
            lost = one.scores(layer, head) - two.scores(layer, head)
            assert gap(lost, lost[:, :1].expand_as(lost)) <= 1e-9
        if move is not move_value_bias:
            assert distance(one.displacements(layer), two.displacements(layer)) <= 1e-5
        else:
            assert (
                distance(
                    one.displacements(layer).sum(0) + one.bias(layer), two.displacements(layer).sum(0) + two.bias(layer)
                )
                <= 1e-9
            )


@pytest.mark.parametrize(
    ("analysis", "name"),
    [
        (analysis, name)
        for analysis in ANALYSES
        for name in KINDS
        if tried(analysis, name) and (name not in OWN or ours.CASES[name].position not in PER_HEAD)
    ],
)
def test_heads_in_another_order_are_the_same_heads(analysis: str, name: str) -> None:
    """Law 1: heads permuted inside their group, and whole groups, with what reads and writes them."""
    groups, size = len(double(name).view.blocks[0].W_K), 4 // len(double(name).view.blocks[0].W_K)
    order = torch.arange(4).view(groups, size).flip(0).roll(1, -1).flatten()
    assert order.tolist() != [0, 1, 2, 3]

    def permute(model: Any) -> None:
        for block in model.view.blocks:
            for x in (block.W_Q, block.b_Q, block.W_O):
                set_(x, lambda x: x[order])
            for x in (block.W_K, block.b_K, block.W_V, block.b_V):
                set_(x, lambda x: x.flip(0) if groups == 2 else x[order])

    other = moved(name, permute)
    assert gap(probabilities(other), probabilities(double(name))) <= 2e-5
    same(ANALYSES[analysis](other), in_order(plainly(analysis, name), order.tolist()), but=BY_NUMBER)
    one, two = other.trace(text()), traced(name, F64)
    for layer in range(other.view.layers):
        assert distance(one.displacements(layer), two.displacements(layer)[order]) <= 1e-5
        assert gap(one.weights(layer, 1), two.weights(layer, int(order[1]))) <= 1e-5


def test_every_move_and_every_family_is_tried() -> None:
    assert {name for _, _, names in MOVES for name in names} == set(KINDS)
    assert all(names for _, _, names in MOVES)
    assert QK_NORM == ["qwen3", "gemma3"]
    assert {"gpt2_by_depth", "llama", "neox"} <= set(UNTIED)


# Law 2: the axes of E


def fold(model: Any) -> None:
    """Every gain into the weights that read it, so that only directions are left."""
    for layer, block in zip(model.network.model.layers, model.view.blocks, strict=True):
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


def turn(model: Any, Q: Tensor) -> None:
    """x → x Q for every point of E."""
    network = model.network
    for weight in (network.model.embed_tokens.weight, network.lm_head.weight):
        set_(weight, lambda W: W @ Q)
    for layer, block in zip(network.model.layers, model.view.blocks, strict=True):
        for W in (block.W_Q, block.W_K, block.W_V):
            set_(W, lambda W: Q.mT @ W)
        set_(block.W_O, lambda W: W @ Q)
        set_(block.b_O, lambda b: b @ Q)
        for part in readers(layer.mlp):
            set_(part.weight, lambda W: W @ Q)
        set_(layer.mlp.down_proj.weight, lambda W: Q.mT @ W)
        set_(layer.mlp.down_proj.bias, lambda b: b @ Q)


@pytest.mark.parametrize(
    ("analysis", "name"),
    [
        (analysis, name)
        for analysis in ANALYSES
        for name in ("llama", "llama_yarn", "mistral", "qwen2", "qwen3", "phi3", "phi3_partial")
        if tried(analysis, name)
    ],
)
def test_turning_the_axes_moves_no_field_but_the_marked_ones(analysis: str, name: str) -> None:
    folded = moved(name, fold)
    assert gap(probabilities(folded), probabilities(double(name))) <= 2e-5
    Q = torch.linalg.qr(random(7, 32, 32))[0]
    turned = described(copy.deepcopy(folded.network), None, name)
    with torch.no_grad():
        turn(turned, Q)
    turned = rs.load(turned.network)
    assert gap(probabilities(turned), probabilities(folded)) <= 2e-5
    before, after = ANALYSES[analysis](folded), ANALYSES[analysis](turned)
    marked = {str(field) for field in before.data_vars if "basis" in before[field].attrs["definition"]}
    assert marked <= COORDINATES
    same(after, before, but=marked)
    for field in marked:
        assert field in COUNTS or float(abs(after[field] - before[field]).max()) > 1e-3
    one, two = turned.trace(text()), folded.trace(text())
    assert distance(one.points, two.points @ Q) <= 1e-5
    assert gap(one.weights(1, 2), two.weights(1, 2)) <= 1e-5
    assert distance(one.displacements(1), two.displacements(1) @ Q) <= 1e-5
    for field in set(before.data_vars) - COORDINATES:
        assert "basis" not in before[field].attrs["definition"]


# Law 5: the past does not see the future

PER_TOKEN: dict[str, Callable[[Any, int], Any]] = {
    "trajectory": lambda trace, at: rs.trajectory(trace, keep_massive=True)[
        ["speed", "relative_speed", "turning", "path_length", "chord", "straightness", "straightness_null"]
    ].isel(token=slice(0, at)),
    "readout": lambda trace, at: rs.readout(trace.view, trace, token=at - 1),
}
"""Name → its results of tokens before `at`."""


@pytest.mark.parametrize("analysis", PER_TOKEN)
@pytest.mark.parametrize("name", CAUSAL)
def test_no_result_of_a_token_sees_what_comes_after_it(analysis: str, name: str) -> None:
    at, after = 9, text()
    after[at] = (after[at] - 2) % 37 + 3
    one, other = (PER_TOKEN[analysis](model(name).trace(ids), at) for ids in (text(), after))
    for field in one.data_vars:
        assert np.array_equal(one[field].values, other[field].values), field

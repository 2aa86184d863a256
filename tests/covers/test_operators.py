"""Tests of `operators`: dense reference values, planted heads, nulls, and the form of the result."""

import copy
import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor

import rheoscope as rs
from rheoscope.covers import rotated_heads
from rheoscope.covers.operators.analysis import (
    MEAN_FIELDS,
    OFFSETS,
    OPERATORS,
    directionality,
    positive_share,
    positivity,
)
from rheoscope.covers.rotated_heads import symmetry_null, symmetry_null_draws
from rheoscope.pretrained.build_view import describe_model
from rheoscope.space.model_parts import ModelRotary
from rheoscope.space.operator import Factored
from rheoscope.space.view import View
from rheoscope.statistics.nulls import p_values, random_rotations
from tests.pretrained.cases import EVERY, GPT2, changed, double, gap, model, network, once, random, randomised

F64 = torch.float64
SOME = ["gpt2", "llama", "qwen3", "gemma3", "neox", "opt_post", "bert_bare"]
"""Gain and centring; gain only; QK-norm; norm after attention; partial rotary; no norm; no unembedding."""
some = pytest.mark.parametrize("name", SOME)


# The slow reference: dense matrices in float64, one head at a time, from the weights and gains


def dense_norm(view: View, layer: int, raw: bool) -> Tensor:
    """C D, the centring and the gain of the norm before a layer."""
    norm, d = view.layer_heads[layer].norm, view.width
    eye = torch.eye(d, dtype=F64)
    D = eye if raw or norm.gain is None else norm.gain.diag()
    C = eye - torch.ones(d, d, dtype=F64) / d if norm.subtracts_mean and not raw else eye
    return C @ D


@cache
def rotation_matrix(position: ModelRotary, offset: int, width: int) -> Tensor:
    """R(offset) of a position, computed once for all heads."""
    return position.rotation_matrix(offset, width, torch.eye(width, dtype=F64))


def dense_M(view: View, layer: int, head: int, raw: bool, offset: int = 0) -> Tensor:
    """M(offset) of one head as a dense matrix."""
    block, CD = view.layer_heads[layer], dense_norm(view, layer, raw)
    group = head // (block.n_heads // len(block.W_K))
    R = torch.eye(block.W_Q.shape[-1], dtype=F64)
    if isinstance(block.mechanism.position, ModelRotary):
        R = rotation_matrix(block.mechanism.position, offset, len(R))
    q = torch.ones(len(R), dtype=F64) if raw or block.q_norm is None else block.q_norm.gain
    k = torch.ones(len(R), dtype=F64) if raw or block.k_norm is None else block.k_norm.gain
    return CD @ (block.W_Q[head] * q) @ R @ (block.W_K[group] * k).mT @ CD.mT * block.scale


def dense_F(view: View, layer: int, head: int, raw: bool) -> Tensor:
    """F of one head as a dense matrix."""
    block = view.layer_heads[layer]
    group = head // (block.n_heads // len(block.W_K))
    F = dense_norm(view, layer, raw) @ block.W_V[group] @ block.W_O[head]
    return F if raw or block.output_norm is None else F * block.output_norm.gain


def excess(norms: Tensor) -> Tensor:
    return (norms - norms.mean() - 2 * norms.std(correction=0)).clamp(min=0).sum()


def direction(M: Tensor) -> Tensor:
    c, r = excess(M.norm(dim=0)), excess(M.norm(dim=1))
    return (c - r) / (c + r) if c + r > 0 else torch.zeros(())


def vocabulary_copying(view: View, F: Tensor, raw: bool) -> Tensor:
    """The copying score from the dense matrix W_E F W_U over the vocabulary."""
    W_U, W_E = view.unembed, view.embed
    if not raw:
        norm = view.final_norm
        W_U = W_U if norm.gain is None else norm.gain[:, None] * W_U
        W_U = W_U - W_U.mean(0) if norm.subtracts_mean else W_U
        W_U = W_U - W_U.mean(1, keepdim=True)
    values = torch.linalg.eigvals(W_E @ F @ W_U)
    return values.real.sum() / values.abs().sum()


def raw_copying(view: View, layer: int, head: int) -> Tensor:
    """The copying score of the literature from W_E W_V W_O W_U, without gains."""
    F = dense_F(view, layer, head, raw=True)
    if view.unembed is None:
        values = torch.linalg.eigvals(F)
        return values.real.sum() / values.abs().sum()
    return vocabulary_copying(view, F, raw=True)


def symmetry_sd(M: Tensor, width: int) -> Tensor:
    """The standard deviation of tr(MRMR)/‖M‖² over uniform rotations R, from the fourth moments of R."""
    S = M @ M.mT
    second = 3 * (width + 1) * S.trace() ** 2 - 6 * (S @ S).trace()
    return (second / S.trace() ** 2 / (width * (width - 1) * (width + 2)) - 1 / width**2).sqrt()


def slow_fields(view: View, layer: int, head: int, raw: bool) -> dict[str, Tensor]:
    """Every field of one head from its dense matrices."""
    M, F = dense_M(view, layer, head, raw), dense_F(view, layer, head, raw)
    symmetric, eigenvalues_F = torch.linalg.eigvalsh((M + M.mT) / 2), torch.linalg.eigvals(F)
    s_M, s_F = torch.linalg.svdvals(M), torch.linalg.svdvals(F)
    block = view.layer_heads[layer]
    positivity_F = eigenvalues_F.real.sum() / eigenvalues_F.abs().sum()
    width = view.width - int(block.norm.subtracts_mean and not raw)
    offsets = []
    for offset in OFFSETS:
        forward, backward = (dense_M(view, layer, head, raw, sign * offset) for sign in (1, -1))
        offsets.append((forward @ backward).trace() / (forward.norm() * backward.norm()))
    return {
        "symmetry": (M @ M).trace() / (M @ M.mT).trace(),
        "directionality": direction(M),
        "positive_share": symmetric.clamp(min=0).sum() / symmetric.abs().sum(),
        "positive_share_null": torch.tensor(0.5),
        "symmetry_null": torch.tensor(1 / width),
        "symmetry_null_sd": symmetry_sd(M, width),
        "copying_null": torch.tensor(0.0),
        "alignment_null": torch.tensor(0.0),
        "alignment_null_sd": torch.tensor(1 / len(M)),
        "stable_rank_M": s_M.square().sum() / s_M[0] ** 2,
        "stable_rank_F": s_F.square().sum() / s_F[0] ** 2,
        "positivity_F": positivity_F,
        "copying": positivity_F if view.unembed is None else vocabulary_copying(view, F, raw),
        "copying_raw": raw_copying(view, layer, head),
        "alignment": (F * M.mT).sum() / (F.norm() * M.norm()),
        "symmetry_at_offset": torch.stack(offsets),
        "singular_values_M": s_M[: block.W_Q.shape[-1]],
        "singular_values_F": s_F[: block.W_V.shape[-1]],
    }


@pytest.mark.parametrize(("name", "raw"), [*((name, False) for name in EVERY), *((name, True) for name in SOME)])
@torch.no_grad()
def test_every_field_equals_that_of_dense_matrices(name: str, raw: bool) -> None:
    view = double(name).view
    result = rs.operators(view, raw=raw, draws=0)
    values = {field: x.transpose("layer", "head", ...).values for field, x in result.items() if "head" in x.dims}
    for layer in range(view.layers):
        for head in range(view.heads):
            for field, expected in slow_fields(view, layer, head, raw).items():
                difference = np.abs(values[field][layer, head] - expected.numpy()).max()
                assert difference <= 1e-7 * max(1.0, float(expected.abs().max())), field
        layer_M = sum(dense_M(view, layer, head, raw) for head in range(view.heads))
        assert isinstance(layer_M, Tensor)
        assert float(result.layer_symmetry[layer]) == pytest.approx(
            float((layer_M @ layer_M).trace() / layer_M.norm() ** 2), abs=1e-9
        )
        assert float(result.layer_directionality[layer]) == pytest.approx(float(direction(layer_M)), abs=1e-7)


def test_the_slow_reference_covers_every_field() -> None:
    result = rs.operators(double("gpt2").view)
    mean_fields = {f"mean_{name}{suffix}" for name in MEAN_FIELDS for suffix in ("", "_null_draws")}
    layer_fields = {"layer_symmetry", "layer_directionality"}
    head_fields = set(slow_fields(double("gpt2").view, 0, 0, False))
    assert head_fields | layer_fields | mean_fields == set(result.data_vars)
    assert mean_fields - set(rs.operators(double("gpt2").view, draws=0).data_vars) == {
        f"mean_{x}_null_draws" for x in MEAN_FIELDS
    }


@some
def test_raw_weights_differ_from_folded_ones_if_the_norm_has_a_gain(name: str) -> None:
    """BERT and OPT-350m read the stream without a norm, so there both are equal."""
    folded, raw = (rs.operators(double(name).view, raw=raw) for raw in (False, True))
    is_equal = float(abs(folded.symmetry - raw.symmetry).max()) <= 1e-9
    assert is_equal == (double(name).view.layer_heads[0].norm.gain is None)
    assert (folded.attrs["raw"], raw.attrs["raw"]) == (0, 1)


def test_raw_uses_the_bare_weights_of_the_model() -> None:
    """W_Q W_Kᵀ of a layer from Hugging Face's tensors, summed over heads, as in arXiv:2502.10927."""
    net, result = network("llama_linear", F64), rs.operators(double("llama_linear").view, raw=True)
    for layer, block in enumerate(net.model.layers):
        keys = block.self_attn.k_proj.weight.unflatten(0, (2, 8)).repeat_interleave(2, 0).flatten(0, 1)
        M = (block.self_attn.q_proj.weight.T @ keys).detach()
        assert float(result.layer_symmetry[layer]) == pytest.approx(float((M @ M).trace() / M.norm() ** 2), abs=1e-9)
        assert float(result.layer_directionality[layer]) == pytest.approx(float(direction(M)), abs=1e-9)


# Planted heads


def planted(change: Any, **more: Any) -> Any:
    """A GPT-2 with one head as wide as E, gain 1 and bias 0, after `change(W_Q, W_K, W_V, W_O)`."""
    config = hf.GPT2Config(**GPT2 | {"n_head": 1, "n_layer": 1, "n_embd": 16} | more)
    net = randomised(hf.GPT2LMHeadModel(config)).double()
    with torch.no_grad():
        for norm in (net.transformer.h[0].ln_1, net.transformer.ln_f):
            norm.weight.fill_(1)
        block = rs.load(net).view.layer_heads[0]
        change(block.W_Q[0], block.W_K[0], block.W_V[0], block.W_O[0])
    return rs.load(net)


def minus_identity(W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> None:
    W_V.copy_(regular := random(3, 16, 16))
    W_O.copy_(-torch.linalg.inv(regular))


def test_minus_the_identity_has_positivity_and_copying_minus_1() -> None:
    """Copying is −1 for every W_E, because the embeddings are tied."""
    result = rs.operators(planted(minus_identity).view)
    assert float(result.positivity_F[0, 0]) == pytest.approx(-1, abs=1e-9)
    assert float(result.copying[0, 0]) == pytest.approx(-1, abs=1e-9)
    assert result.singular_values_F[0, 0].values[:15] == pytest.approx(np.ones(15))


def test_the_identity_has_positivity_and_copying_1() -> None:
    def identity(W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> None:
        minus_identity(W_Q, W_K, W_V, W_O)
        W_O.neg_()

    result = rs.operators(planted(identity).view)
    assert float(result.positivity_F[0, 0]) == pytest.approx(1, abs=1e-9)
    assert float(result.copying[0, 0]) == pytest.approx(1, abs=1e-9)


def test_tied_queries_and_keys_are_symmetric_and_positive() -> None:
    def tie(W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> None:
        W_Q.copy_(W_K)

    result = rs.operators(planted(tie).view)
    assert float(result.symmetry[0, 0]) == pytest.approx(1)
    assert float(result.positive_share[0, 0]) == pytest.approx(1)
    assert float(result.directionality[0, 0]) == pytest.approx(0, abs=1e-9)
    assert result.symmetry_at_offset[0, 0].values == pytest.approx(np.ones(len(OFFSETS)))


@pytest.mark.parametrize("name", ["llama", "llama_yarn", "llama_three", "neox"])
@torch.no_grad()
def test_tied_queries_and_keys_are_symmetric_at_every_offset_under_RoPE(name: str) -> None:
    """Law 4: M(δ) is the transpose of M(−δ), although M(δ) is symmetric only at δ = 0."""

    def tie(network: Any) -> None:
        for block in describe_model(network, None, name).view.layer_heads:
            block.W_Q.copy_(block.W_K.repeat_interleave(block.n_heads // len(block.W_K), 0))

    tied = changed(name, tie)
    result = rs.operators(tied.view)
    assert result.symmetry_at_offset.values == pytest.approx(np.ones(result.symmetry_at_offset.shape), abs=1e-6)
    assert result.symmetry.values == pytest.approx(1)
    assert float(abs(rs.operators(double(name).view).symmetry_at_offset).max()) < 0.9
    M = tied.view.head(0, 1).M(5).dense()
    assert gap(M, M.mT) > 1e-3 * float(M.abs().max())


def test_skew_queries_and_keys() -> None:
    def skew(W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> None:
        J = torch.block_diag(*[torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=F64)] * 8)
        W_Q.copy_(W_K @ J)

    result = rs.operators(planted(skew).view)
    assert float(result.symmetry[0, 0]) == pytest.approx(-1)


def test_F_proportional_to_M_transposed_has_alignment_1() -> None:
    def align(W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> None:
        C = torch.eye(16, dtype=F64) - 1 / 16
        W_V.copy_(W_K)
        W_O.copy_(W_Q.mT @ C)

    assert float(rs.operators(planted(align).view).alignment[0, 0]) == pytest.approx(1)


def test_a_large_column_has_directionality_1_and_a_large_row_minus_1() -> None:
    """Columns of M belong to keys, rows to queries."""
    peaked = torch.ones(1, 40, dtype=F64)
    peaked[0, 3] = 50
    flat = torch.ones(1, 40, dtype=F64)
    assert float(directionality(flat, peaked)) == 1
    assert float(directionality(peaked, flat)) == -1
    assert float(directionality(peaked, peaked)) == 0
    assert float(directionality(flat, flat)) == 0


def test_zero_operators_give_no_nan() -> None:
    def zero_weights(net: Any) -> None:
        for block in net.transformer.h:
            block.attn.c_attn.weight.zero_()
            block.attn.c_proj.weight.zero_()

    result = rs.operators(changed("gpt2", zero_weights).view)
    for field in result.data_vars:
        assert np.isfinite(result[field].values).all(), field
    for field in (
        "symmetry",
        "directionality",
        "stable_rank_M",
        "stable_rank_F",
        "positivity_F",
        "copying",
        "alignment",
    ):
        assert (result[field].values == 0).all(), field
    assert (result.positive_share.values == 0.5).all()
    assert (result.layer_symmetry.values == 0).all()


def test_random_operators_have_the_moments_of_the_null() -> None:
    A = Factored(random(0, 300, 64, 8), random(1, 300, 8, 64))
    assert float(positive_share(A).mean()) == pytest.approx(0.5, abs=0.01)
    assert float(positivity(A.eigenvalues()).mean()) == pytest.approx(0, abs=0.05)
    mean, sd = symmetry_null(A.singular_values(), 64)
    assert np.allclose(mean, 1 / 64)
    z = (A.symmetry() - mean) / sd
    assert float(z.mean()) == pytest.approx(0, abs=0.15)
    assert float(z.std()) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(("rank", "width"), [(1, 5), (3, 7), (6, 8), (8, 8)])
def test_moments_of_symmetry_equal_those_of_rotated_operators(rank: int, width: int) -> None:
    """The reference rotates M itself. Fresh corners (50 heads) and resampled ones (200 heads) must agree with it."""
    S, generator = torch.linspace(1, 0.1, rank, dtype=F64), torch.Generator().manual_seed(0)
    M, R = torch.zeros(width, width, dtype=F64), random_rotations(4000, width, generator, F64)
    M[:rank, :rank] = S.diag()
    slow = (M @ R @ M @ R).diagonal(dim1=-2, dim2=-1).sum(-1) / M.square().sum()
    mean, sd = symmetry_null(S, width)
    fresh, resampled = (
        torch.stack(list(symmetry_null_draws(S.expand(h, -1), width, 4000 // h, generator))) for h in (50, 200)
    )
    for samples in (slow, fresh.flatten(), resampled.flatten()):
        assert float(samples.mean()) == pytest.approx(float(mean), abs=0.02)
        assert float(samples.std()) == pytest.approx(float(sd), rel=0.08)
    levels = torch.tensor([0.05, 0.5, 0.95], dtype=F64)
    assert torch.allclose(fresh.flatten().quantile(levels), slow.quantile(levels), atol=0.05)


def test_resampled_corners_leave_heads_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard deviation of the mean over heads is that of independent heads."""
    S, generator = torch.linspace(1, 0.1, 8, dtype=F64).expand(24, -1), torch.Generator().manual_seed(0)
    monkeypatch.setattr(rotated_heads, "MAX_POOLED_COLUMNS", 1024)
    samples = torch.stack(list(symmetry_null_draws(S, 32, 2000, generator)))
    assert float(samples.mean(-1).std()) == pytest.approx(float(symmetry_null(S[0], 32)[1]) / 24**0.5, rel=0.07)


def test_random_heads_with_a_shared_key_have_uncorrelated_symmetry() -> None:
    """Each head rotates its queries on its own. The group rotates its key once."""
    generator = torch.Generator().manual_seed(0)
    K, (L, N) = random(0, 8, 3), (random(1, 8, 3), random(2, 8, 3))
    Q, P, R = (random_rotations(4000, 8, generator, F64) for _ in range(3))
    symmetries = [Factored(A @ L, (R @ K).mT).symmetry() for A, L in ((Q, L), (P, N))]
    assert abs(float(torch.corrcoef(torch.stack(symmetries))[0, 1])) < 0.06


def test_tied_weights_exceed_every_null_draw_and_random_weights_do_not() -> None:
    """With grouped keys."""
    view = double("llama").view
    result = rs.operators(view, draws=99)
    for name in MEAN_FIELDS:
        mean, null_draws = (torch.as_tensor(result[f"mean_{name}{suffix}"].values) for suffix in ("", "_null_draws"))
        assert null_draws.shape == (99,)
        assert float(mean) == pytest.approx(float(result[name].mean()), abs=1e-6)
        assert 0.01 <= float(p_values(mean, null_draws)) <= 1
    repeated = rs.operators(view, draws=99)
    assert np.array_equal(repeated.mean_symmetry_null_draws, result.mean_symmetry_null_draws)

    def tie(network: Any) -> None:
        for block in describe_model(network, None, "llama").view.layer_heads:
            block.W_Q.copy_(block.W_K.repeat_interleave(block.n_heads // len(block.W_K), 0))

    tied = rs.operators(changed("llama", tie).view, draws=99)
    mean, null_draws = tied.mean_symmetry.values, tied.mean_symmetry_null_draws.values
    assert float(p_values(torch.as_tensor(mean), torch.as_tensor(null_draws))) == pytest.approx(0.01)


# The Dataset


@once
def operators_of(name: str) -> Any:
    return rs.operators(model(name).view)


@some
def test_fields_have_the_declared_axes_and_definitions(name: str) -> None:
    result = operators_of(name)
    layers, heads = model(name).view.layers, model(name).view.heads
    ranks = ["stable_rank_M", "stable_rank_F"]
    shares = ["symmetry", "directionality", "positive_share", "positive_share_null", "copying", "alignment"]
    for field in [*ranks, *shares, "positivity_F"]:
        assert result[field].dims == ("layer", "head")
        assert result[field].shape == (layers, heads)
    for field in ("layer_symmetry", "layer_directionality"):
        assert result[field].dims == ("layer",)
    assert result.symmetry_at_offset.dims == ("layer", "head", "offset")
    assert result.offset.values.tolist() == list(OFFSETS)
    assert result.singular_values_M.dims[:2] == result.singular_values_F.dims[:2] == ("layer", "head")
    assert set(OPERATORS.fields) == set(result.data_vars)
    for field, declared in OPERATORS.fields.items():
        assert result[field].attrs["definition"] == declared.definition
        assert result[field].dims == declared.dims
        assert ("basis" in result[field].attrs) == (field in {"directionality", "layer_directionality"})
    assert result.layer.values.tolist() == list(range(layers))


@some
def test_values_lie_in_their_ranges(name: str) -> None:
    result = operators_of(name)
    for field in (
        "symmetry",
        "directionality",
        "positivity_F",
        "copying",
        "alignment",
        "symmetry_at_offset",
        "layer_symmetry",
    ):
        assert float(abs(result[field]).max()) <= 1 + 1e-6, field
    assert 0 <= float(result.positive_share.min()) <= float(result.positive_share.max()) <= 1
    assert float(result.stable_rank_M.min()) >= 1 - 1e-6
    for field in ("singular_values_M", "singular_values_F"):
        assert (np.diff(result[field].values, axis=-1) <= 1e-6).all()


def test_attributes_carry_the_provenance() -> None:
    attrs = operators_of("gpt2").attrs
    assert attrs["analysis"] == "operators"
    assert attrs["weights"] == model("gpt2").view.facts["weights"]
    assert attrs["type"] == "gpt2"
    assert attrs["certificate"].startswith("exact on 8 tokens")
    assert {"formula", "source", "space", "raw", "dtype", "device", "model"} <= set(attrs)


@some
def test_the_result_converts_to_json_and_to_a_table(name: str) -> None:
    result = operators_of(name)
    loaded = json.loads(json.dumps(result.to_dict()))
    assert loaded["attrs"]["analysis"] == "operators"
    assert np.allclose(loaded["data_vars"]["symmetry"]["data"], result.symmetry.values)
    table = result[["symmetry", "copying"]].to_dataframe()
    assert len(table) == model(name).view.layers * model(name).view.heads


def test_progress_is_reported_after_every_layer() -> None:
    steps: list[tuple[int, int]] = []
    rs.operators(model("gemma3").view, progress=lambda *step: steps.append(step))
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_the_weights_of_the_model_are_unchanged() -> None:
    before = copy.deepcopy(network("llama").state_dict())
    rs.operators(model("llama").view)
    assert all(torch.equal(x, before[key]) for key, x in network("llama").state_dict().items())

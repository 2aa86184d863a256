"""rs.operators: every number equals that of dense matrices, planted heads get their known numbers."""

import copy
import json
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
every = pytest.mark.parametrize("name", EVERY)
SOME = ["gpt2", "llama", "qwen3", "gemma3", "neox", "opt_post", "bert_bare"]
"""Gains and centring, gains alone, of queries and keys, after attention, rotary for a part, none, and no unembedding."""
some = pytest.mark.parametrize("name", SOME)


# The slow twin: dense, float64, one head after the other, from the weights and gains themselves


def dense(view: View, layer: int, head: int, raw: bool, offset: int = 0) -> tuple[Tensor, Tensor]:
    """M(offset) and F of one head as matrices, straight from the formula."""
    block = view.layer_heads[layer]
    d, group = view.width, head // (block.n_heads // len(block.W_K))
    eye = torch.eye(d, dtype=F64)
    D = eye if raw or block.norm.gain is None else block.norm.gain.diag()
    C = eye - torch.ones(d, d, dtype=F64) / d if block.norm.subtracts_mean and not raw else eye
    R = torch.eye(block.W_Q.shape[-1], dtype=F64)
    if isinstance(block.mechanism.position, ModelRotary):
        R = block.mechanism.position.rotation_matrix(offset, len(R), R)
    q = torch.ones(len(R), dtype=F64) if raw or block.q_norm is None else block.q_norm.gain
    k = torch.ones(len(R), dtype=F64) if raw or block.k_norm is None else block.k_norm.gain
    M = C @ D @ (block.W_Q[head] * q) @ R @ (block.W_K[group] * k).mT @ D @ C * block.scale
    F = C @ D @ block.W_V[group] @ block.W_O[head]
    return M, F if raw or block.output_norm is None else F * block.output_norm.gain


def excess(norms: Tensor) -> Tensor:
    return (norms - norms.mean() - 2 * norms.std(correction=0)).clamp(min=0).sum()


def direction(M: Tensor) -> Tensor:
    c, r = excess(M.norm(dim=0)), excess(M.norm(dim=1))
    return (c - r) / (c + r) if c + r > 0 else torch.zeros(())


def words(view: View, F: Tensor, raw: bool) -> Tensor:
    """Copying by the whole matrix over words, W_E F W_U."""
    W_U, W_E = view.unembed, view.embed
    if not raw:
        norm = view.final_norm
        W_U = W_U if norm.gain is None else norm.gain[:, None] * W_U
        W_U = W_U - W_U.mean(0) if norm.subtracts_mean else W_U
        W_U = W_U - W_U.mean(1, keepdim=True)
    values = torch.linalg.eigvals(W_E @ F @ W_U)
    return values.real.sum() / values.abs().sum()


def spread(M: Tensor, width: int) -> Tensor:
    """The standard deviation of tr(MRMR)/‖M‖² over even rotations R, from the moments of four entries of R."""
    S = M @ M.mT
    second = 3 * (width + 1) * S.trace() ** 2 - 6 * (S @ S).trace()
    return (second / S.trace() ** 2 / (width * (width - 1) * (width + 2)) - 1 / width**2).sqrt()


def twin(view: View, layer: int, head: int, raw: bool) -> dict[str, Tensor]:
    M, F = dense(view, layer, head, raw)
    symmetric, of_F = torch.linalg.eigvalsh((M + M.mT) / 2), torch.linalg.eigvals(F)
    s_M, s_F = torch.linalg.svdvals(M), torch.linalg.svdvals(F)
    block = view.layer_heads[layer]
    own = of_F.real.sum() / of_F.abs().sum()
    width = view.width - int(block.norm.subtracts_mean and not raw)
    offsets = []
    for offset in OFFSETS:
        forth, back = dense(view, layer, head, raw, offset)[0], dense(view, layer, head, raw, -offset)[0]
        offsets.append((forth @ back).trace() / (forth.norm() * back.norm()))
    return {
        "symmetry": (M @ M).trace() / (M @ M.mT).trace(),
        "directionality": direction(M),
        "positive_share": symmetric.clamp(min=0).sum() / symmetric.abs().sum(),
        "positive_share_null": torch.tensor(0.5),
        "symmetry_null": torch.tensor(1 / width),
        "symmetry_null_sd": spread(M, width),
        "copying_null": torch.tensor(0.0),
        "alignment_null": torch.tensor(0.0),
        "alignment_null_sd": torch.tensor(1 / len(M)),
        "stable_rank_M": s_M.square().sum() / s_M[0] ** 2,
        "stable_rank_F": s_F.square().sum() / s_F[0] ** 2,
        "positivity_F": own,
        "copying": own if view.unembed is None else words(view, F, raw),
        "alignment": (F * M.mT).sum() / (F.norm() * M.norm()),
        "symmetry_at_offset": torch.stack(offsets),
        "singular_values_M": s_M[: block.W_Q.shape[-1]],
        "singular_values_F": s_F[: block.W_V.shape[-1]],
    }


@pytest.mark.parametrize(("name", "raw"), [*((name, False) for name in EVERY), *((name, True) for name in SOME)])
@torch.no_grad()
def test_every_field_equals_its_dense_twin(name: str, raw: bool) -> None:
    view = double(name).view
    found = rs.operators(view, raw=raw, draws=0)
    values = {field: x.transpose("layer", "head", ...).values for field, x in found.items() if "head" in x.dims}
    for layer in range(view.layers):
        for head in range(view.heads):
            for field, wanted in twin(view, layer, head, raw).items():
                got = values[field][layer, head]
                assert np.abs(got - wanted.numpy()).max() <= 1e-7 * max(1.0, float(wanted.abs().max())), field
        whole = sum(dense(view, layer, head, raw)[0] for head in range(view.heads))
        assert isinstance(whole, Tensor)
        assert float(found.layer_symmetry[layer]) == pytest.approx(
            float((whole @ whole).trace() / whole.norm() ** 2), abs=1e-9
        )
        assert float(found.layer_directionality[layer]) == pytest.approx(float(direction(whole)), abs=1e-7)


def test_the_twin_covers_every_field() -> None:
    found = rs.operators(double("gpt2").view)
    of_all = {f"mean_{name}{what}" for name in MEAN_FIELDS for what in ("", "_null_draws")}
    of_layers = {"layer_symmetry", "layer_directionality"}
    assert set(twin(double("gpt2").view, 0, 0, False)) | of_layers | of_all == set(found.data_vars)
    assert of_all - set(rs.operators(double("gpt2").view, draws=0).data_vars) == {
        f"mean_{x}_null_draws" for x in MEAN_FIELDS
    }


@some
def test_raw_and_folded_differ(name: str) -> None:
    """Random gains and centring matter (BERT and OPT-350m read the stream as it is: there they cannot)."""
    found, raw = (rs.operators(double(name).view, raw=raw) for raw in (False, True))
    same = float(abs(found.symmetry - raw.symmetry).max()) <= 1e-9
    assert same == (double(name).view.layer_heads[0].norm.gain is None)
    assert (found.attrs["raw"], raw.attrs["raw"]) == (0, 1)


def test_raw_is_the_bare_weights_of_the_model() -> None:
    """As papers do it, from Hugging Face's own tensors: W_Q W_K^T of a layer, all heads summed (arXiv:2502.10927)."""
    net, found = network("llama_linear", F64), rs.operators(double("llama_linear").view, raw=True)
    for layer, block in enumerate(net.model.layers):
        keys = block.self_attn.k_proj.weight.unflatten(0, (2, 8)).repeat_interleave(2, 0).flatten(0, 1)
        M = (block.self_attn.q_proj.weight.T @ keys).detach()
        assert float(found.layer_symmetry[layer]) == pytest.approx(float((M @ M).trace() / M.norm() ** 2), abs=1e-9)
        assert float(found.layer_directionality[layer]) == pytest.approx(float(direction(M)), abs=1e-9)


# Planted heads


def planted(change: Any, **more: Any) -> Any:
    """A GPT-2 of one head as wide as E, gains 1, biases 0, `change(W_Q, W_K, W_V, W_O)` made to its weights."""
    config = hf.GPT2Config(**GPT2 | {"n_head": 1, "n_layer": 1, "n_embd": 16} | more)
    net = randomised(hf.GPT2LMHeadModel(config)).double()
    with torch.no_grad():
        for norm in (net.transformer.h[0].ln_1, net.transformer.ln_f):
            norm.weight.fill_(1)
        of = rs.load(net)
        block = of.view.layer_heads[0]
        change(block.W_Q[0], block.W_K[0], block.W_V[0], block.W_O[0])
    return rs.load(net)


def minus_identity(W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> None:
    W_V.copy_(regular := random(3, 16, 16))
    W_O.copy_(-torch.linalg.inv(regular))


def test_a_head_that_carries_minus_the_token_inverts() -> None:
    """F = −I: positivity −1, and copying −1 with tied embeddings, whatever W_E is."""
    found = rs.operators(planted(minus_identity).view)
    assert float(found.positivity_F[0, 0]) == pytest.approx(-1, abs=1e-9)
    assert float(found.copying[0, 0]) == pytest.approx(-1, abs=1e-9)
    assert found.singular_values_F[0, 0].values[:15] == pytest.approx(np.ones(15))


def test_a_head_that_carries_the_token_copies() -> None:
    def identity(W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> None:
        minus_identity(W_Q, W_K, W_V, W_O)
        W_O.neg_()

    found = rs.operators(planted(identity).view)
    assert float(found.positivity_F[0, 0]) == pytest.approx(1, abs=1e-9)
    assert float(found.copying[0, 0]) == pytest.approx(1, abs=1e-9)


def test_tied_queries_and_keys_are_symmetric_and_positive() -> None:
    def tie(W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> None:
        W_Q.copy_(W_K)

    found = rs.operators(planted(tie).view)
    assert float(found.symmetry[0, 0]) == pytest.approx(1)
    assert float(found.positive_share[0, 0]) == pytest.approx(1)
    assert float(found.directionality[0, 0]) == pytest.approx(0, abs=1e-9)
    assert found.symmetry_at_offset[0, 0].values == pytest.approx(np.ones(len(OFFSETS)))


@pytest.mark.parametrize("name", ["llama", "llama_yarn", "llama_three", "neox"])
@torch.no_grad()
def test_tied_queries_and_keys_are_symmetric_at_every_offset_under_RoPE(name: str) -> None:
    """Law 4: M(δ) is then the transpose of M(−δ), though M(δ) itself is symmetric at 0 alone."""

    def tie(network: Any) -> None:
        for block in describe_model(network, None, name).view.layer_heads:
            block.W_Q.copy_(block.W_K.repeat_interleave(block.n_heads // len(block.W_K), 0))

    tied = changed(name, tie)
    found = rs.operators(tied.view)
    assert found.symmetry_at_offset.values == pytest.approx(np.ones(found.symmetry_at_offset.shape), abs=1e-6)
    assert found.symmetry.values == pytest.approx(1)
    assert float(abs(rs.operators(double(name).view).symmetry_at_offset).max()) < 0.9
    M = tied.view.head(0, 1).M(5).dense()
    assert gap(M, M.mT) > 1e-3 * float(M.abs().max())


def test_skew_queries_and_keys() -> None:
    def skew(W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> None:
        J = torch.block_diag(*[torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=F64)] * 8)
        W_Q.copy_(W_K @ J)

    found = rs.operators(planted(skew).view)
    assert float(found.symmetry[0, 0]) == pytest.approx(-1)


def test_a_head_that_climbs_its_own_relevance_is_aligned() -> None:
    """F = c Mᵀ: alignment 1."""

    def climb(W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> None:
        C = torch.eye(16, dtype=F64) - 1 / 16
        W_V.copy_(W_K)
        W_O.copy_(W_Q.mT @ C)

    assert float(rs.operators(planted(climb).view).alignment[0, 0]) == pytest.approx(1)


def test_keys_that_read_one_coordinate_have_a_direction() -> None:
    """A single heavy column (key side) of M: directionality 1; a heavy row: −1."""
    columns = torch.ones(1, 40, dtype=F64)
    columns[0, 3] = 50
    flat = torch.ones(1, 40, dtype=F64)
    assert float(directionality(flat, columns)) == 1
    assert float(directionality(columns, flat)) == -1
    assert float(directionality(columns, columns)) == 0
    assert float(directionality(flat, flat)) == 0


def test_heads_that_do_nothing_answer_without_nan() -> None:
    """M = 0 and F = 0, for one head and for all."""

    def silence(net: Any) -> None:
        for block in net.transformer.h:
            block.attn.c_attn.weight.zero_()
            block.attn.c_proj.weight.zero_()

    found = rs.operators(changed("gpt2", silence).view)
    for field in found.data_vars:
        assert np.isfinite(found[field].values).all(), field
    for field in (
        "symmetry",
        "directionality",
        "stable_rank_M",
        "stable_rank_F",
        "positivity_F",
        "copying",
        "alignment",
    ):
        assert (found[field].values == 0).all(), field
    assert (found.positive_share.values == 0.5).all()
    assert (found.layer_symmetry.values == 0).all()


def test_random_heads_sit_at_their_nulls() -> None:
    A = Factored(random(0, 300, 64, 8), random(1, 300, 8, 64))
    assert float(positive_share(A).mean()) == pytest.approx(0.5, abs=0.01)
    assert float(positivity(A.eigenvalues()).mean()) == pytest.approx(0, abs=0.05)
    mean, sd = symmetry_null(A.singular_values(), 64)
    assert np.allclose(mean, 1 / 64)
    z = (A.symmetry() - mean) / sd
    assert float(z.mean()) == pytest.approx(0, abs=0.15)
    assert float(z.std()) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(("rank", "width"), [(1, 5), (3, 7), (6, 8), (8, 8)])
def test_moments_of_symmetry_are_those_of_turned_operators(rank: int, width: int) -> None:
    """Slow: M between rotations; beside it the draws from corners, of few and of many heads."""
    S, generator = torch.linspace(1, 0.1, rank, dtype=F64), torch.Generator().manual_seed(0)
    M, R = torch.zeros(width, width, dtype=F64), random_rotations(4000, width, generator, F64)
    M[:rank, :rank] = S.diag()
    slow = (M @ R @ M @ R).diagonal(dim1=-2, dim2=-1).sum(-1) / M.square().sum()
    mean, sd = symmetry_null(S, width)
    own, again = (
        torch.stack(list(symmetry_null_draws(S.expand(h, -1), width, 4000 // h, generator))) for h in (50, 200)
    )
    for drawn in (slow, own.flatten(), again.flatten()):
        assert float(drawn.mean()) == pytest.approx(float(mean), abs=0.02)
        assert float(drawn.std()) == pytest.approx(float(sd), rel=0.08)
    ends = torch.tensor([0.05, 0.5, 0.95], dtype=F64)
    assert torch.allclose(own.flatten().quantile(ends), slow.quantile(ends), atol=0.05)


def test_a_pool_that_is_used_again_leaves_heads_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spread of the mean over heads is that of independent ones."""
    S, generator = torch.linspace(1, 0.1, 8, dtype=F64).expand(24, -1), torch.Generator().manual_seed(0)
    monkeypatch.setattr(rotated_heads, "MAX_POOLED_COLUMNS", 1024)
    drawn = torch.stack(list(symmetry_null_draws(S, 32, 2000, generator)))
    assert float(drawn.mean(-1).std()) == pytest.approx(float(symmetry_null(S[0], 32)[1]) / 24**0.5, rel=0.07)


def test_heads_with_one_key_are_as_independent_as_any_by_chance() -> None:
    """Queries turned by a rotation of each head's own, keys by one of the group: symmetry of two heads is uncorrelated."""
    generator = torch.Generator().manual_seed(0)
    K, (L, N) = random(0, 8, 3), (random(1, 8, 3), random(2, 8, 3))
    Q, P, R = (random_rotations(4000, 8, generator, F64) for _ in range(3))
    one, other = (Factored(A @ L, (R @ K).mT).symmetry() for A, L in ((Q, L), (P, N)))
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.06


def test_planted_symmetry_beats_random_heads_and_random_weights_do_not() -> None:
    """Grouped keys; what is planted goes far beyond every draw of the mean."""
    view = double("llama").view
    found = rs.operators(view, draws=99)
    for name in MEAN_FIELDS:
        own, drawn = (torch.as_tensor(found[f"mean_{name}{what}"].values) for what in ("", "_null_draws"))
        assert drawn.shape == (99,)
        assert float(own) == pytest.approx(float(found[name].mean()), abs=1e-6)
        assert 0.01 <= float(p_values(own, drawn)) <= 1
    again = rs.operators(view, draws=99)
    assert np.array_equal(again.mean_symmetry_null_draws, found.mean_symmetry_null_draws)

    def tie(network: Any) -> None:
        for block in describe_model(network, None, "llama").view.layer_heads:
            block.W_Q.copy_(block.W_K.repeat_interleave(block.n_heads // len(block.W_K), 0))

    tied = rs.operators(changed("llama", tie).view, draws=99)
    own, drawn = torch.as_tensor(tied.mean_symmetry.values), torch.as_tensor(tied.mean_symmetry_null_draws.values)
    assert float(p_values(own, drawn)) == pytest.approx(0.01)


# The Dataset


@once
def answer(name: str) -> Any:
    return rs.operators(model(name).view)


@some
def test_dimensions_names_and_definitions(name: str) -> None:
    found = answer(name)
    layers, heads = model(name).view.layers, model(name).view.heads
    pairs = ["symmetry", "directionality", "positive_share", "positive_share_null", "stable_rank_M", "stable_rank_F"]
    for field in [*pairs, "positivity_F", "copying", "alignment"]:
        assert found[field].dims == ("layer", "head")
        assert found[field].shape == (layers, heads)
    for field in ("layer_symmetry", "layer_directionality"):
        assert found[field].dims == ("layer",)
    assert found.symmetry_at_offset.dims == ("layer", "head", "offset")
    assert found.offset.values.tolist() == list(OFFSETS)
    assert found.singular_values_M.dims[:2] == found.singular_values_F.dims[:2] == ("layer", "head")
    assert set(OPERATORS.fields) == set(found.data_vars)
    for field, declared in OPERATORS.fields.items():
        assert found[field].attrs["definition"] == declared.definition
        assert found[field].dims == declared.dims
        assert ("basis" in found[field].attrs) == (field in {"directionality", "layer_directionality"})
    assert found.layer.values.tolist() == list(range(layers))


@some
def test_ranges(name: str) -> None:
    found = answer(name)
    for field in (
        "symmetry",
        "directionality",
        "positivity_F",
        "copying",
        "alignment",
        "symmetry_at_offset",
        "layer_symmetry",
    ):
        assert float(abs(found[field]).max()) <= 1 + 1e-6, field
    assert 0 <= float(found.positive_share.min()) <= float(found.positive_share.max()) <= 1
    assert float(found.stable_rank_M.min()) >= 1 - 1e-6
    for field in ("singular_values_M", "singular_values_F"):
        assert (np.diff(found[field].values, axis=-1) <= 1e-6).all()


def test_where_it_comes_from() -> None:
    attrs = answer("gpt2").attrs
    assert attrs["analysis"] == "operators"
    assert attrs["weights"] == model("gpt2").view.facts["weights"]
    assert attrs["type"] == "gpt2"
    assert attrs["certificate"].startswith("exact on 8 tokens")
    assert {"formula", "source", "space", "raw", "dtype", "device", "model"} <= set(attrs)


@some
def test_it_can_be_written_as_json_and_as_a_table(name: str) -> None:
    found = answer(name)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["attrs"]["analysis"] == "operators"
    assert np.allclose(told["data_vars"]["symmetry"]["data"], found.symmetry.values)
    table = found[["symmetry", "copying"]].to_dataframe()
    assert len(table) == model(name).view.layers * model(name).view.heads


def test_progress_is_told_layer_by_layer() -> None:
    told: list[tuple[int, int]] = []
    rs.operators(model("gemma3").view, progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_nothing_of_the_graph_is_kept_and_nothing_is_changed() -> None:
    before = copy.deepcopy(network("llama").state_dict())
    rs.operators(model("llama").view)
    assert all(torch.equal(x, before[key]) for key, x in network("llama").state_dict().items())

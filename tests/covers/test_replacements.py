"""Tests of the replacements of M and F: dense references at every offset, names, ranks and refused names."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.covers.replacements import CONTENT, RELEVANCE, find_replacement
from rheoscope.space.bilinear_form import heads_form, operator_at_offset
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import ModelRotary
from tests.cases import double, gap

F64 = torch.float64
SOME = [
    "gpt2",
    "llama",
    "llama_yarn",
    "qwen3",
    "gemma3",
    "neox",
    "opt_post",
    "bert",
    "own",
    "own_metric",
    "own_bilinear",
]
OFFSETS = (0, 1, 5, -3)


def turning(name: str) -> bool:
    """Whether a model has rotary positions."""
    return isinstance(double(name).view.layer_heads[0].mechanism.position, ModelRotary)


# Slow references: dense matrices, one offset at a time


@cache
def dense_M(heads: Heads, offset: int) -> Tensor:
    return heads.M()(offset).dense()


def positive_part(M: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((M + M.mT) / 2)
    return vectors * values.clamp(min=0)[..., None, :] @ vectors.mT


@cache
def singular_vectors(heads: Heads) -> tuple[Tensor, Tensor]:
    """The left and the right singular vectors of M at offset 0."""
    u, _, vh = torch.linalg.svd(dense_M(heads, 0))
    return u, vh


def low_rank_M(heads: Heads, offset: int, rank: int) -> Tensor:
    u, vh = singular_vectors(heads)
    u, v = u[..., :rank], vh[..., :rank, :].mT
    return u @ u.mT @ dense_M(heads, offset) @ v @ v.mT


DENSE: dict[str, Any] = {
    "symmetric": lambda heads, offset: (dense_M(heads, offset) + dense_M(heads, offset).mT) / 2,
    "symmetric_naive": lambda heads, offset: (dense_M(heads, offset) + dense_M(heads, offset).mT) / 2,
    "symmetric_scores": lambda heads, offset: (dense_M(heads, offset) + dense_M(heads, -offset).mT) / 2,
    "skew": lambda heads, offset: (dense_M(heads, offset) - dense_M(heads, offset).mT) / 2,
    "at_zero": lambda heads, offset: dense_M(heads, 0),
    "positive": lambda heads, offset: positive_part(dense_M(heads, offset)),
    "rank 3": lambda heads, offset: low_rank_M(heads, offset, 3),
}


def replaced_M(heads: Heads, M: str, offset: int) -> Tensor:
    replacement = find_replacement(M, RELEVANCE, "M")
    form = replacement.build(heads, heads_form(heads), replacement.rank)
    return operator_at_offset(heads, form, offset).dense()


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("M", DENSE)
@torch.no_grad()
def test_replacements_equal_dense_matrices_at_every_offset(M: str, name: str) -> None:
    heads = double(name).view.layer_heads[1]
    if M == "positive" and turning(name):
        with pytest.raises(rs.RheoscopeError, match="under RoPE M is another form at every offset"):
            replaced_M(heads, M, 0)
        return
    for offset in OFFSETS:
        assert gap(replaced_M(heads, M, offset), DENSE[M](heads, offset)) <= 1e-9


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "own_bilinear"])
@torch.no_grad()
def test_symmetric_and_skew_parts_add_up_to_M_and_are_idempotent(name: str) -> None:
    heads = double(name).view.layer_heads[0]
    form = heads_form(heads)
    for offset in OFFSETS:
        symmetric, skew = (replaced_M(heads, M, offset) for M in ("symmetric", "skew"))
        assert gap(symmetric + skew, dense_M(heads, offset)) <= 1e-9
        assert gap(symmetric, symmetric.mT) <= 1e-9
        assert gap(skew, -skew.mT) <= 1e-9
        for M, part in (("symmetric", symmetric), ("skew", skew)):
            build = RELEVANCE[M].build
            assert gap(operator_at_offset(heads, build(heads, build(heads, form, 0), 0), offset).dense(), part) <= 1e-9
        forward, backward = (replaced_M(heads, "symmetric_scores", sign * offset) for sign in (1, -1))
        assert gap(forward, backward.mT) <= 1e-9


@torch.no_grad()
def test_at_zero_ignores_the_offset_and_positive_keeps_positive_eigenvalues() -> None:
    heads = double("llama").view.layer_heads[0]
    assert gap(replaced_M(heads, "at_zero", 7), dense_M(heads, 0)) <= 1e-9
    assert gap(dense_M(heads, 7), dense_M(heads, 0)) > 1e-2
    unrotated = double("gpt2").view.layer_heads[0]
    part = replaced_M(unrotated, "positive", 0)
    values = torch.linalg.eigvalsh(part)
    assert float(values.min()) >= -1e-9
    assert float(values.max()) > 1e-2
    remainder = (dense_M(unrotated, 0) + dense_M(unrotated, 0).mT) / 2 - part
    assert float(torch.linalg.eigvalsh(remainder).max()) <= 1e-9
    assert gap(part @ remainder, torch.zeros_like(part)) <= 1e-9


@pytest.mark.parametrize("name", ["gpt2", "llama_yarn", "qwen3"])
@torch.no_grad()
def test_low_rank_M_has_its_rank_at_every_offset_and_is_optimal_at_offset_0(name: str) -> None:
    heads = double(name).view.layer_heads[0]
    full = heads.query_key_factors()[0].shape[-1]
    for rank in (1, 3, full):
        for offset in OFFSETS:
            assert int(torch.linalg.matrix_rank(replaced_M(heads, f"rank {rank}", offset), rtol=1e-9).max()) <= rank
        error = torch.linalg.matrix_norm(dense_M(heads, 0) - replaced_M(heads, f"rank {rank}", 0))
        tail = torch.linalg.svdvals(dense_M(heads, 0))[..., rank:].square().sum(-1).sqrt()
        assert gap(error, tail) <= 1e-9  # Eckart and Young
    assert gap(replaced_M(heads, f"rank {full}", 2), dense_M(heads, 2)) <= 1e-9


@torch.no_grad()
def test_replacements_of_F_equal_dense_matrices() -> None:
    heads = double("llama").view.layer_heads[1]
    F = heads.F().dense()
    assert gap(CONTENT["symmetric"].build(heads, heads.F(), 0).dense(), (F + F.mT) / 2) <= 1e-9
    u, s, vh = torch.linalg.svd(F)
    assert (
        gap(CONTENT["rank"].build(heads, heads.F(), 3).dense(), u[..., :3] * s[..., None, :3] @ vh[..., :3, :]) <= 1e-9
    )
    content = heads.F()
    assert CONTENT["identity"].build(heads, content, 0) is content


def test_naive_replacements_are_not_centred_and_say_so() -> None:
    for table in (RELEVANCE, CONTENT):
        for name in [name for name in table if name.endswith("_naive")]:
            centred = table[name.removesuffix("_naive")]
            assert (centred.centred, table[name].centred) == (True, False)
            assert table[name].description == f"{centred.description}, not centred"
        assert all(replacement.centred == (not name.endswith("_naive")) for name, replacement in table.items())


@pytest.mark.parametrize("name", ["rank 8", "rank:8", "rank=8"])
def test_a_rank_follows_its_name(name: str) -> None:
    assert find_replacement(name, RELEVANCE, "M").rank == find_replacement(name, CONTENT, "F").rank == 8
    assert find_replacement(name, RELEVANCE, "M").build is RELEVANCE["rank"].build
    assert find_replacement(name, CONTENT, "F").description == "the best approximation of F of rank 8"


@pytest.mark.parametrize("name", ["", "rank", "rank -1", "rank 1.5", "Symmetric", "symmetric ", "rank 8 8"])
def test_unknown_names_are_refused_with_all_names(name: str) -> None:
    with pytest.raises(
        rs.RheoscopeError, match=r"unknown replacement of M: .*, expected one of identity, symmetric"
    ) as error:
        find_replacement(name, RELEVANCE, "M")
    assert "'rank 8'; type M='symmetric'" in str(error.value)


@pytest.mark.parametrize(("rank", "max_rank"), [(0, 8), (9, 8), (99, 8)])
def test_ranks_out_of_range_are_refused(rank: int, max_rank: int) -> None:
    heads = double("llama").view.layer_heads[0]
    for operator, table, form in (("M", RELEVANCE, heads_form(heads)), ("F", CONTENT, heads.F())):
        message = (
            f"the rank of {operator} must lie between 1 and {max_rank} in this model, got {rank}; type {operator}="
        )
        with pytest.raises(rs.RheoscopeError, match=message):
            table["rank"].build(heads, form, rank)

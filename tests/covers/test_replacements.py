"""Replacements: every one equals its dense twin at every offset, and is what its name says."""

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
    """Whether the positions of a model turn queries and keys."""
    return isinstance(double(name).view.layer_heads[0].mechanism.position, ModelRotary)


# Slow twins: dense matrices, one offset after another


@cache
def dense_M(heads: Heads, offset: int) -> Tensor:
    return heads.M()(offset).dense()


def positive_part(M: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((M + M.mT) / 2)
    return vectors * values.clamp(min=0)[..., None, :] @ vectors.mT


def projected(heads: Heads, offset: int, rank: int) -> Tensor:
    u, _, vh = torch.linalg.svd(dense_M(heads, 0))
    u, v = u[..., :rank], vh[..., :rank, :].mT
    return u @ u.mT @ dense_M(heads, offset) @ v @ v.mT


DENSE: dict[str, Any] = {
    "symmetric": lambda heads, at: (dense_M(heads, at) + dense_M(heads, at).mT) / 2,
    "symmetric_naive": lambda heads, at: (dense_M(heads, at) + dense_M(heads, at).mT) / 2,
    "symmetric_scores": lambda heads, at: (dense_M(heads, at) + dense_M(heads, -at).mT) / 2,
    "skew": lambda heads, at: (dense_M(heads, at) - dense_M(heads, at).mT) / 2,
    "at_zero": lambda heads, at: dense_M(heads, 0),
    "positive": lambda heads, at: positive_part(dense_M(heads, at)),
    "rank 3": lambda heads, at: projected(heads, at, 3),
}


def replaced(heads: Heads, M: str, offset: int) -> Tensor:
    one = find_replacement(M, RELEVANCE, "M")
    return operator_at_offset(heads, one.build(heads, heads_form(heads), one.rank), offset).dense()


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("M", DENSE)
@torch.no_grad()
def test_it_equals_its_dense_twin_at_every_offset(M: str, name: str) -> None:
    heads = double(name).view.layer_heads[1]
    if M == "positive" and turning(name):
        with pytest.raises(rs.RheoscopeError, match="under RoPE M is another form at every offset"):
            replaced(heads, M, 0)
        return
    for offset in OFFSETS:
        assert gap(replaced(heads, M, offset), DENSE[M](heads, offset)) <= 1e-9


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "own_bilinear"])
@torch.no_grad()
def test_symmetric_and_skew_are_the_two_halves(name: str) -> None:
    """They add up to M(δ); one is its own transpose, the other the negative of it; once more changes nothing."""
    heads = double(name).view.layer_heads[0]
    own = heads_form(heads)
    for offset in OFFSETS:
        even, odd = (replaced(heads, M, offset) for M in ("symmetric", "skew"))
        assert gap(even + odd, dense_M(heads, offset)) <= 1e-9
        assert gap(even, even.mT) <= 1e-9
        assert gap(odd, -odd.mT) <= 1e-9
        for M, once in (("symmetric", even), ("skew", odd)):
            make = RELEVANCE[M].build
            assert gap(operator_at_offset(heads, make(heads, make(heads, own, 0), 0), offset).dense(), once) <= 1e-9
        both_ways = replaced(heads, "symmetric_scores", offset), replaced(heads, "symmetric_scores", -offset)
        assert gap(both_ways[0], both_ways[1].mT) <= 1e-9


@torch.no_grad()
def test_at_zero_is_one_form_and_positive_has_no_negative_direction() -> None:
    heads = double("llama").view.layer_heads[0]
    assert gap(replaced(heads, "at_zero", 7), dense_M(heads, 0)) <= 1e-9
    assert gap(dense_M(heads, 7), dense_M(heads, 0)) > 1e-2
    still = double("gpt2").view.layer_heads[0]
    part = replaced(still, "positive", 0)
    values = torch.linalg.eigvalsh(part)
    assert float(values.min()) >= -1e-9
    assert float(values.max()) > 1e-2
    rest = (dense_M(still, 0) + dense_M(still, 0).mT) / 2 - part
    assert float(torch.linalg.eigvalsh(rest).max()) <= 1e-9  # what is left has no positive one
    assert gap(part @ rest, torch.zeros_like(part)) <= 1e-9


@pytest.mark.parametrize("name", ["gpt2", "llama_yarn", "qwen3"])
@torch.no_grad()
def test_a_rank_is_kept_at_every_offset_and_is_the_best_at_none(name: str) -> None:
    heads = double(name).view.layer_heads[0]
    full = heads.query_key_factors()[0].shape[-1]
    for rank in (1, 3, full):
        for offset in OFFSETS:
            assert int(torch.linalg.matrix_rank(replaced(heads, f"rank {rank}", offset), rtol=1e-9).max()) <= rank
        lost = torch.linalg.matrix_norm(dense_M(heads, 0) - replaced(heads, f"rank {rank}", 0))
        tail = torch.linalg.svdvals(dense_M(heads, 0))[..., rank:].square().sum(-1).sqrt()
        assert gap(lost, tail) <= 1e-9  # Eckart and Young
    assert gap(replaced(heads, f"rank {full}", 2), dense_M(heads, 2)) <= 1e-9


@torch.no_grad()
def test_contents_equal_dense_ones() -> None:
    heads = double("llama").view.layer_heads[1]
    F = heads.F().dense()
    assert gap(CONTENT["symmetric"].build(heads, heads.F(), 0).dense(), (F + F.mT) / 2) <= 1e-9
    u, s, vh = torch.linalg.svd(F)
    assert (
        gap(CONTENT["rank"].build(heads, heads.F(), 3).dense(), u[..., :3] * s[..., None, :3] @ vh[..., :3, :]) <= 1e-9
    )
    own = heads.F()
    assert CONTENT["identity"].build(heads, own, 0) is own


def test_naive_ones_are_the_same_forms_without_centring() -> None:
    for table in (RELEVANCE, CONTENT):
        for name in [name for name in table if name.endswith("_naive")]:
            plain = table[name.removesuffix("_naive")]
            assert (plain.centred, table[name].centred) == (True, False)
            assert table[name].description == f"{plain.description.split(':')[0]}, not centred"
        assert all(one.centred == (not name.endswith("_naive")) for name, one in table.items())


@pytest.mark.parametrize("typed", ["rank 8", "rank:8", "rank=8"])
def test_a_rank_stands_behind_its_name(typed: str) -> None:
    assert find_replacement(typed, RELEVANCE, "M").rank == find_replacement(typed, CONTENT, "F").rank == 8
    assert find_replacement(typed, RELEVANCE, "M").build is RELEVANCE["rank"].build


@pytest.mark.parametrize("typed", ["", "rank", "rank -1", "rank 1.5", "Symmetric", "symmetric ", "rank 8 8"])
def test_what_is_no_name_is_refused_with_all_names(typed: str) -> None:
    with pytest.raises(
        rs.RheoscopeError, match=r"unknown replacement of M: .*; type one of identity, symmetric"
    ) as error:
        find_replacement(typed, RELEVANCE, "M")
    assert "'rank 8'" in str(error.value)


@pytest.mark.parametrize(("rank", "most"), [(0, 8), (9, 8), (99, 8)])
def test_ranks_that_no_head_has_are_refused(rank: int, most: int) -> None:
    heads = double("llama").view.layer_heads[0]
    for what, table, own in (("M", RELEVANCE, heads_form(heads)), ("F", CONTENT, heads.F())):
        with pytest.raises(
            rs.RheoscopeError, match=f"the rank of {what} lies in 1 to {most} in this model, got {rank}; type {what}="
        ):
            table["rank"].build(heads, own, rank)

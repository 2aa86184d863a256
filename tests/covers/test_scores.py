"""The parts of a score: they add up to the model's own, shares add up to 1, biases that softmax cannot see have none."""

import pytest
import torch

import rheoscope as rs
from rheoscope.covers.scores.analysis import (
    SHARE_FIELDS,
    allowed_pairs,
    apply_positions,
    query_key_parts,
    score_factors,
    variance_shares,
)
from rheoscope.space.model_parts import ModelRotary
from tests.pretrained.cases import KINDS, double, gap, text, traced

F64 = torch.float64


@pytest.mark.parametrize("name", KINDS)
def test_parts_add_up_to_the_models_scores(name: str) -> None:
    trace, kept = traced(name, F64), torch.ones(1, len(text()), dtype=torch.bool)
    for layer, heads in enumerate(trace.view.layer_heads):
        queries, keys = query_key_parts(heads, trace.layer_input(layer)[None], kept)
        parts = sum(a @ b.mT for a, b in score_factors(*apply_positions(heads, queries, keys)))[0]
        for head in range(heads.n_heads):
            bare = trace.scores(layer, head)
            bias = heads.mechanism.position.bias(torch.arange(len(bare)), torch.arange(len(bare)))
            assert gap(parts[head] + (0 if bias is None else bias[0]), bare) <= 1e-4


@pytest.mark.parametrize("name", KINDS)
def test_shares_add_up_to_one_and_what_is_constant_has_none(name: str) -> None:
    found = rs.scores(traced(name, F64), keep_massive=True)
    total = sum(found[share] for share in SHARE_FIELDS)
    assert float(abs(total - 1).max()) <= 1e-9
    if not isinstance(double(name).view.layer_heads[0].mechanism.position, ModelRotary):
        assert float(abs(found.mean_key).max()) <= 1e-9
        assert float(abs(found.key_bias).max()) <= 1e-9
    assert float(found.row_sd.min()) > 0
    assert bool(((found.positive_share_cloud >= 0) & (found.positive_share_cloud <= 1)).all())


def test_shares_equal_a_slow_loop_over_rows() -> None:
    torch.manual_seed(0)
    n = 6
    q, k = torch.randn(2, 3, 2, n, 4, dtype=F64)
    allowed = torch.ones(n, n, dtype=torch.bool).tril()
    shares, spread = variance_shares(q, k, allowed)
    for head in range(2):
        parts = torch.stack([a @ b.mT for a, b in score_factors(q[:, head], k[:, head])])
        along = [parts[:, i, : i + 1] - parts[:, i, : i + 1].mean(-1, keepdim=True) for i in range(n)]
        variance = sum(row.sum(0).square().sum() for row in along)
        slow = sum((row * row.sum(0)).sum(-1) for row in along) / variance
        assert gap(shares[head], slow) <= 1e-12
        assert abs(float(spread[head] - (variance / allowed.sum()).sqrt())) <= 1e-12


def test_a_head_of_biases_alone_says_so() -> None:
    """W_Q = 0 and a bias of queries: the token that asks has no say."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    network = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9)).double()
    with torch.no_grad():
        network.transformer.h[0].attn.c_attn.weight[:, :8] = 0
        network.transformer.h[0].attn.c_attn.bias[:8] = 1.0
    found = rs.scores(rs.load(network).trace([1, 5, 2, 7, 3]))
    assert gap(torch.as_tensor(found.query_bias.values), torch.ones(1, 2)) <= 1e-9


def test_massive_tokens_are_dropped_and_listed() -> None:
    trace = traced("gpt2", F64)
    points = trace.points.clone()
    points[1, 2] *= 100
    from dataclasses import replace

    planted = replace(trace, points=points)
    assert planted.massive_tokens() == [2]
    found = rs.scores(planted)
    assert found.attrs["massive"] == [2]
    assert float(abs(found.centred - rs.scores(planted, keep_massive=True).centred).max()) > 0


def test_one_token_is_refused_in_one_line() -> None:
    with pytest.raises(rs.RheoscopeError, match="at least 2 tokens that are not massive, got 1; use a longer text"):
        rs.scores(double("gpt2").trace([1]))


def test_permitted_is_the_heads_own_mask() -> None:
    heads = double("mistral").view.layer_heads[0]
    i = torch.arange(9)
    assert bool((allowed_pairs(heads, 9, i.device) == heads.mechanism.mask(i, i)).all())

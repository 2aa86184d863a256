"""Tests of `scores`: the parts add up to the scores, slow variance shares, biases, massive tokens and masks."""

from dataclasses import replace

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
def test_parts_add_up_to_the_scores_of_the_model(name: str) -> None:
    trace, is_included = traced(name, F64), torch.ones(1, len(text()), dtype=torch.bool)
    for layer, heads in enumerate(trace.view.layer_heads):
        queries, keys = query_key_parts(heads, trace.layer_input(layer)[None], is_included)
        parts = sum(a @ b.mT for a, b in score_factors(*apply_positions(heads, queries, keys)))[0]
        for head in range(heads.n_heads):
            scores = trace.scores(layer, head)
            bias = heads.mechanism.position.bias(torch.arange(len(scores)), torch.arange(len(scores)))
            assert gap(parts[head] + (0 if bias is None else bias[0]), scores) <= 1e-4


@pytest.mark.parametrize("name", KINDS)
def test_shares_sum_to_1_and_terms_constant_along_rows_have_share_0(name: str) -> None:
    result = rs.scores(traced(name, F64), keep_massive=True)
    total = sum(result[share] for share in SHARE_FIELDS)
    assert float(abs(total - 1).max()) <= 1e-9
    if not isinstance(double(name).view.layer_heads[0].mechanism.position, ModelRotary):
        assert float(abs(result.mean_key).max()) <= 1e-9
        assert float(abs(result.key_bias).max()) <= 1e-9
    assert float(result.row_sd.min()) > 0
    assert bool(((result.positive_share_cloud >= 0) & (result.positive_share_cloud <= 1)).all())


def test_variance_shares_equal_a_loop_over_rows() -> None:
    torch.manual_seed(0)
    n = 6
    q, k = torch.randn(2, 3, 2, n, 4, dtype=F64)
    allowed = torch.ones(n, n, dtype=torch.bool).tril()
    shares, row_sd = variance_shares(q, k, allowed)
    for head in range(2):
        parts = torch.stack([a @ b.mT for a, b in score_factors(q[:, head], k[:, head])])
        centred_rows = [parts[:, i, : i + 1] - parts[:, i, : i + 1].mean(-1, keepdim=True) for i in range(n)]
        variance = sum(row.sum(0).square().sum() for row in centred_rows)
        expected = sum((row * row.sum(0)).sum(-1) for row in centred_rows) / variance
        assert gap(shares[head], expected) <= 1e-12
        assert abs(float(row_sd[head] - (variance / allowed.sum()).sqrt())) <= 1e-12


def test_a_head_with_only_a_query_bias_has_query_bias_share_1() -> None:
    """W_Q = 0, so the scores do not depend on the query's token."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    network = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9)).double()
    with torch.no_grad():
        network.transformer.h[0].attn.c_attn.weight[:, :8] = 0
        network.transformer.h[0].attn.c_attn.bias[:8] = 1.0
    result = rs.scores(rs.load(network).trace([1, 5, 2, 7, 3]))
    assert gap(torch.as_tensor(result.query_bias.values), torch.ones(1, 2)) <= 1e-9


def test_massive_tokens_are_left_out_and_listed() -> None:
    trace = traced("gpt2", F64)
    points = trace.points.clone()
    points[1, 2] *= 100
    planted = replace(trace, points=points)
    assert planted.massive_tokens() == [2]
    result = rs.scores(planted)
    assert result.attrs["massive"] == [2]
    assert float(abs(result.centred - rs.scores(planted, keep_massive=True).centred).max()) > 0


def test_a_text_of_one_token_is_refused() -> None:
    with pytest.raises(rs.RheoscopeError, match="at least 2 tokens that are not massive, got 1; use a longer text"):
        rs.scores(double("gpt2").trace([1]))


@pytest.mark.parametrize(
    ("name", "window"), [("gpt2", None), ("bert", "both"), ("mistral", 5)], ids=["causal", "bidirectional", "sliding"]
)
def test_allowed_pairs_equal_a_loop_over_positions(name: str, window: int | str | None) -> None:
    n = 9
    allowed = allowed_pairs(double(name).view.layer_heads[0], n, torch.device("cpu"))
    for i in range(n):
        for j in range(n):
            is_recent = window is None or (isinstance(window, int) and i - j < window)
            assert bool(allowed[i, j]) == (window == "both" or (j <= i and is_recent)), (i, j)

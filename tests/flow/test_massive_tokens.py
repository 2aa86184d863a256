"""Tests of massive_tokens: planted tokens, shares of attention, invariances and errors."""

from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from tests.pretrained.cases import random, traced


def test_planted_massive_token_has_its_first_step_and_coordinate() -> None:
    trace = rs.load().trace("The keys to the cabinet are on the table")
    points = trace.points / trace.points.norm(dim=-1, keepdim=True)
    points[3:, 2] *= 1e-3
    points[3:, 2, 7] += 20.0
    points[5:, 2, 7] += 10.0
    result = rs.massive_tokens(replace(trace, points=points))
    assert result.token.values.tolist() == [2]
    assert result.attrs["tokens"] == [trace.tokens[2]]
    assert int(result.first_step[0]) == 3
    assert float(result.max_relative_norm[0]) == pytest.approx(30, rel=1e-3)
    assert int(result.coordinate[0, 0]) == 7
    assert float(result.coordinate_share[0, 0]) > 0.999


def test_sink_mass_is_the_share_of_all_attention() -> None:
    trace = traced("gpt2", torch.float64)
    result = rs.massive_tokens(replace(trace, points=trace.points), norm_ratio=1.01)
    token = int(result.token[0])
    expected = torch.stack([trace.weights(1, head)[:, token].sum() for head in range(trace.view.heads)]).mean() / len(
        trace
    )
    assert float(result.sink_mass.sel(layer=1)[0]) == pytest.approx(float(expected))


def test_rotations_and_scales_do_not_change_relative_norms() -> None:
    trace = traced("llama", torch.float64)
    Q = torch.linalg.qr(random(5, 32, 32))[0]
    plain, transformed = (
        rs.massive_tokens(replace(trace, points=x), norm_ratio=1.05) for x in (trace.points, 3 * trace.points @ Q)
    )
    assert plain.token.values.tolist() == transformed.token.values.tolist()
    assert float(abs(plain.relative_norm - transformed.relative_norm).max()) < 1e-9


def test_a_text_without_massive_tokens_and_invalid_settings() -> None:
    trace = rs.load().trace("The keys")
    assert rs.massive_tokens(trace, norm_ratio=1e9).sizes["token"] == 0
    with pytest.raises(rs.RheoscopeError, match=r"norm_ratio must be larger than 1, got 1.0; type norm_ratio=5.0"):
        rs.massive_tokens(trace, norm_ratio=1.0)
    with pytest.raises(
        rs.RheoscopeError, match="top must lie between 1 and the width of the model, 256, got 257; type top=3"
    ):
        rs.massive_tokens(trace, top=257)

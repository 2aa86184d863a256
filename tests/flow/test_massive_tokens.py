"""Massive tokens: planted ones are found with their step and their coordinate; none is an answer too."""

from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from tests.pretrained.cases import random, traced


def test_a_planted_giant_is_named_with_its_birth_and_its_coordinate() -> None:
    trace = rs.load().trace("The keys to the cabinet are on the table")
    points = trace.points / trace.points.norm(dim=-1, keepdim=True)
    points[3:, 2] *= 1e-3
    points[3:, 2, 7] += 20.0
    points[5:, 2, 7] += 10.0
    found = rs.massive_tokens(replace(trace, points=points))
    assert found.token.values.tolist() == [2]
    assert found.attrs["tokens"] == [trace.tokens[2]]
    assert int(found.born[0]) == 3
    assert float(found.largest[0]) == pytest.approx(30, rel=1e-3)
    assert int(found.coordinate[0, 0]) == 7
    assert float(found.coordinate_share[0, 0]) > 0.999


def test_attention_to_a_token_is_its_share_of_all_attention() -> None:
    trace = traced("gpt2", torch.float64)
    found = rs.massive_tokens(replace(trace, points=trace.points), times=1.01)
    token = int(found.token[0])
    slow = torch.stack([trace.weights(1, head)[:, token].sum() for head in range(trace.view.heads)]).mean() / len(trace)
    assert float(found.sink_mass.sel(layer=1)[0]) == pytest.approx(float(slow))


def test_lengths_follow_no_turn_and_no_scale() -> None:
    trace = traced("llama", torch.float64)
    Q = torch.linalg.qr(random(5, 32, 32))[0]
    one, other = (rs.massive_tokens(replace(trace, points=x), times=1.05) for x in (trace.points, 3 * trace.points @ Q))
    assert one.token.values.tolist() == other.token.values.tolist()
    assert float(abs(one.length - other.length).max()) < 1e-9


def test_no_massive_token_is_an_answer_and_bad_settings_are_told() -> None:
    trace = rs.load().trace("The keys")
    assert rs.massive_tokens(trace, times=1e9).sizes["token"] == 0
    with pytest.raises(rs.RheoscopeError, match=r"times is above 1 and top from 1 to 256, got 1.0 and 3; type times"):
        rs.massive_tokens(trace, times=1.0)

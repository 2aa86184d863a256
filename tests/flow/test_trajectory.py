"""Paths of tokens: equal to slow sums, bounded, unchanged by a turn of the axes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.flow.projection import top_axes_by_iteration, top_axes_by_svd
from rheoscope.flow.trajectory.analysis import measures_from_displacements, measures_from_inner_products, random_signs
from tests.cases import EVERY, double, random, text, traced
from tests.pretrained.cases import KINDS

F64 = torch.float64
HEADS = {"head_speed", "head_cosine"}


@pytest.mark.parametrize("name", KINDS)
def test_every_number_equals_a_slow_one(name: str) -> None:
    trace = traced(name, F64)
    found = rs.trajectory(trace, keep_massive=True)
    x = trace.points.numpy()
    for token in (0, len(trace) - 1):
        moves = [x[s + 1, token] - x[s, token] for s in range(len(x) - 1)]
        lengths = [np.linalg.norm(move) for move in moves]
        assert np.allclose(found.speed.values[:, token], lengths)
        assert np.allclose(found.relative_speed.values[1, token], lengths[1] / np.linalg.norm(x[1, token]))
        assert float(found.path_length[token]) == pytest.approx(sum(lengths))
        assert float(found.chord[token]) == pytest.approx(np.linalg.norm(x[-1, token] - x[0, token]))
        assert float(found.straightness[token]) == pytest.approx(np.linalg.norm(sum(moves)) / sum(lengths))
        cosine = moves[0] @ moves[1] / lengths[0] / lengths[1]
        assert float(found.turning[0, token]) == pytest.approx(np.arccos(cosine), abs=1e-7)
    assert bool((found.straightness <= 1 + 1e-12).all())
    assert bool((found.attention_share > 0).all())
    assert bool((found.attention_share < 1).all())
    assert found.sizes["layer"] == trace.view.layers


@pytest.mark.parametrize("name", EVERY)
def test_heads_are_measured_one_token_after_the_other(name: str) -> None:
    trace = traced(name, F64)
    kept = [at for at in range(len(trace)) if at not in trace.massive_tokens()]
    found = rs.trajectory(trace, space="sphere")
    for layer in range(trace.view.layers):
        moved = trace.attention_parts(layer)[0].numpy()
        whole = (trace.points[trace.mid_steps[layer]] - trace.layer_input(layer)).numpy()
        for head in (0, 3):
            lengths = [np.linalg.norm(moved[head, at]) for at in kept]
            sizes = [length * np.linalg.norm(whole[at]) for length, at in zip(lengths, kept, strict=True)]
            along = [moved[head, at] @ whole[at] for at in kept]
            cosines = [a / size if size else 0 for a, size in zip(along, sizes, strict=True)]
            assert float(found.head_speed[layer, head]) == pytest.approx(np.mean(lengths))
            assert float(found.head_cosine[layer, head]) == pytest.approx(np.mean(cosines), abs=1e-6)


def test_a_turn_of_the_axes_changes_nothing_and_a_scale_scales() -> None:
    trace = traced("llama", F64)
    Q = torch.linalg.qr(torch.randn(32, 32, dtype=F64, generator=torch.Generator().manual_seed(0)))[0]
    plain, turned = rs.trajectory(trace), rs.trajectory(replace(trace, points=trace.points @ Q))
    doubled = rs.trajectory(replace(trace, points=2 * trace.points))
    for field in set(plain.data_vars) - HEADS:  # heads are turned with the weights: tests/laws
        assert float(abs(plain[field] - turned[field]).max()) <= 1e-7, field
    assert np.allclose(doubled.path_length, 2 * plain.path_length)
    assert np.allclose(doubled.turning, plain.turning)


def test_a_straight_line_is_straight_and_a_way_back_turns() -> None:
    trace = traced("gpt2", F64)
    along = torch.arange(len(trace.steps), dtype=F64)[:, None, None] * torch.ones_like(trace.points[:1])
    straight = rs.trajectory(replace(trace, points=along + trace.points[:1]))
    assert np.allclose(straight.straightness, 1)
    assert float(abs(straight.turning).max()) <= 1e-7
    back = rs.trajectory(replace(trace, points=(along % 2) + trace.points[:1]))
    assert float(back.turning.min()) == pytest.approx(np.pi)


def test_a_token_that_rests_has_a_defined_answer() -> None:
    trace = traced("gpt2", F64)
    still = rs.trajectory(replace(trace, points=trace.points[:1].expand_as(trace.points)))
    for field in still.data_vars:
        assert bool(np.isfinite(still[field]).all()), field
    assert float(still.straightness.max()) == 0


def test_the_map_of_the_paths_is_the_plane_of_the_frames() -> None:
    trace = traced("gpt2", F64)
    found = rs.trajectory(trace, keep_massive=True)
    assert np.allclose(
        found.place.values[[*trace.input_steps, -1]], rs.frames(trace, count=99, keep_massive=True).place
    )
    assert np.allclose(found.place_share, (found.place.values**2).mean((0, 1)))
    assert float(found.place_share.sum()) <= 1
    before = torch.random.get_rng_state()
    assert rs.trajectory(trace, keep_massive=True).place.equals(found.place)
    assert torch.equal(before, torch.random.get_rng_state())
    assert found.token_text.values.tolist() == trace.tokens


def test_straightness_so_far_ends_at_the_straightness_of_the_way() -> None:
    trace = traced("llama", F64)
    found = rs.trajectory(trace, keep_massive=True)
    assert np.allclose(found.straightness_so_far[-1], found.straightness)
    x = trace.points[: trace.input_steps[1] + 1]
    first = (x[-1] - x[0]).norm(dim=-1) / x.diff(dim=0).norm(dim=-1).sum(0)
    assert np.allclose(found.straightness_so_far[0], first)


def test_spaces_grains_and_bad_points_are_told_in_one_line() -> None:
    trace = double("gpt2").trace(text())
    assert float(rs.trajectory(trace, space="sphere").path_length.max()) < float(rs.trajectory(trace).path_length.max())
    rs.trajectory(trace, space="normed")
    with pytest.raises(
        rs.RheoscopeError, match="space must be one of raw, normed, sphere, got 'moon'; type space='raw'"
    ):
        rs.trajectory(trace, space="moon")
    with pytest.raises(rs.RheoscopeError, match="hold NaN or infinity"):
        rs.trajectory(replace(trace, points=trace.points * float("nan")), keep_massive=True)


@pytest.mark.parametrize(("dtype", "off"), [(F64, 1e-7), (torch.bfloat16, 1e-2)])
def test_inner_products_of_displacements_tell_the_same_as_displacements(dtype: torch.dtype, off: float) -> None:
    """What a GPU computes for a model in half precision: rounding hardly shows."""
    points = traced("gpt2", F64).points
    points = torch.stack([points, points.flip(1)])
    points[0, :, 3] = points[0, :1, 3]
    sign, moved = random_signs(points, 5, 0), points.diff(dim=1).transpose(1, 2).to(dtype)
    due, found = measures_from_displacements(points, sign), measures_from_inner_products(moved, sign)
    for wanted, value in zip(due, found, strict=True):
        assert torch.allclose(value.double(), wanted, rtol=off, atol=off * float(wanted.abs().max()))


def test_the_plane_is_the_same_by_iteration() -> None:
    for width in (3, 40):
        x = random(0, 2, 200, width) * torch.linspace(3, 0.5, width, dtype=F64) ** 2
        spread = x.mT @ x
        one, other = top_axes_by_svd(spread), top_axes_by_iteration(spread)
        assert torch.allclose((one.mT @ other).abs(), torch.eye(2, dtype=F64).expand(2, 2, 2), atol=1e-6)
    flat = torch.zeros(1, 4, 4, dtype=F64)
    flat[0, 0, 0] = 2
    assert float(top_axes_by_iteration(flat)[0, 0, 0].abs()) == pytest.approx(1)

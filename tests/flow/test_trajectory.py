"""Tests of trajectory: slow sums, rotations, straight and resting paths, the plane, and errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.flow.projection import top_axes_by_iteration, top_axes_by_svd
from rheoscope.flow.trajectory.analysis import measures_from_displacements, measures_from_inner_products, random_signs
from rheoscope.space.step import Step
from tests.cases import EVERY, double, random, text, traced
from tests.models import test_encoder_decoder as linked
from tests.pretrained.cases import KINDS

F64 = torch.float64
HEADS = {"head_speed", "head_cosine"}


@pytest.mark.parametrize("name", KINDS)
def test_every_field_equals_a_slow_computation(name: str) -> None:
    trace = traced(name, F64)
    result = rs.trajectory(trace, keep_massive=True)
    x = trace.points.numpy()
    for token in (0, len(trace) - 1):
        moves = [x[s + 1, token] - x[s, token] for s in range(len(x) - 1)]
        lengths = [np.linalg.norm(move) for move in moves]
        assert np.allclose(result.speed.values[:, token], lengths)
        assert np.allclose(result.relative_speed.values[1, token], lengths[1] / np.linalg.norm(x[1, token]))
        assert float(result.path_length[token]) == pytest.approx(sum(lengths))
        assert float(result.chord[token]) == pytest.approx(np.linalg.norm(x[-1, token] - x[0, token]))
        assert float(result.straightness[token]) == pytest.approx(np.linalg.norm(sum(moves)) / sum(lengths))
        cosine = moves[0] @ moves[1] / lengths[0] / lengths[1]
        assert float(result.turning[0, token]) == pytest.approx(np.arccos(cosine), abs=1e-7)
    assert bool((result.straightness <= 1 + 1e-12).all())
    assert bool((result.attention_share > 0).all())
    assert bool((result.attention_share < 1).all())
    assert result.sizes["layer"] == trace.view.layers


@pytest.mark.parametrize("name", EVERY)
def test_head_speeds_and_cosines_equal_a_loop_over_tokens(name: str) -> None:
    trace = traced(name, F64)
    retained = [position for position in range(len(trace)) if position not in trace.massive_tokens()]
    result = rs.trajectory(trace, space="sphere")
    for layer in range(trace.view.layers):
        head_displacement = trace.attention_parts(layer)[0].numpy()
        attention_displacement = (trace.points[trace.mid_steps[layer]] - trace.layer_input(layer)).numpy()
        for head in (0, 3):
            lengths = [np.linalg.norm(head_displacement[head, position]) for position in retained]
            sizes = [
                length * np.linalg.norm(attention_displacement[position])
                for length, position in zip(lengths, retained, strict=True)
            ]
            products = [head_displacement[head, position] @ attention_displacement[position] for position in retained]
            cosines = [a / size if size else 0 for a, size in zip(products, sizes, strict=True)]
            assert float(result.head_speed[layer, head]) == pytest.approx(np.mean(lengths))
            assert float(result.head_cosine[layer, head]) == pytest.approx(np.mean(cosines), abs=1e-6)


def test_rotations_change_nothing_and_scales_scale_lengths() -> None:
    trace = traced("llama", F64)
    Q = torch.linalg.qr(torch.randn(32, 32, dtype=F64, generator=torch.Generator().manual_seed(0)))[0]
    plain, rotated = rs.trajectory(trace), rs.trajectory(replace(trace, points=trace.points @ Q))
    doubled = rs.trajectory(replace(trace, points=2 * trace.points))
    for field in set(plain.data_vars) - HEADS:  # tests/laws rotates the heads together with the weights
        assert float(abs(plain[field] - rotated[field]).max()) <= 1e-7, field
    assert np.allclose(doubled.path_length, 2 * plain.path_length)
    assert np.allclose(doubled.turning, plain.turning)


def test_a_straight_line_has_straightness_1_and_a_reversal_turns_by_pi() -> None:
    trace = traced("gpt2", F64)
    line = torch.arange(len(trace.steps), dtype=F64)[:, None, None] * torch.ones_like(trace.points[:1])
    straight = rs.trajectory(replace(trace, points=line + trace.points[:1]))
    assert np.allclose(straight.straightness, 1)
    assert float(abs(straight.turning).max()) <= 1e-7
    back = rs.trajectory(replace(trace, points=(line % 2) + trace.points[:1]))
    assert float(back.turning.min()) == pytest.approx(np.pi)


def test_a_resting_token_has_finite_fields() -> None:
    trace = traced("gpt2", F64)
    resting = rs.trajectory(replace(trace, points=trace.points[:1].expand_as(trace.points)))
    for field in resting.data_vars:
        assert bool(np.isfinite(resting[field]).all()), field
    assert float(resting.straightness.max()) == 0


def test_paths_are_projected_on_the_plane_of_frames() -> None:
    trace = traced("gpt2", F64)
    result = rs.trajectory(trace, keep_massive=True)
    assert np.allclose(
        result.plane_position.values[[*trace.input_steps, -1]],
        rs.frames(trace, n_frames=99, keep_massive=True).plane_position,
    )
    assert np.allclose(result.plane_variance_share, (result.plane_position.values**2).mean((0, 1)))
    assert float(result.plane_variance_share.sum()) <= 1
    rng_state = torch.random.get_rng_state()
    assert rs.trajectory(trace, keep_massive=True).plane_position.equals(result.plane_position)
    assert torch.equal(rng_state, torch.random.get_rng_state())
    assert result.token_text.values.tolist() == trace.tokens


def test_straightness_so_far_ends_at_the_straightness_of_the_path() -> None:
    trace = traced("llama", F64)
    result = rs.trajectory(trace, keep_massive=True)
    assert np.allclose(result.straightness_so_far[-1], result.straightness)
    x = trace.points[: trace.input_steps[1] + 1]
    first = (x[-1] - x[0]).norm(dim=-1) / x.diff(dim=0).norm(dim=-1).sum(0)
    assert np.allclose(result.straightness_so_far[0], first)


def test_displacements_are_those_of_the_space_and_invalid_points_raise() -> None:
    trace = double("gpt2").trace(text())
    spaces = {
        "sphere": trace.points / trace.points.norm(dim=-1, keepdim=True),
        "normed": trace.view.final_norm.apply(trace.points).detach(),
    }
    for space, points in spaces.items():
        result = rs.trajectory(trace, space=space, keep_massive=True)
        assert np.allclose(result.speed, points.diff(dim=0).norm(dim=-1))
        assert result.attrs["space"] == space
    with pytest.raises(
        rs.RheoscopeError, match="space must be one of raw, normed, sphere, got 'moon'; type space='raw'"
    ):
        rs.trajectory(trace, space="moon")
    with pytest.raises(rs.RheoscopeError, match="the points of this text contain NaN or infinity"):
        rs.trajectory(replace(trace, points=trace.points * float("nan")), keep_massive=True)


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-7), (torch.bfloat16, 1e-2)])
def test_inner_products_give_the_same_measures_as_displacements(dtype: torch.dtype, tolerance: float) -> None:
    """A GPU uses inner products for a model in half precision. Rounding hardly changes the result."""
    points = traced("gpt2", F64).points
    points = torch.stack([points, points.flip(1)])
    points[0, :, 3] = points[0, :1, 3]
    sign, head_displacement = random_signs(points, 5, 0), points.diff(dim=1).transpose(1, 2).to(dtype)
    expected, result = measures_from_displacements(points, sign), measures_from_inner_products(head_displacement, sign)
    for expected_value, value in zip(expected, result, strict=True):
        assert torch.allclose(
            value.double(), expected_value, rtol=tolerance, atol=tolerance * float(expected_value.abs().max())
        )


def test_subspace_iteration_gives_the_axes_of_the_svd() -> None:
    for width in (3, 40):
        x = random(0, 2, 200, width) * torch.linspace(3, 0.5, width, dtype=F64) ** 2
        scatter = x.mT @ x
        by_svd, by_iteration = top_axes_by_svd(scatter), top_axes_by_iteration(scatter)
        assert torch.allclose((by_svd.mT @ by_iteration).abs(), torch.eye(2, dtype=F64).expand(2, 2, 2), atol=1e-6)
    flat = torch.zeros(1, 4, 4, dtype=F64)
    flat[0, 0, 0] = 2
    assert float(top_axes_by_iteration(flat)[0, 0, 0].abs()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["post", "branch"])
def test_the_target_of_a_pair_has_the_path_of_its_source(name: str) -> None:
    pair = linked.traced(name, F64)
    result, source = rs.trajectory(pair.target), rs.trajectory(pair.source)
    layers = np.array([Step.parse(str(step)).layer for step in source.step.values])
    medians = np.median(source.relative_speed.values, axis=1)
    expected = [medians[layers == layer].sum() for layer in range(pair.source.view.layers)]
    np.testing.assert_allclose(result.source_path.values, expected)
    assert float(result.source_straightness) == pytest.approx(float(source.straightness.mean()))
    assert float(result.source_straightness_null) == pytest.approx(float(source.straightness_null.mean()))
    assert "source_path" not in source

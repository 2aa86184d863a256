"""Tests of frames: one plane for all frames, the explained variance, and the direction of the prediction."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.flow.frames.analysis import evenly_spaced, logit_direction
from rheoscope.flow.projection import centred_directions, fit_plane
from tests.cases import double, text, traced

F64 = torch.float64


def slow_directions(x: np.ndarray) -> np.ndarray:
    """Directions around the mean, token by token."""
    return np.stack([(point - x.mean(0)) / np.linalg.norm(point - x.mean(0)) for point in x])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_every_field_equals_a_slow_computation(name: str) -> None:
    trace = traced(name, F64)
    result = rs.frames(trace, keep_massive=True)
    layer_directions = [slow_directions(trace.points[index].numpy()) for index in (*trace.input_steps, -1)]
    _, sigma, axes = np.linalg.svd(np.concatenate(layer_directions), full_matrices=False)
    projected = np.stack([u @ axes[:2].T for u in layer_directions])
    signs = [column[abs(column).argmax()] for column in projected.reshape(-1, 2).T]
    assert np.allclose(result.plane_position, projected * np.sign(signs), atol=1e-7)
    assert np.allclose(result.explained_variance.mean(), (sigma[:2] ** 2).sum() / (sigma**2).sum())
    assert np.allclose(result.explained_variance, (result.plane_position.values**2).sum(-1).mean(-1))
    W = trace.view.unembed.detach().double().numpy()
    target_direction = W[:, result.attrs["target"]] - W.mean(-1)
    target_direction = trace.view.final_norm.gain.detach().double().numpy() * target_direction
    target_direction = (
        target_direction - target_direction.mean() if trace.view.final_norm.subtracts_mean else target_direction
    )
    target_direction /= np.linalg.norm(target_direction)
    assert np.allclose(result.prediction, axes[:2] @ target_direction * np.sign(signs), atol=1e-7)
    assert np.allclose(result.toward_prediction, np.stack([u @ target_direction for u in layer_directions]), atol=1e-7)
    assert result.attrs["target"] == rs.readout(trace).attrs["target"]
    assert np.array_equal(result.label, rs.clusters(trace, keep_massive=True, draws=0).label)


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_logit_direction_maximises_the_logit_on_the_sphere(name: str) -> None:
    view, target = double(name).view, 7
    best = logit_direction(view, target)
    generator = torch.Generator().manual_seed(0)
    random_directions = [torch.randn(view.width, generator=generator, dtype=F64) for _ in range(40)]
    random_directions += [best + 0.1 * candidate for candidate in random_directions]

    def logit(x: torch.Tensor) -> float:
        x = 1e3 * (x / x.norm())  # large enough for the eps of the norm to be negligible
        logits = view.final_norm.apply(x[None]) @ view.unembed
        return float((logits[0, target] - logits.mean()).detach())

    assert all(logit(best) >= logit(candidate) for candidate in random_directions)


def test_plane_does_not_depend_on_the_number_of_frames() -> None:
    trace = traced("llama", F64)
    all_frames, two_frames = rs.frames(trace, n_frames=99), rs.frames(trace, n_frames=2)
    assert all_frames.sizes["frame"] == trace.view.layers + 1
    assert two_frames.frame.values.tolist() == [str(trace.steps[0]), str(trace.steps[-1])]
    assert np.array_equal(two_frames.plane_position, all_frames.plane_position.isel(frame=[0, -1]))
    assert np.array_equal(two_frames.prediction, all_frames.prediction)


def test_shifts_and_scales_change_nothing_and_a_plane_is_fully_explained() -> None:
    points = torch.randn(3, 9, 6, dtype=F64, generator=torch.Generator().manual_seed(0))
    transformed = points * torch.tensor([1.0, 20.0, 0.3])[:, None, None] + torch.randn(3, 1, 6, dtype=F64)
    assert torch.allclose(centred_directions(transformed), centred_directions(points))
    assert torch.allclose(fit_plane(transformed, range(3)), fit_plane(points, range(3)))
    trace = traced("gpt2", F64)
    projected = trace.points.clone()
    projected[..., 2:] = 0
    result = rs.frames(replace(trace, points=projected), keep_massive=True)
    assert np.allclose(result.explained_variance, 1)
    assert np.allclose(np.linalg.norm(result.plane_position, axis=-1), 1)


def test_frames_are_reproducible_and_leave_the_global_generator_alone() -> None:
    trace = traced("llama", F64)
    rng_state = torch.random.get_rng_state()
    assert rs.frames(trace).identical(rs.frames(trace))
    assert torch.equal(rng_state, torch.random.get_rng_state())


def test_tokens_at_the_mean_are_projected_to_zero() -> None:
    trace = traced("gpt2", F64)
    result = rs.frames(replace(trace, points=torch.ones_like(trace.points)), keep_massive=True)
    assert float(abs(result.plane_position).max()) == 0
    assert bool(np.isfinite(result.explained_variance).all())


def test_token_and_target_settings_and_models_without_unembedding() -> None:
    trace = double("llama").trace(text())
    result = rs.frames(trace, token=2, target=5)
    assert (result.attrs["token"], result.attrs["target"]) == (2, 5)
    assert "prediction" not in rs.frames(double("bert").trace(text()))
    with pytest.raises(
        rs.RheoscopeError, match=r"target must be a token id between 0 and \d+, got 1000000; type target=0"
    ):
        rs.frames(trace, target=10**6)
    with pytest.raises(rs.RheoscopeError, match="n_frames must be at least 2, got 1; type n_frames=6"):
        rs.frames(trace, n_frames=1)


def test_frames_are_evenly_spaced_from_the_first_to_the_last() -> None:
    for points in range(2, 40):
        for count in range(2, 9):
            index = evenly_spaced(points, count)
            assert (index[0], index[-1], len(set(index))) == (0, points - 1, min(points, count))
            assert max(np.diff(index)) - min(np.diff(index)) <= 1

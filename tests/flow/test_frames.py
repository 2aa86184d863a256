"""The cloud seen: one plane for all frames, honest about what it shows, and a prediction where the logit is largest."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.flow.frames.analysis import evenly_spaced, logit_direction
from rheoscope.flow.projection import centred_directions, fit_plane
from tests.cases import double, text, traced

F64 = torch.float64


def slow(x: np.ndarray) -> np.ndarray:
    """Directions around the mean, one token after the other."""
    return np.stack([(one - x.mean(0)) / np.linalg.norm(one - x.mean(0)) for one in x])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_every_field_equals_a_slow_one(name: str) -> None:
    trace = traced(name, F64)
    found = rs.frames(trace, keep_massive=True)
    ends = [slow(trace.points[at].numpy()) for at in (*trace.input_steps, -1)]
    _, sigma, axes = np.linalg.svd(np.concatenate(ends), full_matrices=False)
    flat = np.stack([u @ axes[:2].T for u in ends])
    sign = [column[abs(column).argmax()] for column in flat.reshape(-1, 2).T]
    assert np.allclose(found.place, flat * np.sign(sign), atol=1e-7)
    assert np.allclose(found.explained.mean(), (sigma[:2] ** 2).sum() / (sigma**2).sum())
    assert np.allclose(found.explained, (found.place.values**2).sum(-1).mean(-1))
    W = trace.view.unembed.detach().double().numpy()
    towards = W[:, found.attrs["target"]] - W.mean(-1)
    towards = trace.view.final_norm.gain.detach().double().numpy() * towards
    towards = towards - towards.mean() if trace.view.final_norm.subtracts_mean else towards
    towards /= np.linalg.norm(towards)
    assert np.allclose(found.prediction, axes[:2] @ towards * np.sign(sign), atol=1e-7)
    assert np.allclose(found.toward_prediction, np.stack([u @ towards for u in ends]), atol=1e-7)
    assert found.attrs["target"] == rs.readout(trace).attrs["target"]
    assert np.array_equal(found.label, rs.clusters(trace, keep_massive=True, draws=0).label)


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_no_point_of_the_sphere_gives_the_target_a_larger_logit(name: str) -> None:
    view, target = double(name).view, 7
    best = logit_direction(view, target)
    draw = torch.Generator().manual_seed(0)
    others = [torch.randn(view.width, generator=draw, dtype=F64) for _ in range(40)]
    others += [best + 0.1 * other for other in others]

    def logit(x: torch.Tensor) -> float:
        x = 1e3 * (x / x.norm())  # far from the eps of the norm
        logits = view.final_norm.apply(x[None]) @ view.unembed
        return float((logits[0, target] - logits.mean()).detach())

    assert all(logit(best) >= logit(other) for other in others)


def test_the_plane_is_that_of_all_layers_however_many_frames_are_shown() -> None:
    trace = traced("llama", F64)
    every, few = rs.frames(trace, count=99), rs.frames(trace, count=2)
    assert every.sizes["frame"] == trace.view.layers + 1
    assert few.frame.values.tolist() == [str(trace.steps[0]), str(trace.steps[-1])]
    assert np.array_equal(few.place, every.place.isel(frame=[0, -1]))
    assert np.array_equal(few.prediction, every.prediction)


def test_a_shift_and_a_scale_of_a_cloud_move_nothing_and_a_cloud_in_a_plane_is_seen_whole() -> None:
    points = torch.randn(3, 9, 6, dtype=F64, generator=torch.Generator().manual_seed(0))
    moved = points * torch.tensor([1.0, 20.0, 0.3])[:, None, None] + torch.randn(3, 1, 6, dtype=F64)
    assert torch.allclose(centred_directions(moved), centred_directions(points))
    assert torch.allclose(fit_plane(moved, range(3)), fit_plane(points, range(3)))
    trace = traced("gpt2", F64)
    flat = trace.points.clone()
    flat[..., 2:] = 0
    found = rs.frames(replace(trace, points=flat), keep_massive=True)
    assert np.allclose(found.explained, 1)
    assert np.allclose(np.linalg.norm(found.place, axis=-1), 1)


def test_a_frame_is_the_same_every_time_and_draws_nothing_of_the_caller() -> None:
    trace = traced("llama", F64)
    before = torch.random.get_rng_state()
    assert rs.frames(trace).identical(rs.frames(trace))
    assert torch.equal(before, torch.random.get_rng_state())


def test_tokens_that_stand_at_the_mean_have_no_direction_and_break_nothing() -> None:
    trace = traced("gpt2", F64)
    found = rs.frames(replace(trace, points=torch.ones_like(trace.points)), keep_massive=True)
    assert float(abs(found.place).max()) == 0
    assert bool(np.isfinite(found.explained).all())


def test_another_token_another_target_and_what_has_no_unembedding() -> None:
    trace = double("llama").trace(text())
    found = rs.frames(trace, token=2, target=5)
    assert (found.attrs["token"], found.attrs["target"]) == (2, 5)
    assert "prediction" not in rs.frames(double("bert").trace(text()))
    with pytest.raises(rs.RheoscopeError, match="the target is a token id from 0 to"):
        rs.frames(trace, target=10**6)
    with pytest.raises(rs.RheoscopeError, match="2 frames or more, got 1; type count=6"):
        rs.frames(trace, count=1)


def test_frames_are_spread_evenly_from_the_first_to_the_last() -> None:
    for points in range(2, 40):
        for count in range(2, 9):
            at = evenly_spaced(points, count)
            assert (at[0], at[-1], len(set(at))) == (0, points - 1, min(points, count))
            assert max(np.diff(at)) - min(np.diff(at)) <= 1

"""Projections onto three axes, compared with a dense PCA and with logit directions."""

from dataclasses import replace

import pytest
import torch

from rheoscope.flow.cloud import select_clouds
from rheoscope.flow.frames.analysis import logit_direction
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.projected_points import (
    _eigh_directions,
    _iterated_directions,
    fit_axes,
    leading_directions,
    parse_axes,
    prediction_axes,
    principal_axes,
    project_cloud,
    resolve_axes_name,
)
from tests.studio.cases import TEXT, small


def project(axes: str, space: str = "raw", text: str = TEXT, other_text: str = TEXT):  # type: ignore[no-untyped-def]
    model = small()
    trace = model.trace(text)
    return project_cloud(
        trace, parse_axes(model, trace, axes, space, lambda text_id: (model, model.trace(other_text))), space
    )


@pytest.mark.parametrize("space", ["raw", "sphere"])
def test_axes_of_all_steps_equal_a_dense_pca(space: str) -> None:
    cloud = select_clouds(small().trace(TEXT), space, keep_massive=True).points.double()
    rows = cloud.flatten(0, 1) - cloud.flatten(0, 1).mean(0)
    _, s, vh = torch.linalg.svd(rows, full_matrices=False)
    projection = project("all", space)
    torch.testing.assert_close(projection.variance_fractions.double(), s[:3] ** 2 / (s**2).sum(), atol=1e-4, rtol=1e-3)
    expected = (rows @ vh[:3].mT).reshape(*cloud.shape[:2], 3)
    torch.testing.assert_close(projection.points.double().abs(), expected.abs(), atol=1e-3, rtol=1e-3)


def test_subspace_iteration_equals_the_eigendecomposition() -> None:
    rows = torch.randn(50, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[:, :3] *= torch.tensor([9.0, 6.0, 4.0])
    exact, iterated = _eigh_directions(rows)[:, :3], _iterated_directions(rows)[:, :3]
    torch.testing.assert_close((exact * iterated).sum(0).abs(), torch.ones(3, dtype=torch.float64), atol=1e-6, rtol=0)


def test_axes_of_one_layer_and_of_another_text() -> None:
    trace = small().trace(TEXT)
    axes = fit_axes(trace.points_at("L1.resid_post"))
    torch.testing.assert_close(
        project("layer:1").points, (trace.points - axes.centre) @ axes.directions, atol=1e-4, rtol=1e-3
    )
    torch.testing.assert_close(project("text:any").points, project("all").points)
    torch.testing.assert_close(project("text:any/layer:1").points, project("layer:1").points)
    torch.testing.assert_close(project("text:any/tokens:#5,#9").points, project("tokens:#5,#9").points)
    projection = project("text:any", other_text="Once upon a time there was a king")
    assert float(projection.variance_fractions.sum()) <= float(project("all").variance_fractions.sum()) + 1e-5


def test_token_axes_follow_the_logit_directions() -> None:
    model = small()
    projection, trace = project("tokens:#5,#9"), model.trace(TEXT)
    direction = logit_direction(model.view, 5)
    coordinates = (trace.points - trace.points.flatten(0, 1).mean(0)) @ direction
    torch.testing.assert_close(projection.points[..., 0], coordinates, atol=1e-4, rtol=1e-3)
    assert float(projection.points[..., 2].abs().max()) == 0
    assert float(projection.variance_fractions[2]) == 0


@pytest.mark.parametrize("space", ["raw", "sphere"])
def test_the_first_axis_points_to_the_prediction_and_the_others_are_the_principal_axes_across_it(space: str) -> None:
    projection = project("prediction", space)
    assert float(projection.predicted_point[0]) > 0
    torch.testing.assert_close(projection.predicted_point[1:], torch.zeros(2), atol=1e-3, rtol=0)
    rows = select_clouds(small().trace(TEXT), space).points.double().flatten(0, 1)
    centred_rows = rows - rows.mean(0)
    along = project("prediction", space).points[..., 0].double().flatten()
    first = torch.linalg.lstsq(centred_rows, along).solution
    torch.testing.assert_close(float(first.norm()), 1.0, atol=1e-3, rtol=0)
    s = torch.linalg.svdvals(centred_rows - torch.outer(centred_rows @ first, first))
    expected = s[:2] ** 2 / centred_rows.square().sum()
    torch.testing.assert_close(projection.variance_fractions[1:].double(), expected, atol=1e-4, rtol=1e-2)


def test_a_model_that_predicts_no_token_has_principal_axes() -> None:
    trace = small().trace(TEXT)
    blind = replace(trace, view=replace(trace.view, unembed=None))
    torch.testing.assert_close(prediction_axes(blind, "raw").directions, principal_axes(trace, "raw").directions)
    names = ["prediction", "text:ab/prediction", "layer:1"]
    assert [resolve_axes_name(blind, name) for name in names] == ["all", "text:ab/all", "layer:1"]
    assert [resolve_axes_name(trace, name) for name in names] == names


def test_the_predicted_point_is_the_logit_direction_of_the_prediction() -> None:
    model = small()
    trace = model.trace(TEXT)
    target = int(model.run(TEXT)[-1].argmax())
    predicted_point = logit_direction(model.view, target)
    axes = fit_axes(select_clouds(trace, "sphere").points)
    torch.testing.assert_close(
        project("all", "sphere").predicted_point,
        (predicted_point - axes.centre) @ axes.directions,
        atol=1e-4,
        rtol=1e-3,
    )


@pytest.mark.parametrize("text", ["a", "a b"])
def test_a_short_text_has_axes(text: str) -> None:
    assert bool(project("layer:0", text=text).points.isfinite().all())


@pytest.mark.parametrize("space", ["raw", "sphere"])
def test_axes_without_the_first_show_the_next_three(space: str) -> None:
    """Two of them are shared with the first three, at the same scale."""
    every_axis, later_axes = project("all", space), project("from:2", space)
    torch.testing.assert_close(later_axes.points[..., :2], every_axis.points[..., 1:])
    torch.testing.assert_close(later_axes.variance_fractions[:2], every_axis.variance_fractions[1:])
    assert 0 < later_axes.variance_fractions[2] < later_axes.variance_fractions[1]
    torch.testing.assert_close(project("text:any/from:2", space).points, later_axes.points)


def test_one_point_has_no_direction() -> None:
    assert leading_directions(torch.zeros(1, 5)).tolist() == [[0.0] * 3] * 5


@pytest.mark.parametrize(
    "axes",
    [
        "",
        "all:1",
        "layer:",
        "from:",
        "from:0",
        "from:9",
        "layer:9",
        "layer:-1",
        "tokens:#5",
        "tokens:#5,#6,#7,#8",
        "tokens:#999999,#1",
        "text:any/text:any",
        "text:any/x",
    ],
)
def test_unknown_axes_are_refused(axes: str) -> None:
    with pytest.raises(RheoscopeError):
        project(axes)


def test_an_unknown_space_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="space must be one of raw, sphere"):
        project("all", "normed")

"""The cloud on three axes, against dense PCA; what the axes show is what they say."""

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
    project_cloud,
)
from tests.studio.cases import TEXT, small


def seen(axes: str, space: str = "raw", text: str = TEXT, other: str = TEXT):  # type: ignore[no-untyped-def]
    model = small()
    trace = model.trace(text)
    return project_cloud(trace, parse_axes(model, trace, axes, space, lambda name: (model, model.trace(other))), space)


@pytest.mark.parametrize("space", ["raw", "sphere"])
def test_axes_of_all_layers_are_those_of_a_dense_pca(space: str) -> None:
    cloud = select_clouds(small().trace(TEXT), space, keep_massive=True).points.double()
    rows = cloud.flatten(0, 1) - cloud.flatten(0, 1).mean(0)
    _, s, vh = torch.linalg.svd(rows, full_matrices=False)
    found = seen("all", space)
    torch.testing.assert_close(found.variance_fractions.double(), s[:3] ** 2 / (s**2).sum(), atol=1e-4, rtol=1e-3)
    flat = (rows @ vh[:3].mT).reshape(*cloud.shape[:2], 3)
    torch.testing.assert_close(found.points.double().abs(), flat.abs(), atol=1e-3, rtol=1e-3)


def test_leading_directions_step_by_step_are_those_found_at_once() -> None:
    rows = torch.randn(50, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[:, :3] *= torch.tensor([9.0, 6.0, 4.0])
    one, other = _eigh_directions(rows)[:, :3], _iterated_directions(rows)[:, :3]
    torch.testing.assert_close((one * other).sum(0).abs(), torch.ones(3, dtype=torch.float64), atol=1e-6, rtol=0)


def test_axes_of_one_layer_and_of_another_text() -> None:
    trace = small().trace(TEXT)
    own = fit_axes(trace.points_at("L1.resid_post"))
    torch.testing.assert_close(
        seen("layer:1").points, (trace.points - own.centre) @ own.directions, atol=1e-4, rtol=1e-3
    )
    torch.testing.assert_close(seen("text:any").points, seen("all").points)
    torch.testing.assert_close(seen("text:any/layer:1").points, seen("layer:1").points)
    torch.testing.assert_close(seen("text:any/tokens:#5,#9").points, seen("tokens:#5,#9").points)
    lent = seen("text:any", other="Once upon a time there was a king")
    assert float(lent.variance_fractions.sum()) <= float(seen("all").variance_fractions.sum()) + 1e-5


def test_axes_along_tokens_see_their_logits() -> None:
    model = small()
    found, trace = seen("tokens:#5,#9"), model.trace(TEXT)
    first = logit_direction(model.view, 5)
    along = (trace.points - trace.points.flatten(0, 1).mean(0)) @ first
    torch.testing.assert_close(found.points[..., 0], along, atol=1e-4, rtol=1e-3)
    assert float(found.points[..., 2].abs().max()) == 0
    assert float(found.variance_fractions[2]) == 0


def test_the_star_lies_where_the_prediction_does() -> None:
    model = small()
    trace = model.trace(TEXT)
    target = int(model.run(TEXT)[-1].argmax())
    star = logit_direction(model.view, target)
    own = fit_axes(select_clouds(trace, "sphere").points)
    torch.testing.assert_close(
        seen("all", "sphere").predicted_point, (star - own.centre) @ own.directions, atol=1e-4, rtol=1e-3
    )


@pytest.mark.parametrize("text", ["a", "a b"])
def test_a_text_of_few_tokens_has_axes_too(text: str) -> None:
    assert bool(seen("layer:0", text=text).points.isfinite().all())


def test_one_point_has_no_direction() -> None:
    assert leading_directions(torch.zeros(1, 5)).tolist() == [[0.0] * 3] * 5


@pytest.mark.parametrize(
    "axes",
    [
        "",
        "all:1",
        "layer:",
        "layer:9",
        "layer:-1",
        "tokens:#5",
        "tokens:#5,#6,#7,#8",
        "tokens:#999999,#1",
        "text:any/text:any",
        "text:any/x",
    ],
)
def test_other_axes_are_refused(axes: str) -> None:
    with pytest.raises(RheoscopeError):
        seen(axes)


def test_another_space_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="unknown space"):
        seen("all", "normed")

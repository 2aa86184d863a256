"""Tests of the default plot: one panel per field according to its axes, nulls, and fields that are not drawn."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

from rheoscope.picture import field_panels
from rheoscope.picture.picture import Cells, Label, Shape
from tests.pictures.cases import cells, check_all_renderers, lines

LAYERS, HEADS = 3, 2


def toy() -> xr.Dataset:
    """A Dataset of an analysis without its own plot, with every kind of field."""
    grid = np.arange(6.0).reshape(LAYERS, HEADS) - 2
    fields: dict[str, Any] = {
        "angle": (("layer", "head"), grid, {"definition": "how far", "null": "angle_null"}),
        "angle_null": (("layer",), [1.0, 2.0, 3.0], {"definition": "how far at random"}),
        "kappa": (("layer",), [1.0, np.nan, 3.0], {"unit": "nats", "null": "chance", "null_sd": "spread"}),
        "chance": (("layer",), [0.0, 1.0, 2.0]),
        "spread": (("layer",), [0.5, 0.5, 0.5]),
        "far": (("stride", "step"), [[1.0, 2.0], [np.nan, 3.0]], {"null": "far_null"}),
        "far_null": (("step",), [0.1, 0.2]),
        "speed": (("step", "token"), np.ones((2, 3)), {"basis": "depends on the basis of E"}),
        "cost": (("change",), [1.0, -3.0], {"definition": "what it costs"}),
        "loss": (("eta",), [3.0, 1.0, 2.0]),
        "loss_low": (("eta",), [2.0, 0.0, 1.0]),
        "loss_high": (("eta",), [4.0, 2.0, 3.0]),
        "length": (("token",), [1.0, 2.0, 3.0]),
        "straight": ((), 0.25, {"unit": "radians", "null": "straight_null"}),
        "straight_null": ((), 0.5),
        "best": (
            ("layer",),
            [3, 4, 5],
            {"definition": "ids of the most likely tokens", "categorical": "its integers are labels"},
        ),
        "type": (("layer",), ["a", "b", "c"]),
        "cube": (("layer", "head", "step"), np.zeros((LAYERS, HEADS, 2))),
    }
    coords = {
        "layer": range(LAYERS),
        "stride": [1, 2],
        "step": ["L0.resid_mid", "L0.resid_post"],
        "token": [4, 5, 6],
        "token_text": ("token", [" a", "b", "c"]),
        "change": ["edit", "size"],
        "eta": [0.1, -0.1, 0.0],
    }
    return xr.Dataset(fields, coords, {"analysis": "of_mine"})


def panel(title: str, dataset: xr.Dataset | None = None) -> Any:
    plot = field_panels.picture(toy() if dataset is None else dataset)
    return next(candidate for candidate in plot.panels if candidate.title == title)


def test_every_field_has_a_panel_or_is_named_in_the_caption() -> None:
    plot = field_panels.picture(toy())
    check_all_renderers(plot)
    titles = ["Angle", "Kappa", "Far", "Speed", "Cost", "Loss", "Length", "Single numbers"]
    assert [candidate.title for candidate in plot.panels] == titles
    assert plot.caption.endswith("Not drawn: Best, Type, Cube.")


def test_fields_of_heads_are_a_map_with_the_null_on_hover() -> None:
    plot = cells(panel("Angle"))
    assert np.array_equal(plot.values, toy().angle.values)
    assert plot.tips[1][0] == "L1.H0: 0, null 2"
    assert (plot.low, plot.high) == (-3.0, 3.0)
    assert panel("Angle").about == "how far. Null: how far at random."


def test_curves_have_their_null_and_a_band_of_its_sd() -> None:
    plot = panel("Kappa")
    assert np.array_equal(lines(plot)["kappa"].y, [1.0, np.nan, 3.0], equal_nan=True)
    null = lines(plot)["kappa, null"]
    assert (list(null.y), null.style, null.colour) == ([0.0, 1.0, 2.0], "dashed", "null")
    band = next(mark for mark in plot.marks if isinstance(mark, Shape))
    assert list(band.y) == [-0.5, 0.5, 1.5, 2.5, 1.5, 0.5]
    assert plot.x.names == ("L0", "L1", "L2")
    assert plot.y.label == "nats"


def test_strides_are_curves_with_a_shared_null() -> None:
    plot = panel("Far")
    assert list(lines(plot)) == ["null", "stride 1", "stride 2"]
    assert lines(plot)["stride 2"].style == "dots"  # a single value is drawn as a dot
    assert plot.x.names == ("L0 attn", "L0 mlp")
    separate_nulls = toy().assign(far_null=(("stride", "step"), [[0.1, 0.2], [0.3, 0.4]]))
    assert list(lines(panel("Far", separate_nulls))["stride 2, null"].y) == [0.3, 0.4]


def test_numeric_axes_are_sorted_and_intervals_are_bands() -> None:
    plot = panel("Loss")
    assert list(lines(plot)["loss"].x) == [-0.1, 0.0, 0.1]
    assert list(lines(plot)["loss"].y) == [1.0, 2.0, 3.0]
    band = next(mark for mark in plot.marks if isinstance(mark, Shape))
    assert list(band.y) == [0.0, 1.0, 2.0, 4.0, 3.0, 2.0]


def test_fields_of_tokens_are_dots_and_cells_with_token_texts() -> None:
    assert panel("Length").x.names == ("4 ·a", "5 b", "6 c")
    assert lines(panel("Length"))["length"].style == "dots"
    assert panel("Speed").y.names == ("L0 attn", "L0 mlp")
    assert cells(panel("Speed")).tips[1][0] == "L0 mlp, 4 ·a: 1"
    assert "depends on the basis of E" in panel("Speed").about


def test_categories_are_bars_and_scalars_are_texts() -> None:
    assert [mark.tip for mark in panel("Cost").marks] == ["size: -3", "edit: 1"]
    texts = [mark.text for mark in panel("Single numbers").marks if isinstance(mark, Label)]
    assert texts == ["Straight: 0.25 radians, null 0.5"]


def test_only_the_bars_farthest_from_0_are_drawn() -> None:
    values = np.linspace(-1, 3, 40)
    large_dataset = xr.Dataset(
        {"x": ("change", values)}, {"change": [f"c{index}" for index in range(40)]}, {"analysis": "of_mine"}
    )
    plot = panel("X", large_dataset)
    assert plot.y.names[-1] == "c39"
    assert len(plot.marks) == field_panels.MAX_BARS
    assert f"The {field_panels.MAX_BARS} farthest from 0 of 40." in plot.about


def test_panels_are_limited_and_the_other_fields_are_named() -> None:
    large_dataset = xr.Dataset(
        {f"x{index}": ("layer", [1.0, 2.0]) for index in range(15)}, attrs={"analysis": "of_mine"}
    )
    plot = field_panels.picture(large_dataset)
    assert len(plot.panels) == field_panels.MAX_PANELS
    assert plot.caption.endswith("Not drawn: X12, X13, X14.")
    assert len(field_panels.picture(large_dataset.assign(one=1.0)).panels) == field_panels.MAX_PANELS


def test_a_field_with_too_many_cells_is_named() -> None:
    large = xr.Dataset({"x": (("step", "token"), np.zeros((50, 300)))}, attrs={"analysis": "of_mine"})
    assert field_panels.picture(large).caption.endswith("Not drawn: X.")


@pytest.mark.parametrize(
    "values", [np.full((2, 2), np.nan), np.zeros((2, 2)), np.array([[True, False], [False, True]])]
)
def test_maps_of_nan_zeros_and_booleans_are_drawn(values: np.ndarray) -> None:
    plot = field_panels.picture(xr.Dataset({"x": (("layer", "head"), values)}, attrs={"analysis": "of_mine"}))
    check_all_renderers(plot)
    assert isinstance(plot.panels[0].marks[0], Cells)


def test_a_result_without_numeric_fields_says_so() -> None:
    plot = field_panels.picture(xr.Dataset({"type": ("layer", ["a"])}, attrs={"analysis": "of_mine"}))
    check_all_renderers(plot)
    assert "no field" in plot.panels[0].marks[0].text  # type: ignore[union-attr]

"""The picture that follows from the fields: each field by its axes, beside its null, and what is not drawn is named."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

from rheoscope.picture import field_panels
from rheoscope.picture.picture import Cells, Label, Shape
from tests.pictures.cases import by_three_hands, cells, lines

LAYERS, HEADS = 3, 2


def toy() -> xr.Dataset:
    """A Dataset of an analysis that nobody drew, with every kind of field."""
    grid = np.arange(6.0).reshape(LAYERS, HEADS) - 2
    told: dict[str, Any] = {
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
        "best": (("layer",), [3, 4, 5], {"definition": "ids of the likeliest tokens"}),
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
    return xr.Dataset(told, coords, {"analysis": "of_mine"})


def panel(title: str, dataset: xr.Dataset | None = None) -> Any:
    drawn = field_panels.picture(toy() if dataset is None else dataset)
    return next(one for one in drawn.panels if one.title == title)


def test_every_field_has_its_panel_and_what_is_not_drawn_is_named() -> None:
    drawn = field_panels.picture(toy())
    by_three_hands(drawn)
    titles = ["Angle", "Kappa", "Far", "Speed", "Cost", "Loss", "Length", "Single numbers"]
    assert [one.title for one in drawn.panels] == titles
    assert drawn.caption.endswith("Not drawn: Best, Type, Cube.")


def test_heads_are_a_map_with_the_null_under_the_pointer() -> None:
    drawn = cells(panel("Angle"))
    assert np.array_equal(drawn.values, toy().angle.values)
    assert drawn.tips[1][0] == "L1.H0: 0, null 2"
    assert (drawn.low, drawn.high) == (-3.0, 3.0)
    assert panel("Angle").about == "how far. Null: how far at random."


def test_a_curve_stands_beside_its_null_in_the_band_of_its_spread() -> None:
    drawn = panel("Kappa")
    assert np.array_equal(lines(drawn)["kappa"].y, [1.0, np.nan, 3.0], equal_nan=True)
    null = lines(drawn)["kappa, null"]
    assert (list(null.y), null.style, null.colour) == ([0.0, 1.0, 2.0], "dashed", "null")
    band = next(mark for mark in drawn.marks if isinstance(mark, Shape))
    assert list(band.y) == [-0.5, 0.5, 1.5, 2.5, 1.5, 0.5]
    assert drawn.x.names == ("L0", "L1", "L2")
    assert drawn.y.label == "nats"


def test_strides_are_curves_with_one_null_for_all() -> None:
    drawn = panel("Far")
    assert list(lines(drawn)) == ["null", "stride 1", "stride 2"]
    assert lines(drawn)["stride 2"].style == "dots"  # one value is no line
    assert drawn.x.names == ("L0 attention", "L0")
    apart = toy().assign(far_null=(("stride", "step"), [[0.1, 0.2], [0.3, 0.4]]))
    assert list(lines(panel("Far", apart))["stride 2, null"].y) == [0.3, 0.4]


def test_numbers_run_from_left_to_right_in_their_interval() -> None:
    drawn = panel("Loss")
    assert list(lines(drawn)["loss"].x) == [-0.1, 0.0, 0.1]
    assert list(lines(drawn)["loss"].y) == [1.0, 2.0, 3.0]
    band = next(mark for mark in drawn.marks if isinstance(mark, Shape))
    assert list(band.y) == [0.0, 1.0, 2.0, 4.0, 3.0, 2.0]


def test_tokens_are_dots_and_squares_with_their_words() -> None:
    assert panel("Length").x.names == ("4 ·a", "5 b", "6 c")
    assert lines(panel("Length"))["length"].style == "dots"
    assert panel("Speed").y.names == ("L0 attention", "L0")
    assert cells(panel("Speed")).tips[1][0] == "L0, 4 ·a: 1"
    assert "depends on the basis of E" in panel("Speed").about


def test_named_things_are_bars_and_single_numbers_words() -> None:
    assert [mark.tip for mark in panel("Cost").marks] == ["size: -3", "edit: 1"]
    words = [mark.text for mark in panel("Single numbers").marks if isinstance(mark, Label)]
    assert words == ["Straight: 0.25 radians, null 0.5"]


def test_of_many_named_things_the_farthest_from_0_are_drawn() -> None:
    values = np.linspace(-1, 3, 40)
    many = xr.Dataset({"x": ("change", values)}, {"change": [f"c{at}" for at in range(40)]}, {"analysis": "of_mine"})
    drawn = panel("X", many)
    assert drawn.y.names[-1] == "c39"
    assert len(drawn.marks) == field_panels.MAX_BARS
    assert f"The {field_panels.MAX_BARS} farthest from 0 of 40." in drawn.about


def test_a_picture_holds_so_many_panels_and_names_the_others() -> None:
    many = xr.Dataset({f"x{at}": ("layer", [1.0, 2.0]) for at in range(15)}, attrs={"analysis": "of_mine"})
    drawn = field_panels.picture(many)
    assert len(drawn.panels) == field_panels.MAX_PANELS
    assert drawn.caption.endswith("Not drawn: X12, X13, X14.")
    assert len(field_panels.picture(many.assign(one=1.0)).panels) == field_panels.MAX_PANELS


def test_a_field_with_too_many_squares_is_named() -> None:
    large = xr.Dataset({"x": (("step", "token"), np.zeros((50, 300)))}, attrs={"analysis": "of_mine"})
    assert field_panels.picture(large).caption.endswith("Not drawn: X.")


@pytest.mark.parametrize(
    "values", [np.full((2, 2), np.nan), np.zeros((2, 2)), np.array([[True, False], [False, True]])]
)
def test_a_map_without_numbers_or_of_truths_is_drawn(values: np.ndarray) -> None:
    drawn = field_panels.picture(xr.Dataset({"x": (("layer", "head"), values)}, attrs={"analysis": "of_mine"}))
    by_three_hands(drawn)
    assert isinstance(drawn.panels[0].marks[0], Cells)


def test_an_answer_without_numbers_says_so() -> None:
    drawn = field_panels.picture(xr.Dataset({"type": ("layer", ["a"])}, attrs={"analysis": "of_mine"}))
    by_three_hands(drawn)
    assert "no field" in drawn.panels[0].marks[0].text  # type: ignore[union-attr]

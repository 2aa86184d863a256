"""The picture of a result over a series of checkpoints: every field as curves along training."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message, join
from rheoscope.picture import field_panels
from rheoscope.picture.picture import SERIES_COLOURS, Picture

if TYPE_CHECKING:
    import xarray

CHECKPOINT = "checkpoint"
CURVE_AXES = ("layer", "step", "point", "end", "turn")
"""Axes that get a curve each, if there are few of them. Fields are averaged over all other axes."""
CAPTION = Message("Each panel shows one field along training. Dashed lines are null means.")
MEANS_CAPTION = Message("Fields with further axes are shown as means over them.")


def is_over_series(dataset: "xarray.Dataset") -> bool:
    """Whether a result has the axis `checkpoint`."""
    return CHECKPOINT in getattr(dataset, "dims", ())


def picture(dataset: "xarray.Dataset") -> Picture:
    """One panel per field: a curve, or one curve per layer or step, against the checkpoint."""
    curves = curves_of(dataset)
    panels = field_panels.picture(curves)
    has_means = any(dataset[name].dims != curves[name].dims for name in curves.data_vars)
    caption = join(" ", [CAPTION, *([MEANS_CAPTION] if has_means else [])])
    return Picture(panels.title, caption, panels.panels)


def curves_of(dataset: "xarray.Dataset") -> "xarray.Dataset":
    """The numeric fields along training, each with at most one other axis that is short enough for a curve per coordinate."""
    names = [name for name in dataset.data_vars if is_curve(dataset[name])]
    return dataset[names].map(lambda field: mean_over(field, averaged_axes(field)), keep_attrs=True)


def values_of(dataset: "xarray.Dataset") -> "xarray.Dataset":
    """The numeric fields along training, averaged over all other axes."""
    names = [name for name in dataset.data_vars if is_curve(dataset[name])]
    return dataset[names].map(
        lambda field: mean_over(field, [str(dim) for dim in field.dims if dim != CHECKPOINT]), keep_attrs=True
    )


def mean_over(field: "xarray.DataArray", axes: list[str]) -> "xarray.DataArray":
    """The mean of a field over some axes. The standard deviation of its null does not hold for a mean, so it is dropped."""
    if not axes:
        return field
    averaged = field.mean(axes, keep_attrs=True)
    return averaged.assign_attrs({"null_sd": ""}) if averaged.attrs.get("null_sd") else averaged


def is_curve(field: "xarray.DataArray") -> bool:
    """Whether the values of a field can be averaged. Labels, texts and single draws of a null cannot."""
    is_number = field.dtype.kind in "biuf" and "categorical" not in field.attrs
    return is_number and CHECKPOINT in field.dims and "draw" not in field.dims


def averaged_axes(field: "xarray.DataArray") -> list[str]:
    """The axes over which a field is averaged in its panel."""
    others = [str(dim) for dim in field.dims if dim != CHECKPOINT]
    curve_axis = next((dim for dim in others if dim in CURVE_AXES and field.sizes[dim] <= len(SERIES_COLOURS)), None)
    return [dim for dim in others if dim != curve_axis]

"""Would a layer settle? How far it moves the cloud, what it does again and again, and how its Jacobian amplifies."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.picture.picture import Axis, Cells, Line, Panel, Picture, depth_colour, format_value
from rheoscope.picture.token_labels import display_token

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Each layer is a map of clouds. Its residual is 0 at a fixed point; applied again and again, directions settle "
    "where the angle falls to 0. The norm of its Jacobian is the most that a small change can grow in one step; a "
    "radius below 1 says that the layer is locally contracting here. Boundary is how much of the last token's new place "
    "hangs on the tokens before it. Dashed: the layer's displacements permuted among the tokens; dots: the same "
    "architecture untrained, where it was asked."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """Residual, turn, Jacobian and boundary over depth, settling, and the residual of every token."""
    depth_panels = residual_panel(dataset), turn_panel(dataset), jacobian_panel(dataset), boundary_panel(dataset)
    return Picture("Would a layer settle?", CAPTION, (*depth_panels, settling_panel(dataset), token_map(dataset)))


def residual_panel(dataset: "xarray.Dataset") -> Panel:
    lines = Line("residual", *_curve(dataset, "residual")), *_control_lines(dataset, "residual")
    return Panel(
        "How far from a fixed point", _definition(dataset, "residual"), lines, _layer_axis(dataset), Axis(log=True)
    )


def turn_panel(dataset: "xarray.Dataset") -> Panel:
    """How far one application turns directions, beside permuted displacements."""
    curve, null = (_curve(dataset, name) for name in ("turn", "turn_null"))
    null_line = Line("displacements permuted", *null, "null", "dashed")
    lines = null_line, Line("turn", *curve), *_control_lines(dataset, "turn")
    description = f"{_definition(dataset, 'turn')}. Null: {_definition(dataset, 'turn_null')}."
    return Panel("How far directions turn", description, lines, _layer_axis(dataset), Axis("radians", low=0.0))


def jacobian_panel(dataset: "xarray.Dataset") -> Panel:
    """Norm and radius, and 1 between growing and shrinking."""
    x = range(dataset.sizes["layer"])
    lines = (
        Line("neither grows nor shrinks", x, [1.0] * len(x), "null", "dashed"),
        Line("spectral norm", *_curve(dataset, "jacobian_norm"), "second"),
        Line("spectral radius", *_curve(dataset, "jacobian_radius"), "first"),
        *_control_lines(dataset, "jacobian_norm", "second"),
        *_control_lines(dataset, "jacobian_radius"),
    )
    description = f"Norm: {_definition(dataset, 'jacobian_norm')}. Radius: {_definition(dataset, 'jacobian_radius')}."
    return Panel("Jacobian", description, lines, _layer_axis(dataset), Axis(log=True))


def boundary_panel(dataset: "xarray.Dataset") -> Panel:
    lines = Line("boundary", *_curve(dataset, "boundary"), "third"), *_control_lines(dataset, "boundary", "third")
    description = _definition(dataset, "boundary")
    return Panel("Dependence on the prompt", description, lines, _layer_axis(dataset), Axis(low=0.0, high=1.03))


def settling_panel(dataset: "xarray.Dataset") -> Panel:
    """A line a layer: the angle that is left after so many times."""
    n_layers, times = dataset.sizes["layer"], dataset.time.values
    lines = tuple(
        Line(
            f"L{layer}",
            times,
            dataset.settling.values[index],
            depth_colour(index, n_layers),
            tip=_settling_tip(dataset, index),
        )
        for index, layer in enumerate(dataset.layer.values)
    )
    description = f"{_definition(dataset, 'settling')}. One line a layer, blue the first, red the last."
    return Panel("Applied again and again", description, lines, Axis("time"), Axis("radians", log=True))


def token_map(dataset: "xarray.Dataset") -> Panel:
    """Which tokens a layer moves most."""
    values = dataset.residual_token.values
    labels = _token_labels(dataset)
    tips = [
        [f"L{layer}, token {label}: {format_value(float(value))}" for label, value in zip(labels, row, strict=True)]
        for layer, row in zip(dataset.layer.values, values, strict=True)
    ]
    cells = Cells(np.log10(np.maximum(values, 1e-3)), tips=tips, low=-1.0, high=1.0, name="own lengths moved", log=True)
    description = f"{_definition(dataset, 'residual_token')}. Blue: moved by more than its own length, orange: by less; strongest tenfold."
    height = max(1.0, (len(values) * 9 + 46) / 236)
    return Panel(
        "Residual of every token",
        description,
        (cells,),
        Axis("token", labels),
        _layer_axis(dataset),
        2,
        height,
    )


def _token_labels(dataset: "xarray.Dataset") -> tuple[str, ...]:
    return tuple(
        f"{token} {display_token(str(token_text))}"
        for token, token_text in zip(dataset.token.values, dataset.token_text.values, strict=True)
    )


def _settling_tip(dataset: "xarray.Dataset", index: int) -> str:
    first, last = (format_value(float(dataset.settling[index, k])) for k in (0, -1))
    return f"L{int(dataset.layer[index])}: {first} at the first time, {last} at time {dataset.sizes['time']}"


def _curve(dataset: "xarray.Dataset", name: str) -> tuple[range, Any]:
    return range(dataset.sizes["layer"]), dataset[name].values


def _control_lines(dataset: "xarray.Dataset", name: str, colour: str = "first") -> tuple[Line, ...]:
    """The control's, where one was asked."""
    control = f"{name}_untrained"
    label = f"{name.removeprefix('jacobian_')}, untrained"
    return (Line(label, *_curve(dataset, control), colour, "dots"),) if control in dataset else ()


def _layer_axis(dataset: "xarray.Dataset") -> Axis:
    return Axis("", tuple(f"L{layer}" for layer in dataset.layer.values))


def _definition(dataset: "xarray.Dataset", name: str) -> str:
    return str(dataset[name].attrs["definition"])

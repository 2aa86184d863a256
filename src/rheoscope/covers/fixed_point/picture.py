"""The picture of fixed points: residual, rotation angles and Jacobian of each layer, and the residual per token."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.picture.picture import Axis, Cells, Line, Panel, Picture, depth_colour, format_value
from rheoscope.picture.token_labels import display_token

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "Each layer is a map of clouds. Its residual is 0 at a fixed point. Under repeated application, directions converge if the "
    "angle falls to 0. The norm of the Jacobian is the largest growth of a small change in one step. A spectral radius below 1 "
    "means that the layer contracts locally. It leaves out the directions that the norm preserves. Prompt dependence is the share of "
    "the last token's Jacobian that belongs to other tokens. Dashed lines: displacements permuted among the tokens. Dots: the same "
    "architecture untrained."
)
CONTROL_NAMES = {
    "residual": Message("residual, untrained"),
    "rotation_angle": Message("rotation angle, untrained"),
    "jacobian_norm": Message("spectral norm, untrained"),
    "jacobian_radius": Message("spectral radius, untrained"),
    "boundary": Message("prompt dependence, untrained"),
}


def picture(dataset: "xarray.Dataset") -> Picture:
    """Residual, angle, Jacobian and prompt dependence over depth, repeated application, and the residual of every token."""
    depth_panels = residual_panel(dataset), angle_panel(dataset), jacobian_panel(dataset), dependence_panel(dataset)
    title = Message("Is a layer close to a fixed point?")
    return Picture(title, CAPTION, (*depth_panels, repetition_panel(dataset), token_map(dataset)))


def residual_panel(dataset: "xarray.Dataset") -> Panel:
    """The residual of every layer."""
    lines = Line(Message("residual"), *_curve(dataset, "residual")), *_control_lines(dataset, "residual")
    title, definition = Message("Distance from a fixed point"), _definition(dataset, "residual")
    return Panel(title, definition, lines, _layer_axis(dataset), Axis(log=True))


def angle_panel(dataset: "xarray.Dataset") -> Panel:
    """The mean rotation angle of every layer, compared with permuted displacements."""
    curve, null = (_curve(dataset, name) for name in ("rotation_angle", "rotation_angle_null"))
    null_line = Line(Message("permuted displacements"), *null, "null", "dashed")
    lines = null_line, Line(Message("rotation angle"), *curve), *_control_lines(dataset, "rotation_angle")
    description = Message(
        "{definition}. Null: {null}.",
        definition=_definition(dataset, "rotation_angle"),
        null=_definition(dataset, "rotation_angle_null"),
    )
    y = Axis(Message("radians"), low=0.0)
    return Panel(Message("Rotation of directions"), description, lines, _layer_axis(dataset), y)


def jacobian_panel(dataset: "xarray.Dataset") -> Panel:
    """Norm and radius of the Jacobian, with a line at 1 between growth and contraction."""
    x = range(dataset.sizes["layer"])
    lines = (
        Line(Message("neither growth nor contraction"), x, [1.0] * len(x), "null", "dashed"),
        Line(Message("spectral norm"), *_curve(dataset, "jacobian_norm"), "second"),
        Line(Message("spectral radius"), *_curve(dataset, "jacobian_radius"), "first"),
        *_control_lines(dataset, "jacobian_norm", "second"),
        *_control_lines(dataset, "jacobian_radius"),
    )
    description = Message(
        "Norm: {norm}. Radius: {radius}.",
        norm=_definition(dataset, "jacobian_norm"),
        radius=_definition(dataset, "jacobian_radius"),
    )
    return Panel(Message("Jacobian"), description, lines, _layer_axis(dataset), Axis(log=True))


def dependence_panel(dataset: "xarray.Dataset") -> Panel:
    """The dependence of the last token on the others."""
    line = Line(Message("prompt dependence"), *_curve(dataset, "boundary"), "third")
    lines = line, *_control_lines(dataset, "boundary", "third")
    description = _definition(dataset, "boundary")
    return Panel(Message("Prompt dependence"), description, lines, _layer_axis(dataset), Axis(low=0.0, high=1.03))


def repetition_panel(dataset: "xarray.Dataset") -> Panel:
    """The rotation angle at every application, with one line per layer."""
    n_layers, applications = dataset.sizes["layer"], dataset.application.values
    lines = tuple(
        Line(
            f"L{layer}",
            applications,
            dataset.repeated_rotation_angle.values[index],
            depth_colour(index, n_layers),
            tip=_repetition_tip(dataset, index),
        )
        for index, layer in enumerate(dataset.layer.values)
    )
    description = Message(
        "One line per layer, from blue (first) to red (last): {definition}.",
        definition=_definition(dataset, "repeated_rotation_angle"),
    )
    axes = Axis(Message("application")), Axis(Message("radians"), log=True)
    return Panel(Message("Repeated application"), description, lines, *axes)


def token_map(dataset: "xarray.Dataset") -> Panel:
    """A map of the residual of every token in every layer."""
    values = dataset.residual_token.values
    labels = _token_labels(dataset)
    tips = [
        [
            Message("L{layer}, token {token}: {value}", layer=int(layer), token=label, value=format_value(float(value)))
            for label, value in zip(labels, row, strict=True)
        ]
        for layer, row in zip(dataset.layer.values, values, strict=True)
    ]
    cells = Cells(
        np.log10(np.maximum(values, 1e-3)),
        tips=tips,
        low=-1.0,
        high=1.0,
        name=Message("displacement / length"),
        log=True,
    )
    description = Message(
        "{definition}. Blue tokens move by more than their own length, orange tokens by less. The scale ends at a factor of ten.",
        definition=_definition(dataset, "residual_token"),
    )
    height = max(1.0, (len(values) * 9 + 46) / 236)
    return Panel(
        Message("Residual of every token"),
        description,
        (cells,),
        Axis(Message("token"), labels),
        _layer_axis(dataset),
        2,
        height,
    )


def _token_labels(dataset: "xarray.Dataset") -> tuple[str, ...]:
    return tuple(
        f"{token} {display_token(str(token_text))}"
        for token, token_text in zip(dataset.token.values, dataset.token_text.values, strict=True)
    )


def _repetition_tip(dataset: "xarray.Dataset", index: int) -> Message:
    first, last = (format_value(float(dataset.repeated_rotation_angle[index, k])) for k in (0, -1))
    return Message(
        "L{layer}: {first} at the first application, {last} at application {n}",
        layer=int(dataset.layer[index]),
        first=first,
        last=last,
        n=dataset.sizes["application"],
    )


def _curve(dataset: "xarray.Dataset", name: str) -> tuple[range, Any]:
    return range(dataset.sizes["layer"]), dataset[name].values


def _control_lines(dataset: "xarray.Dataset", name: str, colour: str = "first") -> tuple[Line, ...]:
    """The values of the control as dots, if the result has a control."""
    control = f"{name}_untrained"
    return (Line(CONTROL_NAMES[name], *_curve(dataset, control), colour, "dots"),) if control in dataset else ()


def _layer_axis(dataset: "xarray.Dataset") -> Axis:
    return Axis("", tuple(f"L{layer}" for layer in dataset.layer.values))


def _definition(dataset: "xarray.Dataset", name: str) -> str:
    return str(dataset[name].attrs["definition"])

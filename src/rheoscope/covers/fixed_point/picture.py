"""Would a layer settle? How far it moves the cloud, what it does again and again, and how its Jacobian amplifies."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.picture.picture import Axis, Cells, Line, Panel, Picture, along, number
from rheoscope.picture.token_labels import shown

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
    over_depth = residual(dataset), turn(dataset), jacobian(dataset), boundary(dataset)
    return Picture("Would a layer settle?", CAPTION, (*over_depth, settling(dataset), tokens(dataset)))


def residual(dataset: "xarray.Dataset") -> Panel:
    lines = Line("residual", *_over(dataset, "residual")), *_untrained(dataset, "residual")
    return Panel("How far from a fixed point", _about(dataset, "residual"), lines, _layers(dataset), Axis(log=True))


def turn(dataset: "xarray.Dataset") -> Panel:
    """How far one application turns directions, beside permuted displacements."""
    own, null = (_over(dataset, name) for name in ("turn", "turn_null"))
    permuted = Line("displacements permuted", *null, "null", "dashed")
    lines = permuted, Line("turn", *own), *_untrained(dataset, "turn")
    about = f"{_about(dataset, 'turn')}. Null: {_about(dataset, 'turn_null')}."
    return Panel("How far directions turn", about, lines, _layers(dataset), Axis("radians", low=0.0))


def jacobian(dataset: "xarray.Dataset") -> Panel:
    """Norm and radius, and 1 between growing and shrinking."""
    at = range(dataset.sizes["layer"])
    lines = (
        Line("neither grows nor shrinks", at, [1.0] * len(at), "null", "dashed"),
        Line("spectral norm", *_over(dataset, "jacobian_norm"), "second"),
        Line("spectral radius", *_over(dataset, "jacobian_radius"), "first"),
        *_untrained(dataset, "jacobian_norm", "second"),
        *_untrained(dataset, "jacobian_radius"),
    )
    about = f"Norm: {_about(dataset, 'jacobian_norm')}. Radius: {_about(dataset, 'jacobian_radius')}."
    return Panel("Jacobian", about, lines, _layers(dataset), Axis(log=True))


def boundary(dataset: "xarray.Dataset") -> Panel:
    lines = Line("boundary", *_over(dataset, "boundary"), "third"), *_untrained(dataset, "boundary", "third")
    about = _about(dataset, "boundary")
    return Panel("Dependence on the prompt", about, lines, _layers(dataset), Axis(low=0.0, high=1.03))


def settling(dataset: "xarray.Dataset") -> Panel:
    """A line a layer: the angle that is left after so many times."""
    count, times = dataset.sizes["layer"], dataset.time.values
    lines = tuple(
        Line(f"L{layer}", times, dataset.settling.values[at], along(at, count), tip=_told(dataset, at))
        for at, layer in enumerate(dataset.layer.values)
    )
    about = f"{_about(dataset, 'settling')}. One line a layer, blue the first, red the last."
    return Panel("Applied again and again", about, lines, Axis("time"), Axis("radians", log=True))


def tokens(dataset: "xarray.Dataset") -> Panel:
    """Which tokens a layer moves most."""
    values = dataset.residual_token.values
    words = _words(dataset)
    tips = [
        [f"L{layer}, token {word}: {number(float(value))}" for word, value in zip(words, row, strict=True)]
        for layer, row in zip(dataset.layer.values, values, strict=True)
    ]
    cells = Cells(np.log10(np.maximum(values, 1e-3)), tips=tips, low=-1.0, high=1.0, name="own lengths moved", log=True)
    about = f"{_about(dataset, 'residual_token')}. Blue: moved by more than its own length, orange: by less; strongest tenfold."
    height = max(1.0, (len(values) * 9 + 46) / 236)
    return Panel(
        "Residual of every token",
        about,
        (cells,),
        Axis("token", words),
        _layers(dataset),
        2,
        height,
    )


def _words(dataset: "xarray.Dataset") -> tuple[str, ...]:
    return tuple(
        f"{token} {shown(str(word))}" for token, word in zip(dataset.token.values, dataset.word.values, strict=True)
    )


def _told(dataset: "xarray.Dataset", at: int) -> str:
    first, last = (number(float(dataset.settling[at, k])) for k in (0, -1))
    return f"L{int(dataset.layer[at])}: {first} at the first time, {last} at time {dataset.sizes['time']}"


def _over(dataset: "xarray.Dataset", name: str) -> tuple[range, Any]:
    return range(dataset.sizes["layer"]), dataset[name].values


def _untrained(dataset: "xarray.Dataset", name: str, colour: str = "first") -> tuple[Line, ...]:
    """The control's, where one was asked."""
    control = f"{name}_untrained"
    said = f"{name.removeprefix('jacobian_')}, untrained"
    return (Line(said, *_over(dataset, control), colour, "dots"),) if control in dataset else ()


def _layers(dataset: "xarray.Dataset") -> Axis:
    return Axis("", tuple(f"L{layer}" for layer in dataset.layer.values))


def _about(dataset: "xarray.Dataset", name: str) -> str:
    return str(dataset[name].attrs["definition"])

"""The picture of a result, and `plot`, which draws it with matplotlib. The studio and `rs.show` draw the same picture.

An analysis defines its picture in `picture.py`. Without such a file the picture is derived from the fields.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.picture import field_panels, series_panels
from rheoscope.picture.picture import Picture
from rheoscope.picture.token_labels import TokenLabels
from rheoscope.report.draw.paper import to_figure
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


def plot(
    dataset: "xarray.Dataset", token_strings: TokenLabels | None = None, types: "xarray.Dataset | None" = None
) -> "Figure":
    """The result of an analysis as a matplotlib Figure: `rs.plot(rs.transport(trace)).savefig("transport.pdf")`.

    **Settings** `dataset` is the result of any analysis of `rs.analyses()`, or of an experiment of `rs.dynamics`.
    `token_strings=model.token_strings` shows tokens instead of ids. `types=rs.head_types(model)` colours maps of heads by type.

    **See also** `rs.show` draws the same in notebooks, `rs.table` has the numbers, `rs.save_report` draws all of a text on one page.

    >>> import rheoscope as rs
    >>> figure = rs.plot(rs.trajectory(rs.load().trace("The keys to the cabinet are")))
    >>> len(figure.axes)
    4
    """
    is_series = series_panels.is_over_series(dataset)
    draw_figure = None if is_series else _plot_function(dataset, "figure")  # drawn with matplotlib itself
    return to_figure(picture_of(dataset, token_strings, types)) if draw_figure is None else draw_figure(dataset)


def picture_of(
    dataset: "xarray.Dataset", token_strings: TokenLabels | None = None, types: "xarray.Dataset | None" = None
) -> Picture:
    """The result of an analysis as panels of lines, maps and labels, for any renderer.

    Only pictures with token ids use `token_strings`, and only maps of heads use `types`.

    >>> import rheoscope as rs
    >>> picture_of(rs.transport(rs.load().trace("The keys to the cabinet are"))).title
    'Is keeping token identity the cheapest transport?'
    """
    if series_panels.is_over_series(dataset):
        return series_panels.picture(dataset)
    is_over_texts = "left_out" in getattr(dataset, "attrs", {})  # means from rs.over_texts lack some fields
    draw_picture: Callable[..., Picture] = (
        _plot_function(dataset, "over_texts" if is_over_texts else "picture") or field_panels.picture
    )
    accepted, options = signature(draw_picture).parameters, {"token_strings": token_strings, "types": types}
    return draw_picture(dataset, **{name: value for name, value in options.items() if name in accepted})


def _plot_function(dataset: "xarray.Dataset", function_name: str) -> Callable[..., Any] | None:
    """A function of the analysis's `picture.py`, or of the file in `pictures/` with the name of the result, or None."""
    name = str(getattr(dataset, "attrs", {}).get("analysis", ""))
    if not name.isidentifier():
        raise RheoscopeError(
            Message("rs.plot expects the Dataset of an analysis, got {received}", received=type(dataset).__name__),
            Advice("rs.plot(rs.trajectory(trace))"),
        )
    folder = ANALYSIS_MODULES[name].rpartition(".")[0] if name in ANALYSIS_MODULES else ""
    module_name = f"{folder}.picture" if folder else f"rheoscope.report.pictures.{name}"
    return getattr(import_module(module_name), function_name, None) if find_spec(module_name) else None

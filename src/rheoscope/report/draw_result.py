"""What an analysis found as a picture, and the picture on paper: `plot`. The studio and `rs.show` draw the same one.

`picture.py` in the folder of an analysis says what its picture shows; without such a file it follows from the fields.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.picture import field_panels
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
    """What an analysis found, as a matplotlib Figure for papers: `rs.plot(rs.transport(trace)).savefig("transport.pdf")`.

    **Takes** the Dataset of any analysis of `rs.analyses()`, or of an experiment of `rs.dynamics`. `token_strings=model.token_strings` puts
    texts in the place of token ids; `types=rs.head_types(model)` marks on maps of heads what kind each head is.

    **Relation** `show` draws the same for notebooks, `table` has its numbers, `save_report` draws all of a text on one page.

    >>> import rheoscope as rs
    >>> figure = rs.plot(rs.trajectory(rs.load().trace("The keys to the cabinet are")))
    >>> len(figure.axes)
    4
    """
    draw_figure = _plot_function(dataset, "figure")  # drawn with matplotlib itself
    return to_figure(picture_of(dataset, token_strings, types)) if draw_figure is None else draw_figure(dataset)


def picture_of(
    dataset: "xarray.Dataset", token_strings: TokenLabels | None = None, types: "xarray.Dataset | None" = None
) -> Picture:
    """What an analysis found as panels of lines, maps and words, which any hand can draw.

    A picture without token ids needs no `words`, one without a map of heads no `types`.

    >>> import rheoscope as rs
    >>> picture_of(rs.transport(rs.load().trace("The keys to the cabinet are"))).title
    'Is keeping token identity the cheapest transport?'
    """
    is_over_texts = "left_out" in getattr(
        dataset, "attrs", {}
    )  # means over texts, as rs.over_texts gives them, lack some fields
    draw_picture: Callable[..., Picture] = (
        _plot_function(dataset, "over_texts" if is_over_texts else "picture") or field_panels.picture
    )
    accepted, options = signature(draw_picture).parameters, {"token_strings": token_strings, "types": types}
    return draw_picture(dataset, **{name: value for name, value in options.items() if name in accepted})


def _plot_function(dataset: "xarray.Dataset", function_name: str) -> Callable[..., Any] | None:
    """A function of the analysis's `picture.py`, or of the file in `pictures/` that has the result's name, or none."""
    name = str(getattr(dataset, "attrs", {}).get("analysis", ""))
    if not name.isidentifier():
        raise RheoscopeError(
            "a picture is drawn of the Dataset of an analysis, as rs.trajectory, rs.agreement or rs.composition gives it, got "
            f"{type(dataset).__name__}; type rs.plot(rs.trajectory(trace))"
        )
    folder = ANALYSIS_MODULES[name].rpartition(".")[0] if name in ANALYSIS_MODULES else ""
    module_name = f"{folder}.picture" if folder else f"rheoscope.report.pictures.{name}"
    return getattr(import_module(module_name), function_name, None) if find_spec(module_name) else None

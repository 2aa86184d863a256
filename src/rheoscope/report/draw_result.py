"""What an analysis found as a picture, and the picture on paper: `plot`. The studio and `rs.show` draw the same one.

`picture.py` in the folder of an analysis says what its picture shows; without such a file it follows from the fields.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

from rheoscope.catalogue import TABLE
from rheoscope.picture import field_panels
from rheoscope.picture.picture import Picture
from rheoscope.picture.token_labels import Words
from rheoscope.report.draw.paper import on_paper
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


def plot(dataset: "xarray.Dataset", words: Words | None = None, types: "xarray.Dataset | None" = None) -> "Figure":
    """What an analysis found, as a matplotlib Figure for papers: `rs.plot(rs.transport(trace)).savefig("transport.pdf")`.

    **Takes** the Dataset of any analysis of `rs.analyses()`, or of an experiment of `rs.dynamics`. `words=model.words` puts
    texts in the place of token ids; `types=rs.head_types(model)` marks on maps of heads what kind each head is.

    **Relation** `show` draws the same for notebooks, `table` has its numbers, `save_report` draws all of a text on one page.

    >>> import rheoscope as rs
    >>> figure = rs.plot(rs.trajectory(rs.load().trace("The keys to the cabinet are")))
    >>> len(figure.axes)
    4
    """
    own = _from_file(dataset, "figure")  # drawn with matplotlib itself
    return on_paper(picture_of(dataset, words, types)) if own is None else own(dataset)


def picture_of(dataset: "xarray.Dataset", words: Words | None = None, types: "xarray.Dataset | None" = None) -> Picture:
    """What an analysis found as panels of lines, maps and words, which any hand can draw.

    A picture without token ids needs no `words`, one without a map of heads no `types`.

    >>> import rheoscope as rs
    >>> picture_of(rs.transport(rs.load().trace("The keys to the cabinet are"))).title
    'Must tokens stay themselves?'
    """
    several = "left_out" in getattr(
        dataset, "attrs", {}
    )  # means over texts, as rs.over_texts gives them, lack some fields
    draw: Callable[..., Picture] = _from_file(dataset, "over_texts" if several else "picture") or field_panels.picture
    takes, given = signature(draw).parameters, {"words": words, "types": types}
    return draw(dataset, **{name: value for name, value in given.items() if name in takes})


def _from_file(dataset: "xarray.Dataset", function: str) -> Callable[..., Any] | None:
    """A function of the analysis's `picture.py`, or of the file in `pictures/` that has the result's name, or none."""
    name = str(getattr(dataset, "attrs", {}).get("analysis", ""))
    if not name.isidentifier():
        raise RheoscopeError(
            "a picture is drawn of the Dataset of an analysis, as rs.trajectory, rs.agreement or rs.composition gives it, got "
            f"{type(dataset).__name__}; type rs.plot(rs.trajectory(trace))"
        )
    folder = TABLE[name].rpartition(".")[0] if name in TABLE else ""
    home = f"{folder}.picture" if folder else f"rheoscope.report.pictures.{name}"
    return getattr(import_module(home), function, None) if find_spec(home) else None

"""A Dataset as a figure: the file in plot/ that has the analysis's name knows how."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


def plot(dataset: "xarray.Dataset", **more: Any) -> "Figure":
    """What an analysis found, as a matplotlib Figure for papers: `rs.plot(rs.transport(trace)).savefig("transport.pdf")`.

    **Takes** any Dataset of the flow (`readout`, `trajectory`, `transport`, `kept`, `clusters`, `density_clusters`, `purity`,
    `massive`, `energy`) or of the covers (`agreement`, `distortion`, `torn`, `stack`, `composition`, `rollout`, `why`,
    `head_types`, `fixed_point`, `scores`, `operators`, `boundary`, `prefix_stability`, `surgery`, `surgery_by_head`, `decay`,
    `reversed_attention`, `attention_patching`, `faithfulness`). For `readout`, `words=model.words` puts texts in the place of
    token ids; for maps of heads, `types=rs.head_types(model)` marks what kind each head is.

    **Relation** `interactive` draws the same for notebooks, `save_report` all of them on one page.

    >>> import rheoscope as rs
    >>> figure = rs.plot(rs.trajectory(rs.load().trace("The keys to the cabinet are")))
    >>> len(figure.axes)
    4
    """
    return _drawn("plot", dataset, more)


def interactive(dataset: "xarray.Dataset", **more: Any) -> Any:
    """What an analysis found, as a plotly Figure for notebooks, with the numbers under the pointer.

    **Takes** what `plot` takes; needs `pip install 'rheoscope[notebook]'`.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> lens = rs.readout(model.view, model.trace("The keys to the cabinet are"))
    >>> type(rs.interactive(lens, words=model.words)).__name__
    'Figure'
    """
    return _drawn("interactive", dataset, more)


def _drawn(way: str, dataset: "xarray.Dataset", more: dict[str, Any]) -> Any:
    name = str(getattr(dataset, "attrs", {}).get("analysis", ""))
    home = f"rheoscope.report.plot.{name}"
    draw = getattr(import_module(home), f"{way}_{name}", None) if name.isidentifier() and find_spec(home) else None
    if draw is None:
        came = f"one of {name!r}" if name else type(dataset).__name__
        raise RheoscopeError(
            f"{way} draws the Dataset of an analysis, as rs.trajectory, rs.agreement or rs.composition gives it, got {came}; "
            f"type rs.{way}(rs.trajectory(trace))"
        )
    return draw(dataset, **more)

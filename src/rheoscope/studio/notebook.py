"""`rs.show`: the studio's cloud or a picture as a notebook widget, with its data embedded."""

import gzip
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope import __version__
from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.picture.token_labels import TokenLabels
from rheoscope.report.draw_result import picture_of
from rheoscope.running.argument_checks import KIND_PHRASES, kind_of
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from rheoscope.studio import descriptions, wire
from rheoscope.studio.detail_queries import pack_points
from rheoscope.studio.projected_points import DEFAULT_AXES, SPACES, prediction_axes
from rheoscope.studio.stored_example import PAGE_FOLDER

if TYPE_CHECKING:
    import xarray

COLOUR_ANALYSES = tuple(name for name in ANALYSIS_MODULES if analysis_by_name(name).colours_cloud)
"""Analyses whose fields can colour the cloud."""
WIDGET_EXPORT = "\nexport default { render: globalThis.rheoscopeRender };\n"
"""Appended to the page's script, it makes the script a module."""
CELL_MODULE = Path(__file__).parent / "notebook_cell.js"
"""The module of every cell, which loads the page from the widget that all cells of a kernel share."""


def show(
    content: "xarray.Dataset | Trace", token_strings: TokenLabels | None = None, types: "xarray.Dataset | None" = None
) -> Any:
    """Show a result or a text as an interactive widget in a notebook.

    **Settings** `content` is the Dataset of any analysis, or a Trace. `token_strings=model.token_strings` shows tokens instead of
    token ids. `types=rs.head_types(model)` marks the type of each head on maps of heads.

    **Returns** an anywidget for JupyterLab, VS Code and marimo. A Dataset becomes the panels of the studio. A Trace becomes the
    cloud with its scrubber. The data are stored in the notebook, so no server runs. The page is stored once per notebook. Install
    the widget with `pip install 'rheoscope[notebook]'`.

    **See also** `plot` draws the same Dataset for papers. `table` returns its numbers. `rheoscope studio` shows everything about
    a text.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> rs.show(model.trace("The keys to the cabinet are"), token_strings=model.token_strings)  # doctest: +SKIP
    """
    received_kind = kind_of(content)
    if received_kind not in ("dataset", "trace"):
        raise RheoscopeError(
            Message(
                "rs.show expects a Dataset or a Trace, got {received}",
                received=KIND_PHRASES.get(received_kind, received_kind),
            ),
            Advice("rs.show(rs.trajectory(trace))"),
        )
    data = (
        pack_trace(content, token_strings)
        if isinstance(content, Trace)
        else pack_picture(content, token_strings, types)
    )
    return widget_classes()[1](page=shared_page(), data=data)


def pack_picture(dataset: "xarray.Dataset", token_strings: TokenLabels | None, types: "xarray.Dataset | None") -> bytes:
    """The picture of a result in the format of the widget."""
    return wire.pack_envelope({"picture": wire.picture_json(picture_of(dataset, token_strings, types))}, {})


def pack_trace(trace: Trace, token_strings: TokenLabels | None) -> bytes:
    """The responses that the cloud of a text needs, under the paths of an export."""
    files = {
        path: gzip.compress(data, mtime=0) for path, data in _trace_files(trace, token_strings or _id_labels).items()
    }
    arrays = {path: wire.to_wire_array(np.frombuffer(data, np.uint8), ["byte"]) for path, data in files.items()}
    return wire.pack_envelope({"trace": "shown"}, arrays)


def _trace_files(trace: Trace, token_strings: TokenLabels) -> dict[str, bytes]:
    trace_path = "api/traces/shown"
    state = {
        "version": __version__,
        "models": [],
        "model": trace.view.name,
        "example": "shown",
        "languages": ["en", "zh"],
    }
    header = descriptions.trace_json("shown", trace.view.name, token_strings, trace, trace.text, ()) | {"window": None}
    files = {
        "api/state.json": wire.encode_json(state | {"limits": {"tokens": 0, "text_bytes": 0, "jobs": 0}}),
        "api/catalogue.json": wire.encode_json(descriptions.catalogue_json(COLOUR_ANALYSES)),
        f"{trace_path}.json": wire.encode_json(header),
    }
    for space in SPACES:
        suffix = "" if space == "sphere" else f".{space}"
        files[f"{trace_path}/points{suffix}.bin"] = pack_points(
            trace, prediction_axes(trace, space), DEFAULT_AXES, space
        )
    for name in COLOUR_ANALYSES:
        files[f"{trace_path}/analyses/{name}.bin"] = wire.pack_dataset(
            analysis_by_name(name).ask(trace), analysis_by_name(name), []
        )
    return files


def _id_labels(ids: list[int]) -> list[str]:
    """Labels of tokens whose texts are unknown."""
    return [f"#{token_id}" for token_id in ids]


def read_built_page() -> tuple[str, str]:
    """The built page as a JavaScript module, and its CSS."""
    script, style = (PAGE_FOLDER / "assets" / name for name in ("studio.js", "studio.css"))
    if not script.is_file() or not style.is_file():
        raise RheoscopeError(Message("rs.show needs the studio's page, which is not built"), Advice("", "make studio"))
    catalogues = [file.read_text(encoding="utf-8") for file in sorted(script.parent.glob("messages-*.js"))]
    return "\n".join([script.read_text(encoding="utf-8") + WIDGET_EXPORT, *catalogues]), style.read_text(
        encoding="utf-8"
    )


_shared_pages: dict[tuple[str, str], Any] = {}
"""Script and CSS → the widget that contains them."""


def shared_page() -> Any:
    """The widget with the page, compressed. All cells of a kernel share it. A closed one is replaced."""
    built_page = read_built_page()
    page = _shared_pages.get(built_page)
    if page is None or page.comm is None:
        script, rules = (gzip.compress(text.encode(), mtime=0) for text in built_page)
        page = _shared_pages[built_page] = widget_classes()[0](script=script, rules=rules)
    return page


@cache
def widget_classes() -> tuple[Any, Any]:
    """The class of the shared page and that of a cell. They are created on first use, because anywidget is optional."""
    try:
        import anywidget
        import ipywidgets
        import traitlets
    except ImportError as error:
        raise RheoscopeError(
            Message("rs.show needs anywidget; rs.plot draws with matplotlib instead"),
            Advice("pip install 'rheoscope[notebook]'"),
        ) from error

    class RheoscopePage(anywidget.AnyWidget):
        """The compressed script and CSS of the page. It draws nothing itself."""

        _esm = "export default {}"
        script = traitlets.Bytes().tag(sync=True)
        rules = traitlets.Bytes().tag(sync=True)

    class RheoscopeWidget(anywidget.AnyWidget):
        """A cell: the page that draws it, and one envelope of data."""

        _esm = CELL_MODULE.read_text(encoding="utf-8")
        page = traitlets.Instance(RheoscopePage).tag(sync=True, **ipywidgets.widget_serialization)
        data = traitlets.Bytes().tag(sync=True)

    return RheoscopePage, RheoscopeWidget

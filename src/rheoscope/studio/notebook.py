"""A text or the answer of an analysis inside a notebook: the studio's own script, and the answers of a server as data beside it."""

import gzip
from functools import cache
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
from rheoscope.studio.projected_points import SPACES, principal_axes
from rheoscope.studio.stored_example import PAGE_FOLDER

if TYPE_CHECKING:
    import xarray

COLOUR_ANALYSES = tuple(name for name in ANALYSIS_MODULES if analysis_by_name(name).colours_cloud)
"""Analyses that the cloud is coloured by."""
WIDGET_EXPORT = "\nexport default { render: globalThis.rheoscopeRender };\n"
"""What makes the page's script the module of a widget."""


def show(
    content: "xarray.Dataset | Trace", token_strings: TokenLabels | None = None, types: "xarray.Dataset | None" = None
) -> Any:
    """What an analysis found, or a text as a cloud that moves through the layers, alive in a notebook.

    **Takes** the Dataset of any analysis, as `plot` does, or a Trace. `token_strings=model.token_strings` puts texts in the place of token
    ids; `types=rs.head_types(model)` marks on maps of heads what kind each head is.

    **Gives** a widget (anywidget) for JupyterLab, VS Code and marimo: the studio's panels with the numbers under the pointer,
    or its cloud with the scrubber. What it shows lies in the notebook itself; no server runs. Needs
    `pip install 'rheoscope[notebook]'`.

    **Relation** `plot` draws the same Dataset for papers, `table` has its numbers; `rheoscope studio` shows all of a text.

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
    script, css = read_built_page()
    return widget_class()(_esm=script, rules=css, data=data)


def pack_picture(dataset: "xarray.Dataset", token_strings: TokenLabels | None, types: "xarray.Dataset | None") -> bytes:
    """The picture of an answer, as the widget reads it."""
    return wire.pack_envelope({"picture": wire.picture_json(picture_of(dataset, token_strings, types))}, {})


def pack_trace(trace: Trace, token_strings: TokenLabels | None) -> bytes:
    """A text as the widget reads it: under the paths of an export, the answers that its cloud needs."""
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
        files[f"{trace_path}/points{suffix}.bin"] = pack_points(trace, principal_axes(trace, space), "all", space)
    for name in COLOUR_ANALYSES:
        files[f"{trace_path}/analyses/{name}.bin"] = wire.pack_dataset(
            analysis_by_name(name).ask(trace), analysis_by_name(name), []
        )
    return files


def _id_labels(ids: list[int]) -> list[str]:
    """Tokens by their ids, where nobody says what they are."""
    return [f"#{token_id}" for token_id in ids]


def read_built_page() -> tuple[str, str]:
    """The built page as a module, and its rules."""
    script, style = (PAGE_FOLDER / "assets" / name for name in ("studio.js", "studio.css"))
    if not script.is_file() or not style.is_file():
        raise RheoscopeError("the studio's page, which rs.show draws with, is not built; type make studio")
    catalogues = [file.read_text(encoding="utf-8") for file in sorted(script.parent.glob("messages-*.js"))]
    return "\n".join([script.read_text(encoding="utf-8") + WIDGET_EXPORT, *catalogues]), style.read_text(
        encoding="utf-8"
    )


@cache
def widget_class() -> Any:
    """The class of the widget, made when it is first shown."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise RheoscopeError(
            "pictures in notebooks need anywidget; type pip install 'rheoscope[notebook]', or rs.plot for matplotlib"
        ) from error

    class RheoscopeWidget(anywidget.AnyWidget):
        """What Python sends to the page: one envelope (`data`), and the page's rules of style (`rules`)."""

        data = traitlets.Bytes().tag(sync=True)
        rules = traitlets.Unicode().tag(sync=True)

    return RheoscopeWidget

"""A text or the answer of an analysis inside a notebook: the studio's own script, and the answers of a server as data beside it."""

import gzip
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope import __version__
from rheoscope.catalogue import analysis
from rheoscope.picture.token_labels import Words
from rheoscope.report.draw_result import picture_of
from rheoscope.running.argument_checks import CALLED, kind
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from rheoscope.studio import descriptions, wire
from rheoscope.studio.detail_queries import points_on
from rheoscope.studio.projected_points import SPACES, widest
from rheoscope.studio.stored_example import STATIC

if TYPE_CHECKING:
    import xarray

COLOURS = ("clusters", "trajectory")
"""Analyses that the cloud is coloured by."""
CALL = "\nexport default { render: globalThis.rheoscopeRender };\n"
"""What makes the page's script the module of a widget."""


def show(found: "xarray.Dataset | Trace", words: Words | None = None, types: "xarray.Dataset | None" = None) -> Any:
    """What an analysis found, or a text as a cloud that moves through the layers, alive in a notebook.

    **Takes** the Dataset of any analysis, as `plot` does, or a Trace. `words=model.words` puts texts in the place of token
    ids; `types=rs.head_types(model)` marks on maps of heads what kind each head is.

    **Gives** a widget (anywidget) for JupyterLab, VS Code and marimo: the studio's panels with the numbers under the pointer,
    or its cloud with the scrubber. What it shows lies in the notebook itself; no server runs. Needs
    `pip install 'rheoscope[notebook]'`.

    **Relation** `plot` draws the same Dataset for papers, `table` has its numbers; `rheoscope studio` shows all of a text.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> rs.show(model.trace("The keys to the cabinet are"), words=model.words)  # doctest: +SKIP
    """
    came = kind(found)
    if came not in ("dataset", "trace"):
        raise RheoscopeError(
            f"rs.show takes a Dataset or a Trace, got {CALLED.get(came, came)}; type rs.show(rs.trajectory(trace))"
        )
    data = of_trace(found, words) if isinstance(found, Trace) else of_picture(found, words, types)
    script, rules = built()
    return widget()(_esm=script, rules=rules, data=data)


def of_picture(dataset: "xarray.Dataset", words: Words | None, types: "xarray.Dataset | None") -> bytes:
    """The picture of an answer, as the widget reads it."""
    return wire.packed({"picture": wire.of_picture(picture_of(dataset, words, types))}, {})


def of_trace(trace: Trace, words: Words | None) -> bytes:
    """A text as the widget reads it: under the paths of an export, the answers that its cloud needs."""
    files = {path: gzip.compress(data, mtime=0) for path, data in _answers(trace, words or _numbers).items()}
    told = {path: wire.as_array(np.frombuffer(data, np.uint8), ["byte"]) for path, data in files.items()}
    return wire.packed({"trace": "shown"}, told)


def _answers(trace: Trace, words: Words) -> dict[str, bytes]:
    own = "api/traces/shown"
    state = {
        "version": __version__,
        "models": [],
        "model": trace.view.name,
        "example": "shown",
        "languages": ["en", "zh"],
    }
    head = descriptions.of_trace("shown", trace.view.name, words, trace, trace.text, ()) | {"window": None}
    files = {
        "api/state.json": wire.written(state | {"limits": {"tokens": 0, "text_bytes": 0, "jobs": 0}}),
        "api/catalogue.json": wire.written(descriptions.of_catalogue(COLOURS)),
        f"{own}.json": wire.written(head),
    }
    for space in SPACES:
        ending = "" if space == "sphere" else f".{space}"
        files[f"{own}/points{ending}.bin"] = points_on(trace, widest(trace, space), "all", space)
    for name in COLOURS:
        files[f"{own}/analyses/{name}.bin"] = wire.of_dataset(analysis(name).ask(trace), analysis(name), [])
    return files


def _numbers(ids: list[int]) -> list[str]:
    """Tokens by their ids, where nobody says what they are."""
    return [f"#{one}" for one in ids]


def built() -> tuple[str, str]:
    """The built page as a module, and its rules."""
    script, style = (STATIC / "assets" / name for name in ("studio.js", "studio.css"))
    if not script.is_file() or not style.is_file():
        raise RheoscopeError("the studio's page, which rs.show draws with, is not built; type make studio")
    return script.read_text(encoding="utf-8") + CALL, style.read_text(encoding="utf-8")


@cache
def widget() -> Any:
    """The class of the widget, made when it is first shown."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise RheoscopeError(
            "pictures in notebooks need anywidget; type pip install 'rheoscope[notebook]', or rs.plot for matplotlib"
        ) from error

    class Shown(anywidget.AnyWidget):
        """What Python sends to the page: one envelope (`data`), and the page's rules of style (`rules`)."""

        data = traitlets.Bytes().tag(sync=True)
        rules = traitlets.Unicode().tag(sync=True)

    return Shown

"""Widgets of notebooks: what they are told is what was found; a notebook runs from top to bottom; what is missing is one line."""

import ast
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import rheoscope as rs
from rheoscope.report.draw_result import picture_of
from rheoscope.studio import notebook
from rheoscope.studio.wire import encode_json, picture_json, unpack_envelope
from tests.studio.cases import TEXT, small

FIRST_LOOK = Path(__file__).parents[2] / "examples" / "first_look.ipynb"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page, built or not: what it draws is looked at in a browser."""
    pytest.importorskip("anywidget", reason="no anywidget here; widgets were not made")
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "studio.js").write_text("globalThis.rheoscopeRender = () => {}", encoding="utf-8")
    (tmp_path / "assets" / "studio.css").write_text(":root{--ink:#111}", encoding="utf-8")
    monkeypatch.setattr(notebook, "PAGE_FOLDER", tmp_path)


def files(data: bytes) -> dict[str, bytes]:
    header, arrays = unpack_envelope(data)
    assert header["trace"] == "shown"
    return {path: gzip.decompress(one.values.tobytes()) for path, one in arrays.items()}


def test_a_picture_travels_whole() -> None:
    found = rs.readout(small().trace(TEXT))
    told, arrays = unpack_envelope(notebook.pack_picture(found, small().token_strings, None))
    assert told["picture"] == json.loads(encode_json(picture_json(picture_of(found, small().token_strings))))
    assert arrays == {}


def test_a_text_travels_as_the_server_would_tell_it() -> None:
    trace = small().trace(TEXT)
    told = files(notebook.pack_trace(trace, small().token_strings))
    head = json.loads(told["api/traces/shown.json"])
    assert [one["text"] for one in head["tokens"]] == trace.tokens
    assert head["next"]["token"] == small().token_strings([head["next"]["id"]])[0]
    header, arrays = unpack_envelope(told["api/traces/shown/points.bin"])
    assert (header["space"], arrays["points"].decoded_values.shape) == ("sphere", (len(trace.steps), len(trace), 3))
    assert unpack_envelope(told["api/traces/shown/points.raw.bin"])[0]["space"] == "raw"
    _, arrays = unpack_envelope(told["api/traces/shown/analyses/clusters.bin"])
    assert (arrays["lineage"].decoded_values == rs.clusters(trace).lineage.values).all()
    bare = json.loads(files(notebook.pack_trace(trace, None))["api/traces/shown.json"])
    assert bare["next"]["token"] == f"#{head['next']['id']}"


def run_cell(source: str, at: int, namespace: dict[str, Any]) -> Any:
    """As a kernel runs it: what the last line gives is shown."""
    code = ast.parse(source)
    last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
    exec(compile(code, f"cell {at}", "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), f"cell {at}", "eval"), namespace)


def test_the_notebook_runs_from_top_to_bottom(page: None) -> None:
    """Without a kernel: cell after cell in one namespace; no output of an old run is kept in the file."""
    cells = [
        cell for cell in json.loads(FIRST_LOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    gave = [run_cell("".join(cell["source"]), at, namespace) for at, cell in enumerate(cells)]
    assert len(cells) >= 8
    assert not any(cell["outputs"] for cell in cells)
    shown = [one for one in gave if type(one).__name__ == "RheoscopeWidget"]
    assert len(shown) == 3
    assert all("application/vnd.jupyter.widget-view+json" in one._repr_mimebundle_()[0] for one in shown)
    assert all(one._esm.endswith(notebook.WIDGET_EXPORT) and one.rules == ":root{--ink:#111}" for one in shown)
    assert json.loads(files(shown[0].data)["api/traces/shown.json"])["text"] == namespace["trace"].text
    assert (
        unpack_envelope(shown[1].data)[0]["picture"]["title"]
        == picture_of(namespace["lens"], namespace["model"].token_strings).title
    )


def test_what_is_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rs.trajectory(small().trace(TEXT))
    monkeypatch.setattr(notebook, "PAGE_FOLDER", tmp_path)
    with pytest.raises(rs.RheoscopeError, match=r"is not built; type make studio$"):
        rs.show(found)
    notebook.widget_class.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(rs.RheoscopeError, match=r"need anywidget; type pip install 'rheoscope\[notebook\]'"):
        notebook.widget_class()

"""Notebook widgets: their data, the example notebook, and the errors for missing parts."""

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

EXAMPLES = Path(__file__).parents[2] / "examples"
FIRST_LOOK, FEATURES = EXAMPLES / "first_look.ipynb", EXAMPLES / "features.ipynb"
TRAINING_MONITOR = EXAMPLES / "training_monitor.ipynb"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the built page. Browser tests check what it draws."""
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "studio.js").write_text("globalThis.rheoscopeRender = () => {}", encoding="utf-8")
    (tmp_path / "assets" / "studio.css").write_text(":root{--ink:#111}", encoding="utf-8")
    monkeypatch.setattr(notebook, "PAGE_FOLDER", tmp_path)


def files(data: bytes) -> dict[str, bytes]:
    header, arrays = unpack_envelope(data)
    assert header["trace"] == "shown"
    return {path: gzip.decompress(array.values.tobytes()) for path, array in arrays.items()}


def test_a_packed_picture_equals_the_picture() -> None:
    result = rs.readout(small().trace(TEXT))
    header, arrays = unpack_envelope(notebook.pack_picture(result, small().token_strings, None))
    assert header["picture"] == json.loads(encode_json(picture_json(picture_of(result, small().token_strings))))
    assert arrays == {}


def test_a_packed_trace_contains_the_responses_of_the_server() -> None:
    trace = small().trace(TEXT)
    responses = files(notebook.pack_trace(trace, small().token_strings))
    trace_header = json.loads(responses["api/traces/shown.json"])
    assert [token["text"] for token in trace_header["tokens"]] == trace.tokens
    assert trace_header["next"]["token"] == small().token_strings([trace_header["next"]["id"]])[0]
    header, arrays = unpack_envelope(responses["api/traces/shown/points.bin"])
    assert (header["space"], arrays["points"].decoded_values.shape) == ("sphere", (len(trace.steps), len(trace), 3))
    assert unpack_envelope(responses["api/traces/shown/points.raw.bin"])[0]["space"] == "raw"
    _, arrays = unpack_envelope(responses["api/traces/shown/analyses/clusters.bin"])
    assert (arrays["lineage"].decoded_values == rs.clusters(trace).lineage.values).all()
    header_without_texts = json.loads(files(notebook.pack_trace(trace, None))["api/traces/shown.json"])
    assert header_without_texts["next"]["token"] == f"#{trace_header['next']['id']}"


def stored_state(cells: list[Any]) -> dict[str, Any]:
    """The state of cells and of the page they share, as a notebook stores it: id of a widget → its values."""
    embed = pytest.importorskip("ipywidgets.embed", reason="ipywidgets is not installed")
    return embed.dependency_state(cells, drop_defaults=False)


def run_cell(source: str, number: int, namespace: dict[str, Any]) -> Any:
    """Run a cell as a kernel does and return the value of its last line."""
    code = ast.parse(source)
    last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
    exec(compile(code, f"cell {number}", "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)


def test_the_notebook_runs_from_top_to_bottom(page: None) -> None:
    """All cells run in one namespace without a kernel, and the file contains no outputs."""
    cells = [
        cell for cell in json.loads(FIRST_LOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs = [run_cell("".join(cell["source"]), number, namespace) for number, cell in enumerate(cells)]
    assert len(cells) >= 8
    assert not any(cell["outputs"] for cell in cells)
    widgets = [output for output in outputs if type(output).__name__ == "RheoscopeWidget"]
    assert len(widgets) == 3
    assert all("application/vnd.jupyter.widget-view+json" in output._repr_mimebundle_()[0] for output in widgets)
    assert len({output.page for output in widgets}) == 1
    assert gzip.decompress(widgets[0].page.script).decode().endswith(notebook.WIDGET_EXPORT)
    assert gzip.decompress(widgets[0].page.rules) == b":root{--ink:#111}"
    assert json.loads(files(widgets[0].data)["api/traces/shown.json"])["text"] == namespace["trace"].text
    assert (
        unpack_envelope(widgets[1].data)[0]["picture"]["title"]
        == picture_of(namespace["lens"], namespace["model"].token_strings).title
    )


def test_the_notebook_of_features_shows_the_numbers_of_the_guide() -> None:
    cells = [cell for cell in json.loads(FEATURES.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs = [run_cell("".join(cell["source"]), number, namespace) for number, cell in enumerate(cells)]
    assert not any(cell["outputs"] for cell in cells)
    total, score = outputs[2][:2]
    assert total == pytest.approx(score, rel=1e-5)
    assert outputs[3].index[1] == "f457"
    assert outputs[4][["feature_from", "feature_to"]].values[:2].tolist() == [[457, 457], [685, 685]]
    assert (max(outputs[5][0]) > 20, max(outputs[5][1])) == (True, 0)
    assert outputs[6] == pytest.approx((2.22, -2.58), abs=0.01)


def test_the_notebook_of_the_training_monitor_reports_the_dead_head() -> None:
    cells = json.loads(TRAINING_MONITOR.read_text(encoding="utf-8"))["cells"]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cell for cell in cells if cell["cell_type"] == "code"):
        assert not cell["outputs"]
        run_cell("".join(cell["source"]), number, namespace)
    (alarm,) = namespace["monitor"].alarms
    assert (alarm.rule, alarm.step, alarm.layer, alarm.head) == ("dead_head", 50, 0, 1)


def test_cells_share_one_copy_of_the_page(page: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The widget state is what a notebook stores. A page that was closed, or built anew, is stored again."""
    monkeypatch.setattr(notebook, "_shared_pages", {})
    result = rs.trajectory(small().trace(TEXT))
    cells = [rs.show(result) for _ in range(3)]
    values = [widget["state"] for widget in stored_state(cells).values()]
    assert [state["page"] for state in values if "page" in state] == [f"IPY_MODEL_{cells[0].page.model_id}"] * 3
    assert len([state for state in values if state["_model_name"] == "AnyModel"]) == 4
    cells[0].page.close()
    reopened = rs.show(result)
    assert reopened.page is not cells[0].page
    (notebook.PAGE_FOLDER / "assets" / "studio.css").write_text(":root{--ink:#222}", encoding="utf-8")
    assert rs.show(result).page is not reopened.page


def test_a_missing_page_or_package_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = rs.trajectory(small().trace(TEXT))
    monkeypatch.setattr(notebook, "PAGE_FOLDER", tmp_path)
    with pytest.raises(rs.RheoscopeError, match=r"is not built; on the command line type make studio$"):
        rs.show(result)
    notebook.widget_classes.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(rs.RheoscopeError, match=r"needs anywidget.*; type pip install 'rheoscope\[notebook\]'"):
        notebook.widget_classes()

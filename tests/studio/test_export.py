"""An export holds what the server would answer; the example it opens on needs no model."""

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rheoscope.shapes import RheoscopeError
from rheoscope.studio import export
from rheoscope.studio.session import Limits
from rheoscope.studio.startup import bind_socket, check_installation, page_address
from rheoscope.studio.stored_example import StoredExample, decompress, load_example
from rheoscope.studio.wire import unpack_envelope
from tests.studio.cases import TEXT, Gate, loading, one_line, posted, running, told


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As make studio leaves it, with an example of its own."""
    folder = tmp_path_factory.mktemp("static")
    (folder / "assets").mkdir()
    (folder / "assets" / "studio.js").write_text("0")
    (folder / "example" / "api").mkdir(parents=True)
    (folder / "index.html").write_text("<html><head></head><body></body></html>")
    return folder


@pytest.fixture(scope="module")
def exported(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, dict[str, bytes]]]:
    """The folder, the id of the text, and what the server says of it under the same paths."""
    folder = tmp_path_factory.mktemp("export") / "page"
    with running() as (session, client):
        client.post("/api/traces", json={"text": TEXT, "questions": ["prediction"]})
        entry = session.get_entry(posted(client))
        session.start_questions(entry)[0].result.result(60)
        export.write_export(folder, session, entry, page)
        export.write_export(folder / "example", session, entry, None)
        own = f"api/traces/{entry.id}"
        live = {
            f"{own}.json": f"{own}",
            f"{own}/verdicts.json": f"{own}/verdicts",
            f"{own}/points.bin": f"{own}/points",
            f"{own}/points.raw.bin": f"{own}/points?space=raw",
            f"{own}/analyses/readout.bin": f"{own}/analyses/readout",
            f"{own}/weights/1/2.bin": f"{own}/weights/1/2",
            f"{own}/spectrum/2/0.json": f"{own}/spectrum/2/0",
            f"{own}/moves/1/2.bin": f"{own}/moves/1/2",
            f"{own}/images/2/1.bin": f"{own}/images/2/1",
            f"{own}/lens.bin": f"{own}/lens",
            f"{own}/token/4.json": f"{own}/token/4",
            "api/catalogue.json": "api/catalogue",
        }
        yield folder, entry.id, {file: client.get(f"/{path}").content for file, path in live.items()}


def held(folder: Path) -> dict[str, dict[str, str]]:
    """The answers that every script beside the page holds."""
    names = ["data.js", *(f"data/{file.name}" for file in (folder / "data").iterdir())]
    told = {name: (folder / name).read_text() for name in names}
    assert all(text.startswith(export.SCRIPT_PREFIX) for text in told.values())
    return {name: json.loads(text.removeprefix(export.SCRIPT_PREFIX).rstrip(");\n")) for name, text in told.items()}


def test_files_are_the_live_answers(exported: tuple[Path, str, dict[str, bytes]]) -> None:
    folder, _, live = exported
    for file, answer in live.items():
        assert decompress((folder / "example" / file).read_bytes()) == answer, file


def test_a_page_finds_every_answer_in_the_script_of_its_kind(exported: tuple[Path, str, dict[str, bytes]]) -> None:
    folder, _, live = exported
    scripts = held(folder)
    assert all(export.script_path(file) == name for name, files in scripts.items() for file in files)
    files = {file: data for script in scripts.values() for file, data in script.items()}
    example = folder / "example"
    assert {str(file.relative_to(example)) for file in (example / "api").rglob("*.*")} == set(files)
    for file, answer in live.items():
        assert gzip.decompress(base64.b64decode(files[file])) == answer


def test_the_page_is_copied_and_told_what_it_shows(exported: tuple[Path, str, dict[str, bytes]]) -> None:
    folder, trace, _ = exported
    assert f'id="rheoscope-export">{{"trace":"{trace}"}}</script></head>' in (folder / "index.html").read_text()
    assert (folder / "assets" / "studio.js").exists()
    assert not (
        folder / "api"
    ).exists()  # one copy of everything: what a page from disk can read serves a web server too
    state = json.loads((folder / "example" / "api" / "state.json").read_text())
    assert (state["example"], state["models"][0]["ready"]) == (trace, True)


def test_the_example_is_there_before_any_model(exported: tuple[Path, str, dict[str, bytes]]) -> None:
    folder, trace, live = exported
    stored = load_example(folder / "example")
    assert stored is not None
    gate = Gate()
    with running(gate, stored=stored) as (session, client):
        session.open_model("default")
        state = client.get("/api/state").json()
        assert (state["example"], state["models"][0]["layers"], state["models"][0]["ready"]) == (trace, 3, False)
        for file, answer in live.items():
            path = file.rsplit(".", 1)[0].replace("points.raw", "points?space=raw")
            if "raw" not in file:
                assert client.get(f"/{path}").content == answer, file
        events = told(client.get(f"/api/traces/{trace}/events").text)
        assert [name for name, _ in events if name != "known"] == ["head", *["verdict"] * 7, "findings", "done"]
        assert json.loads(events[0][1])["id"] == trace
        assert not session.models["default"].job.is_over
        gate.opens.set()
        assert client.get(f"/api/traces/{trace}/points?space=raw").content == live[f"api/traces/{trace}/points.raw.bin"]
        assert posted(client) == trace
        answer = client.post("/api/traces", json={"text": TEXT}).json()
        assert told(client.get(f"/api/jobs/{answer['job']}/events").text)[-1][0] == "done"
        assert not session.get_entry(
            trace
        ).results.datasets  # its questions are answered already, nothing is asked again


def test_many_maps_are_told_in_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MAX_FINE_PAIRS", 10)
    with running() as (session, client):
        entry = session.get_entry(posted(client))
        files = dict(export.export_files(session, entry))
        _, coarse = unpack_envelope(files[f"api/traces/{entry.id}/weights/1/2.bin"])
        _, fine = unpack_envelope(client.get(f"/api/traces/{entry.id}/weights/1/2").content)
    assert len(np.unique(coarse["map"].values)) <= 33
    np.testing.assert_allclose(coarse["map"].decoded_values, fine["map"].decoded_values, atol=0.6 * coarse["map"].scale)


def test_an_example_gives_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "example" / "api" / "traces").mkdir(parents=True)
    stored = StoredExample(tmp_path / "example", "ab", "", {"id": "default"})
    for path in ("ab/../../../../secret", "../secret", "secret", "ab"):
        assert stored.read_response(path, "json") is None
    assert load_example(tmp_path) is None
    with running(stored=stored) as (_, client):
        one_line(client.get("/api/traces/ab%2f..%2f..%2f..%2f..%2fsecret"), 404)


def test_what_is_there_is_not_overwritten(tmp_path: Path, page: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RheoscopeError, match="nothing is overwritten"):
        export.save_export(tmp_path, TEXT, page_folder=page)


def test_a_page_without_a_head_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="make studio"):
        export.mark_as_export("<p>", "ab")


# The command


def test_without_a_page_it_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rheoscope.commands.app import app
    from rheoscope.studio import startup

    with pytest.raises(RheoscopeError, match="type make studio"):
        check_installation(tmp_path)
    monkeypatch.setattr(startup, "PAGE_FOLDER", tmp_path)
    done = CliRunner().invoke(app, ["studio"])
    assert str(done.exception) == "the studio's page is not built; type make studio"
    (tmp_path / "index.html").write_text("")
    done = CliRunner().invoke(app, ["studio", "--text", "x"])
    assert "--export" in str(done.exception)


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with bind_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RheoscopeError, match=f"cannot listen on 127.0.0.1:{port}"):
            bind_socket("127.0.0.1", port)
        assert page_address("127.0.0.1", port, "a") == f"http://127.0.0.1:{port}/?token=a"


def test_models_and_their_controls_are_opened_as_was_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from rheoscope.commands.app import app
    from rheoscope.studio import startup

    asked = []
    monkeypatch.setattr(startup, "PAGE_FOLDER", tmp_path)
    monkeypatch.setattr(startup, "serve", lambda *given: asked.append(given))
    (tmp_path / "index.html").write_text("")
    done = CliRunner().invoke(app, ["studio", "--device", "cpu", "--dtype", "float64", "--port", "0"])
    assert done.exit_code == 0, done.output
    assert asked == [(startup.StudioOptions(None, "cpu", "float64", []), "127.0.0.1", 0, False)]

    loaded: list[dict[str, Any]] = []

    def load(source: str | None, **how: Any) -> Any:
        loaded.append({name: how[name] for name in ("device", "dtype")})
        return loading(source, progress=lambda done, total: None)

    monkeypatch.setattr(startup, "load", load)
    monkeypatch.setattr("rheoscope.opening.load", load)
    monkeypatch.setattr(startup, "default_history_file", lambda: tmp_path / "recent.json")
    session = startup.start_session(asked[0][0], Limits(n_controls=1))
    try:
        opened = session.get_model(session.first_model)
        entry, _ = session.get_or_trace(opened, opened.job.result.result(20), TEXT, ())
        (control,) = session._control_factories(entry, opened.job)
        control()
    finally:
        session.close()
    assert loaded == [{"device": "cpu", "dtype": "float64"}] * 2


def test_what_cannot_be_opened_so_is_told_where_it_was_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from rheoscope.commands.app import app
    from rheoscope.studio import startup

    monkeypatch.setattr(startup, "PAGE_FOLDER", tmp_path)
    (tmp_path / "index.html").write_text("")
    for option, wrong in (("--dtype", "float7"), ("--device", "abacus")):
        done = CliRunner().invoke(app, ["studio", option, wrong, "--port", "0"])
        assert wrong in str(done.exception)
        assert isinstance(done.exception, RheoscopeError)

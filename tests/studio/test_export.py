"""An export contains the responses of the server, and the stored example needs no model."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rheoscope.report.story import TEXT_LINES
from rheoscope.shapes import RheoscopeError
from rheoscope.studio import export, exported_files, jobs
from rheoscope.studio.single_file import START, single_file
from rheoscope.studio.startup import bind_socket, check_installation, page_address
from rheoscope.studio.stored_example import StoredExample, decompress, load_example
from rheoscope.studio.wire import unpack_envelope
from tests.studio.cases import TEXT, GatedLoader, error_line, load_small, parse_events, post_text, running_studio


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built page with a stored example."""
    folder = tmp_path_factory.mktemp("static")
    (folder / "assets").mkdir()
    (folder / "assets" / "studio.js").write_text("0")
    (folder / "example" / "api").mkdir(parents=True)
    (folder / "index.html").write_text("<html><head></head><body></body></html>")
    return folder


@pytest.fixture(scope="module")
def exported(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, dict[str, bytes]]]:
    """The folder of an export, the id of its text, and the responses of the server for the same files."""
    folder = tmp_path_factory.mktemp("export") / "page"
    with running_studio() as (session, client):
        client.post("/api/traces", json={"text": TEXT, "lines": ["next_token"]})
        entry = session.get_entry(post_text(client))
        session.start_story(entry)[0].result.result(60)
        export.write_export(folder, session, entry, page)
        export.write_export(folder / "example", session, entry, None)
        trace_path = f"api/traces/{entry.id}"
        paths = {
            f"{trace_path}.json": f"{trace_path}",
            f"{trace_path}/story.json": f"{trace_path}/story",
            f"{trace_path}/points.bin": f"{trace_path}/points",
            f"{trace_path}/points.raw.bin": f"{trace_path}/points?space=raw",
            f"{trace_path}/analyses/readout.bin": f"{trace_path}/analyses/readout",
            f"{trace_path}/analyses/readout/tables.json": f"{trace_path}/analyses/readout/tables",
            f"{trace_path}/weights/1/2.bin": f"{trace_path}/weights/1/2",
            f"{trace_path}/spectrum/2/0.json": f"{trace_path}/spectrum/2/0",
            f"{trace_path}/moves/1/2.bin": f"{trace_path}/moves/1/2",
            f"{trace_path}/images/2/1.bin": f"{trace_path}/images/2/1",
            f"{trace_path}/lens.bin": f"{trace_path}/lens",
            f"{trace_path}/token/4.json": f"{trace_path}/token/4",
            "api/cards/default.json": "api/cards/default",
            "api/catalogue.json": "api/catalogue",
        }
        yield folder, entry.id, {file: client.get(f"/{path}").content for file, path in paths.items()}


def script_contents(folder: Path) -> dict[str, dict[str, str]]:
    """The responses in every script of an exported page."""
    names = ["data.js", *(f"data/{file.name}" for file in (folder / "data").iterdir())]
    scripts = {name: (folder / name).read_text() for name in names}
    assert all(text.startswith(exported_files.SCRIPT_PREFIX) for text in scripts.values())
    return {
        name: json.loads(text.removeprefix(exported_files.SCRIPT_PREFIX).rstrip(");\n"))
        for name, text in scripts.items()
    }


def test_files_equal_the_live_responses(exported: tuple[Path, str, dict[str, bytes]]) -> None:
    folder, _, live = exported
    for file, answer in live.items():
        assert decompress((folder / "example" / file).read_bytes()) == answer, file


def test_every_response_is_in_the_script_of_its_kind(exported: tuple[Path, str, dict[str, bytes]]) -> None:
    folder, _, live = exported
    scripts = script_contents(folder)
    assert all(exported_files.script_path(file) == name for name, files in scripts.items() for file in files)
    files = {file: data for script in scripts.values() for file, data in script.items()}
    example = folder / "example"
    assert {str(file.relative_to(example)) for file in (example / "api").rglob("*.*")} == set(files)
    for file, answer in live.items():
        assert gzip.decompress(base64.b64decode(files[file])) == answer


def test_the_exported_page_names_its_text(exported: tuple[Path, str, dict[str, bytes]]) -> None:
    folder, trace, _ = exported
    assert f'id="rheoscope-export">{{"trace":"{trace}"}}</script></head>' in (folder / "index.html").read_text()
    assert (folder / "assets" / "studio.js").exists()
    assert not (folder / "api").exists()  # each response is exported once, in a script
    state = json.loads((folder / "example" / "api" / "state.json").read_text())
    assert (state["example"], state["models"][0]["ready"]) == (trace, True)


def test_the_example_is_served_before_the_model_is_loaded(exported: tuple[Path, str, dict[str, bytes]]) -> None:
    folder, trace, live = exported
    stored = load_example(folder / "example")
    assert stored is not None
    loader = GatedLoader()
    with running_studio(loader, stored_example=stored) as (session, client):
        session.open_model("default")
        state = client.get("/api/state").json()
        assert (state["example"], state["models"][0]["layers"], state["models"][0]["ready"]) == (trace, 3, False)
        for file, answer in live.items():
            path = file.rsplit(".", 1)[0].replace("points.raw", "points?space=raw")
            if "raw" not in file:
                assert client.get(f"/{path}").content == answer, file
        events = parse_events(client.get(f"/api/traces/{trace}/events").text)
        assert [name for name, _ in events if name != "known"] == [
            "head",
            *["line"] * len(TEXT_LINES),
            "card",
            "findings",
            "done",
        ]
        assert json.loads(events[0][1])["id"] == trace
        assert not session.models["default"].job.is_over
        loader.gate.set()
        assert client.get(f"/api/traces/{trace}/points?space=raw").content == live[f"api/traces/{trace}/points.raw.bin"]
        assert post_text(client) == trace
        answer = client.post("/api/traces", json={"text": TEXT}).json()
        assert parse_events(client.get(f"/api/jobs/{answer['job']}/events").text)[-1][0] == "done"
        assert not session.get_entry(trace).results.datasets  # the stored results are not computed again


def test_large_exports_use_coarse_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported_files, "MAX_FINE_PAIRS", 10)
    with running_studio() as (session, client):
        entry = session.get_entry(post_text(client))
        files = dict(exported_files.export_files(session, entry))
        _, coarse = unpack_envelope(files[f"api/traces/{entry.id}/weights/1/2.bin"])
        _, fine = unpack_envelope(client.get(f"/api/traces/{entry.id}/weights/1/2").content)
    assert len(np.unique(coarse["map"].values)) <= 33
    np.testing.assert_allclose(coarse["map"].decoded_values, fine["map"].decoded_values, atol=0.6 * coarse["map"].scale)


def test_the_example_serves_no_file_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "example" / "api" / "traces").mkdir(parents=True)
    stored = StoredExample(tmp_path / "example", "ab", "", {"id": "default"})
    for path in ("ab/../../../../secret", "../secret", "secret", "ab"):
        assert stored.read_response(path, "json") is None
    assert load_example(tmp_path) is None
    with running_studio(stored_example=stored) as (_, client):
        error_line(client.get("/api/traces/ab%2f..%2f..%2f..%2f..%2fsecret"), 404)


def test_an_export_does_not_overwrite_files(tmp_path: Path, page: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RheoscopeError, match="an export does not overwrite files"):
        export.save_export(tmp_path, TEXT, page_folder=page)


def test_a_page_without_a_head_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="make studio"):
        exported_files.mark_as_export("<p>", "ab")


# The command


def test_without_a_built_page_the_command_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rheoscope.commands.app import app
    from rheoscope.studio import run_studio

    with pytest.raises(RheoscopeError, match="type make studio"):
        check_installation(tmp_path)
    monkeypatch.setattr(run_studio, "PAGE_FOLDER", tmp_path)
    invocation = CliRunner().invoke(app, ["studio"])
    assert isinstance(invocation.exception, RheoscopeError)
    assert invocation.exception.on("shell") == "the studio's page is not built; type make studio"
    (tmp_path / "index.html").write_text("")
    invocation = CliRunner().invoke(app, ["studio", "--text", "x"])
    assert "--export" in str(invocation.exception)


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with bind_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RheoscopeError, match=f"cannot listen on 127.0.0.1:{port}"):
            bind_socket("127.0.0.1", port)
        assert page_address("127.0.0.1", port, "a") == f"http://127.0.0.1:{port}/?token=a"


def test_models_are_loaded_with_the_typed_device_and_dtype(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from rheoscope.commands.app import app
    from rheoscope.studio import run_studio, startup

    calls = []
    monkeypatch.setattr(run_studio, "PAGE_FOLDER", tmp_path)
    monkeypatch.setattr(run_studio, "serve", lambda *arguments: calls.append(arguments))
    (tmp_path / "index.html").write_text("")
    invocation = CliRunner().invoke(app, ["studio", "--device", "cpu", "--dtype", "float64", "--port", "0"])
    assert invocation.exit_code == 0, invocation.output
    assert calls == [(startup.StudioOptions(None, "cpu", "float64", []), "127.0.0.1", 0, False)]

    loaded: list[dict[str, Any]] = []

    def load(source: str | None, **options: Any) -> Any:
        loaded.append({name: options[name] for name in ("device", "dtype")})
        return load_small(source, progress=lambda done, total: None)

    monkeypatch.setattr(startup, "load", load)
    monkeypatch.setattr(startup, "default_history_file", lambda: tmp_path / "recent.json")
    session = startup.start_session(calls[0][0])
    try:
        session.get_model(session.first_model).job.result.result(20)
        session.open_model("default", untrained=True).job.result.result(20)
    finally:
        session.close()
    assert loaded == [{"device": "cpu", "dtype": "float64"}] * 2


def test_an_unknown_dtype_or_device_is_refused_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from rheoscope.commands.app import app
    from rheoscope.studio import run_studio

    monkeypatch.setattr(run_studio, "PAGE_FOLDER", tmp_path)
    (tmp_path / "index.html").write_text("")
    for option, wrong in (("--dtype", "float7"), ("--device", "abacus")):
        invocation = CliRunner().invoke(app, ["studio", option, wrong, "--port", "0"])
        assert wrong in str(invocation.exception)
        assert isinstance(invocation.exception, RheoscopeError)


def test_an_export_waits_longer_than_the_lease_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export has no client that asks about its job."""
    monkeypatch.setattr(jobs, "LEASE_SECONDS", 0.3)
    with running_studio(load_small) as (session, _):
        entry = export.run_all_analyses(session, TEXT)
        assert entry.job is not None
        assert not entry.job.has_expired


# One file


@pytest.fixture
def export_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the export command with the small model, on a small built page and without the analyses."""
    from rheoscope.commands.app import app
    from rheoscope.studio import run_studio, startup

    def trace_only(session: Any, text: str) -> Any:
        opened_model = session.get_model(session.first_model)
        return session.get_or_trace(opened_model, opened_model.job.result.result(20), text, ())[0]

    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    scripts = '<script defer src="./assets/studio.js"></script><link rel="stylesheet" href="./assets/studio.css">'
    (folder / "index.html").write_text(f"{START}{scripts}</head><body></body></html>")
    (folder / "assets" / "studio.js").write_text('document.title = "</script>"')
    (folder / "assets" / "messages-zh.js").write_text('catalogue = {"{n} heads":"{n} 个头"}')
    (folder / "assets" / "studio.css").write_text("p { margin: 0 }")
    monkeypatch.setattr(run_studio, "PAGE_FOLDER", folder)
    monkeypatch.setattr(startup, "load", load_small)
    monkeypatch.setattr(startup, "default_history_file", lambda: tmp_path / "recent.json")
    monkeypatch.setattr(export, "run_all_analyses", trace_only)
    return lambda target, language="en": CliRunner().invoke(
        app, ["studio", "--export", str(target), "--text", TEXT, "--lang", language]
    )


@pytest.mark.parametrize(("language", "html_language", "n_scripts"), [("en", "en", 3), ("zh", "zh-Hans", 4)])
def test_an_html_name_exports_one_file_that_requests_nothing(
    export_command: Callable[..., Any], tmp_path: Path, language: str, html_language: str, n_scripts: int
) -> None:
    """The policy of the file allows its own scripts and style by their hashes, and no address."""
    target = tmp_path / "flow.html"
    assert export_command(target, language).exit_code == 0
    html = target.read_text(encoding="utf-8")
    assert html.startswith(f'<!doctype html><html lang="{html_language}">')
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', html)
    rules = {name: sources for name, *sources in (rule.split() for rule in policy.split("; "))}
    contents = re.findall(r"<script>(.*?)</script>", html, re.S)
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
        for content in [*contents, *re.findall(r"<style>(.*?)</style>", html)]
    ]
    assert [*rules["script-src"], *rules["style-src"]] == hashes
    assert len(contents) == n_scripts
    assert len(re.findall("<script", html)) == n_scripts + 1  # one describes the export and does not run
    assert rules["default-src"] == ["'none'"]
    assert {source for sources in rules.values() for source in sources} - set(hashes) == {"'none'", "data:", "blob:"}
    assert TEXT in json.loads(decoded_responses(contents[0])[f"api/traces/{exported_trace(html)}.json"])["text"]


def exported_trace(html: str) -> str:
    return json.loads(re.findall(r'id="rheoscope-export">(.*?)</script>', html)[0])["trace"]


def decoded_responses(script: str) -> dict[str, bytes]:
    entries = json.loads(script.strip().removeprefix(exported_files.SCRIPT_PREFIX).removesuffix(");"))
    return {path: gzip.decompress(base64.b64decode(data)) for path, data in entries.items()}


def test_only_a_file_of_this_package_is_replaced(export_command: Callable[..., Any], tmp_path: Path) -> None:
    target = tmp_path / "flow.html"
    assert "wrote" in export_command(target).output
    assert "replaced" in export_command(target).output
    target.write_text("mine")
    assert "was not written by Rheoscope" in str(export_command(target).exception)
    assert target.read_text() == "mine"


def test_a_single_file_needs_the_built_page(tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match="the studio's page is not built"):
        single_file([], "trace", "en", tmp_path)

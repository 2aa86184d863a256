"""The files of the page are compressed once, and the state is requested while the script still loads."""

import gzip
import os
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed")

from starlette.applications import Starlette
from starlette.testclient import TestClient

from rheoscope.studio.page_files import PageFiles, compress_file

SCRIPT = "let value = 1;\n" * 400


@pytest.fixture
def page(tmp_path: Path) -> tuple[Path, TestClient]:
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "studio.js").write_text(SCRIPT)
    app = Starlette()
    app.mount("/", PageFiles(directory=tmp_path, html=True))
    return tmp_path, TestClient(app)


def test_a_script_arrives_compressed_and_is_compressed_once(page: tuple[Path, TestClient]) -> None:
    compress_file.cache_clear()
    for _ in range(3):
        response = page[1].get("/studio.js")
        assert (response.text, response.headers["content-encoding"]) == (SCRIPT, "gzip")
        assert int(response.headers["content-length"]) == len(gzip.compress(SCRIPT.encode(), 9))
        assert response.headers["vary"] == "Accept-Encoding"
    assert compress_file.cache_info().misses == 1


def test_a_file_that_changes_is_compressed_again(page: tuple[Path, TestClient]) -> None:
    page[1].get("/studio.js")
    (page[0] / "studio.js").write_text("new")
    os.utime(page[0] / "studio.js", (0, 0))
    assert page[1].get("/studio.js").text == "new"


def test_other_requests_get_the_file_as_it_is(page: tuple[Path, TestClient]) -> None:
    plain = page[1].get("/studio.js", headers={"accept-encoding": "identity"})
    assert ("content-encoding" in plain.headers, plain.text) == (False, SCRIPT)
    part = page[1].get("/studio.js", headers={"range": "bytes=0-9"})
    assert (part.status_code, part.content) == (206, SCRIPT.encode()[:10])
    head = page[1].head("/studio.js")
    assert (head.status_code, head.content) == (200, b"")
    fresh = page[1].get("/studio.js", headers={"if-none-match": plain.headers["etag"]})
    assert (fresh.status_code, fresh.content) == (304, b"")
    assert page[1].get("/missing.js").status_code == 404


def test_only_the_page_itself_preloads_the_state(page: tuple[Path, TestClient]) -> None:
    assert page[1].get("/").headers["link"] == "<./api/state>; rel=preload; as=fetch; crossorigin"
    assert "link" not in page[1].get("/studio.js").headers

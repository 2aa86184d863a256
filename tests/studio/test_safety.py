"""Access control: hosts, origins, body sizes, concurrent requests, the token, and the allowed models."""

import ipaddress
import json
from pathlib import Path

import pytest
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient

from rheoscope.shapes import RheoscopeError
from rheoscope.studio.model_sources import ModelSources, cached_hub_names
from rheoscope.studio.safety import AccessGuard, AccessRules, is_loopback
from rheoscope.studio.startup import page_address, reachable_host
from tests.studio.cases import error_line


async def echo_app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
    message = await receive()
    while message.get("more_body"):
        message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"fine"})


def make_client(rules: AccessRules = AccessRules(), base: str = "http://127.0.0.1:8642") -> TestClient:
    return TestClient(AccessGuard(echo_app, rules), base_url=base)


@pytest.mark.parametrize("base", ["http://127.0.0.1:1", "http://localhost:8642", "http://[::1]:8642"])
def test_requests_from_this_machine_are_answered(base: str) -> None:
    assert make_client(base=base).get("/api/state").text == "fine"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "",
        "192.168.0.7",
        "127.0.0.1@evil",
        "evil.com@127.0.0.1",
        "127.0.0.1/evil",
        "127.0.0.1:1:2",
        "[::1",
        "127.0.0.1 evil",
    ],
)
def test_an_unknown_host_is_refused(host: str) -> None:
    assert "this server is not" in error_line(make_client().get("/api/state", headers={"host": host}), 403)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://evil@127.0.0.1:8642"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_requests_from_other_sites_are_refused(headers: dict[str, str]) -> None:
    error_line(make_client().post("/api/traces", headers=headers), 403)


def test_requests_from_the_own_page_are_answered() -> None:
    headers = {"origin": "http://127.0.0.1:8642", "sec-fetch-site": "same-origin"}
    assert make_client().post("/api/traces", headers=headers).status_code == 200


def test_a_large_body_is_refused_with_and_without_chunks() -> None:
    client = make_client(AccessRules(max_body_bytes=100))
    assert "100 bytes" in error_line(client.post("/api/traces", content=b"x" * 101), 413)
    assert "100 bytes" in error_line(client.post("/api/traces", content=iter([b"x" * 60, b"x" * 60])), 413)
    assert client.post("/api/traces", content=b"x" * 100).status_code == 200
    error_line(client.post("/api/traces", headers={"content-length": "-1"}, content=b""), 413)


def test_too_many_requests_at_once_are_refused() -> None:
    error_line(make_client(AccessRules(max_requests=0)).get("/api/state"), 429)


@pytest.mark.parametrize("path", ["/%00", "/api/traces/%00", "/api/traces/a%0d%0a", "/assets/%1b.js"])
def test_a_path_with_control_characters_is_refused(path: str, tmp_path: Path) -> None:
    """Also before the page and the stored example look for a file of this name."""
    app = StaticFiles(directory=tmp_path, html=True)
    client = TestClient(AccessGuard(app, AccessRules()), base_url="http://127.0.0.1", raise_server_exceptions=False)
    assert "control characters" in error_line(client.get(path), 400)


def test_one_client_leaves_room_for_others() -> None:
    guard = AccessGuard(echo_app, AccessRules(max_client_requests=3, max_requests=5))
    guard.n_running["1.1.1.1"] = 3
    busy_client, other = (
        TestClient(guard, "http://127.0.0.1", client=(address, 1)) for address in ("1.1.1.1", "2.2.2.2")
    )
    error_line(busy_client.get("/api/state"), 429)
    assert other.get("/api/state").status_code == 200
    guard.n_running["3.3.3.3"] = 2
    error_line(other.get("/api/state"), 429)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_the_printed_address_can_be_opened(host: str) -> None:
    address = page_address(reachable_host(host), 8642, "secret")
    client = make_client(AccessRules(host, "secret"), address.split("?")[0])
    assert client.get(address).status_code == 200
    assert not ipaddress.ip_address(reachable_host(host)).is_unspecified


def test_every_response_has_security_headers() -> None:
    for response in (make_client().get("/"), make_client().get("/", headers={"host": "evil"})):
        policy = response.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'self'" in policy
        assert response.headers["x-content-type-options"] == "nosniff"


def test_beyond_loopback_every_request_needs_the_token() -> None:
    rules = AccessRules("0.0.0.0", "secret")
    client = make_client(rules, "http://192.168.0.7:8642")
    assert "token" in error_line(client.get("/api/state"), 401)
    error_line(client.get("/api/state?token=wrong"), 401)
    error_line(client.get("/api/state", headers={"authorization": "Bearer wrong"}), 401)
    assert client.get("/api/state", headers={"authorization": "Bearer secret"}).status_code == 200
    opened = client.get("/?token=secret")
    assert "HttpOnly" in opened.headers["set-cookie"]
    assert "SameSite=Strict" in opened.headers["set-cookie"]
    assert client.get("/api/state").status_code == 200  # the cookie has the token


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("127.9.9.9", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
    ],
)
def test_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


# Allowed models


@pytest.fixture
def model_folders(tmp_path: Path) -> Path:
    """A root with one model, a model outside it, and a link from inside to outside."""
    for name in ("root/good", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps({}))
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    return tmp_path


def test_only_models_below_a_root_may_be_opened(model_folders: Path) -> None:
    sources = ModelSources(("typed",), (model_folders / "root",))
    good = str(model_folders / "root" / "good")
    assert sources.resolve(good) == str((model_folders / "root" / "good").resolve())
    assert str(model_folders / "root" / "link") not in sources.available_names()  # the link leads outside the root
    assert sources.resolve("default") is None
    assert sources.resolve("typed") == "typed"
    assert good in sources.available_names()
    refused_names = [
        str(model_folders / "outside"),
        str(model_folders / "root" / ".." / "outside"),
        str(model_folders / "root" / "link"),
        f"{good}/../../outside",
        "../outside",
        "/etc/passwd",
        "~",
        "",
        "\0",
        f"{good}\0",
        "gpt2",
        "<b>x</b>",
        "x" * 10_000,
        "\u202e",
    ]
    for name in refused_names:
        with pytest.raises(RheoscopeError, match="this server may not open the model") as error:
            sources.resolve(name)
        assert len(str(error.value)) < 400


def test_hub_names_come_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--org--name" / "snapshots" / "abc").mkdir(parents=True)
    (tmp_path / "models--half").mkdir()
    assert cached_hub_names() == ["org/name"]
    assert ModelSources().resolve("org/name") == "org/name"
    with pytest.raises(RheoscopeError):
        ModelSources().resolve("half")


def test_recent_models_are_those_that_may_still_be_opened(tmp_path: Path) -> None:
    history_file = tmp_path / "cache" / "studio.json"
    sources = ModelSources(("first", "second"), history_file=history_file)
    for name in ("first", "second", "first"):
        sources.remember(name)
    assert sources.recent_names() == ["first", "second"]
    assert ModelSources(("second",), history_file=history_file).recent_names() == ["second"]
    for broken in ("{", "3", "[3, null]"):
        history_file.write_text(broken)
        assert sources.recent_names() == []
    ModelSources().remember("first")
    assert ModelSources().recent_names() == []

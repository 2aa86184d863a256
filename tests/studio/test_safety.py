"""Who may ask: wrong hosts and origins, large bodies, too many at once, and a token where others can come."""

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rheoscope.shapes import RheoscopeError
from rheoscope.studio.model_sources import ModelSources, cached_hub_names
from rheoscope.studio.safety import AccessGuard, AccessRules, is_loopback
from tests.studio.cases import one_line


async def plain(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
    message = await receive()
    while message.get("more_body"):
        message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"fine"})


def client(rules: AccessRules = AccessRules(), base: str = "http://127.0.0.1:8642") -> TestClient:
    return TestClient(AccessGuard(plain, rules), base_url=base)


@pytest.mark.parametrize("base", ["http://127.0.0.1:1", "http://localhost:8642", "http://[::1]:8642"])
def test_this_machine_may_ask(base: str) -> None:
    assert client(base=base).get("/api/state").text == "fine"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "", "192.168.0.7", "127.0.0.1@evil"]
)
def test_another_name_for_this_server_is_refused(host: str) -> None:
    assert "name" in one_line(client().get("/api/state", headers={"host": host}), 403)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_a_page_of_another_site_is_refused(headers: dict[str, str]) -> None:
    one_line(client().post("/api/traces", headers=headers), 403)


def test_its_own_page_may_ask() -> None:
    headers = {"origin": "http://127.0.0.1:8642", "sec-fetch-site": "same-origin"}
    assert client().post("/api/traces", headers=headers).status_code == 200


def test_a_body_is_bounded_however_it_comes() -> None:
    one = client(AccessRules(max_body_bytes=100))
    assert "100 bytes" in one_line(one.post("/api/traces", content=b"x" * 101), 413)
    assert "100 bytes" in one_line(one.post("/api/traces", content=iter([b"x" * 60, b"x" * 60])), 413)
    assert one.post("/api/traces", content=b"x" * 100).status_code == 200
    one_line(one.post("/api/traces", headers={"content-length": "-1"}, content=b""), 413)


def test_too_many_requests_at_once_are_refused() -> None:
    one_line(client(AccessRules(max_requests=0)).get("/api/state"), 429)


def test_every_answer_says_what_a_page_may_do() -> None:
    for answer in (client().get("/"), client().get("/", headers={"host": "evil"})):
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'self'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_where_others_can_come_everyone_needs_the_token() -> None:
    rules = AccessRules("0.0.0.0", "secret")
    one = client(rules, "http://192.168.0.7:8642")
    assert "token" in one_line(one.get("/api/state"), 401)
    one_line(one.get("/api/state?token=wrong"), 401)
    one_line(one.get("/api/state", headers={"authorization": "Bearer wrong"}), 401)
    assert one.get("/api/state", headers={"authorization": "Bearer secret"}).status_code == 200
    opened = one.get("/?token=secret")
    assert "HttpOnly" in opened.headers["set-cookie"]
    assert "SameSite=Strict" in opened.headers["set-cookie"]
    assert one.get("/api/state").status_code == 200  # by the cookie


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
def test_what_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


# Which models may be opened


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A root with one model, a model outside it, and a link from inside to outside."""
    for name in ("root/good", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps({}))
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    return tmp_path


def test_what_lies_under_a_root_may_be_opened_and_nothing_else(house: Path) -> None:
    sources = ModelSources(("typed",), (house / "root",))
    good = str(house / "root" / "good")
    assert sources.resolve(good) == str((house / "root" / "good").resolve())
    assert str(house / "root" / "link") not in sources.available_names()  # what is offered may be opened
    assert sources.resolve("default") is None
    assert sources.resolve("typed") == "typed"
    assert good in sources.available_names()
    wrong = [
        str(house / "outside"),
        str(house / "root" / ".." / "outside"),
        str(house / "root" / "link"),
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
    for name in wrong:
        with pytest.raises(RheoscopeError, match="no model that this server may open") as error:
            sources.resolve(name)
        assert len(str(error.value)) < 400


def test_names_of_the_hub_are_those_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--org--name" / "snapshots" / "abc").mkdir(parents=True)
    (tmp_path / "models--half").mkdir()
    assert cached_hub_names() == ["org/name"]
    assert ModelSources().resolve("org/name") == "org/name"
    with pytest.raises(RheoscopeError):
        ModelSources().resolve("half")


def test_what_was_opened_is_remembered_as_long_as_it_may_be(tmp_path: Path) -> None:
    memory = tmp_path / "cache" / "studio.json"
    one = ModelSources(("first", "second"), history_file=memory)
    for name in ("first", "second", "first"):
        one.remember(name)
    assert one.recent_names() == ["first", "second"]
    assert ModelSources(("second",), history_file=memory).recent_names() == ["second"]
    for broken in ("{", "3", "[3, null]"):
        memory.write_text(broken)
        assert one.recent_names() == []
    ModelSources().remember("first")
    assert ModelSources().recent_names() == []

"""Every route, what it gives and what it refuses; nobody gets another's answer."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import rheoscope as rs
from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.studio.edited_model import with_edits
from rheoscope.studio.edits import Edit
from rheoscope.studio.session import Session
from rheoscope.studio.wire import WireArray, unpack_envelope
from tests.studio.cases import TEXT, Gate, one_line, posted, running, small, told


@pytest.fixture(scope="module")
def studio() -> Iterator[tuple[Session, TestClient]]:
    with running() as both:
        yield both


@pytest.fixture
def client(studio: tuple[Session, TestClient]) -> TestClient:
    return studio[1]


@pytest.fixture
def trace(client: TestClient) -> str:
    return posted(client)


def arrays(client: TestClient, path: str, **query: Any) -> tuple[dict[str, Any], dict[str, WireArray]]:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return unpack_envelope(answer.content)


# What it gives


def test_the_state_is_told_before_the_model_is_open() -> None:
    gate = Gate()
    with running(gate) as (session, client):
        session.open_model("default")
        state = client.get("/api/state").json()
        assert (state["model"], state["models"][0]["ready"], state["models"][0]["layers"]) == ("default", False, None)
        gate.opens.set()
        posted(client)
        (model,) = client.get("/api/state").json()["models"]
        assert (model["ready"], model["layers"], model["heads"]) == (True, 3, 4)
        assert model["certificate"]["template"] == "{precision}: {errors}"


def test_models_are_listed_and_opened(client: TestClient) -> None:
    answer = client.post("/api/models", json={"source": "default"}).json()
    assert "done" in dict(told(client.get(f"/api/jobs/{answer['job']}/events").text))
    listed = client.get("/api/models").json()
    assert "default" in listed["sources"]
    assert listed["models"][0]["id"] == "default"
    assert client.get(f"/api/jobs/{answer['job']}").json()["over"]


def test_the_catalogue_has_every_analysis_and_every_question(client: TestClient) -> None:
    found = client.get("/api/catalogue").json()
    assert [one["name"] for one in found["analyses"]] == list(ANALYSIS_MODULES)
    assert [one["name"] for one in found["questions"]] == [one.name for one in QUESTIONS]
    transport = next(one for one in found["analyses"] if one["name"] == "transport")
    assert transport["settings"]["draws"] == 100
    assert transport["fields"]["kappa"]["null"] == "kappa_null"
    assert {one["name"] for one in found["operations"]} >= {"symmetric", "skew", "rank", "offset0", "ablate", "scale"}


def test_a_text_is_its_tokens_its_steps_and_what_comes_next(client: TestClient, trace: str) -> None:
    head = client.get(f"/api/traces/{trace}").json()
    own = small().trace(TEXT)
    assert [one["text"] for one in head["tokens"]] == own.tokens
    assert head["steps"] == [str(step) for step in own.steps]
    law = small().run(TEXT)[-1].softmax(-1).detach()
    assert head["next"]["id"] == int(law.argmax())
    assert head["next"]["probability"] == pytest.approx(float(law.max()), rel=1e-4)
    assert head["provenance"]["weights"] == small().view.facts["weights"]


def test_points_are_those_of_the_text(client: TestClient, trace: str) -> None:
    header, found = arrays(client, f"/api/traces/{trace}/points", space="raw")
    assert found["points"].values.shape == (*small().trace(TEXT).points.shape[:2], 3)
    assert header["share"] == pytest.approx(sum(header["shares"]))
    assert np.isfinite(found["star"].values).all()
    assert header["space"] == "raw"
    default, _ = arrays(client, f"/api/traces/{trace}/points")
    assert (default["axes"], default["space"]) == ("all", "sphere")


def test_another_text_lends_its_axes(client: TestClient, trace: str) -> None:
    other = posted(client, "A dog and a cat went to the sea")
    lent, _ = arrays(client, f"/api/traces/{trace}/points", axes=f"text:{other}", space="raw")
    assert lent["axes"] == f"text:{other}"
    one_line(client.get(f"/api/traces/{trace}/points", params={"axes": "text:none"}), 404)


def test_an_analysis_is_the_librarys_own(client: TestClient, trace: str) -> None:
    header, found = arrays(client, f"/api/traces/{trace}/analyses/trajectory", draws=3)
    own = rs.trajectory(small().trace(TEXT), draws=3)
    np.testing.assert_allclose(found["speed"].values, own.speed.values, rtol=1e-5)
    assert header["attrs"]["draws"] == 3
    assert header["pictures"][0]["kind"] == "picture"
    assert header["coords"]["token"]["values"] == own.token.values.tolist()


def test_an_answer_is_taken_away_with_where_it_comes_from(client: TestClient, trace: str) -> None:
    path = f"/api/traces/{trace}/analyses/trajectory"
    csv = client.get(f"{path}.csv?draws=3")
    assert "# weights: " in csv.text
    assert "# speed: " in csv.text
    assert "attachment" in csv.headers["content-disposition"]
    as_json = client.get(f"{path}.json?draws=3").json()
    own = rs.trajectory(small().trace(TEXT), draws=3)
    np.testing.assert_allclose(as_json["data_vars"]["speed"]["data"], own.speed.values, rtol=1e-6)
    assert as_json["attrs"]["text"] == TEXT


def test_an_analysis_can_be_begun_and_followed(client: TestClient, trace: str) -> None:
    path = f"/api/traces/{trace}/analyses/clusters?draws=0"
    job = client.post(path).json()["job"]
    events = told(client.get(f"/api/jobs/{job}/events").text)
    assert [name for name, _ in events][-2:] == ["known", "done"]
    assert client.post(path).json()["job"] is None  # known by now
    assert client.get(path).status_code == 200


@pytest.mark.parametrize("kind", ["weights", "scores", "reversed"])
def test_maps_of_a_head(client: TestClient, trace: str, kind: str) -> None:
    header, found = arrays(client, f"/api/traces/{trace}/weights/1/2", kind=kind)
    own = small().trace(TEXT)
    made = {
        "weights": lambda: own.weights(1, 2),
        "scores": lambda: own.scores(1, 2),
        "reversed": lambda: rs.reversed_map(small(), own, 1, 2),
    }[kind]()
    seen = np.tril(np.ones(made.shape, dtype=bool))
    values = found["map"].decoded_values
    assert np.isnan(values[~seen]).all()
    np.testing.assert_allclose(values[seen], made.detach().numpy()[seen], atol=header["arrays"][0]["scale"])


def test_a_head_and_a_score_and_a_token(client: TestClient, trace: str) -> None:
    spectrum = client.get(f"/api/traces/{trace}/spectrum/1/2").json()
    own = rs.operators(small().view).isel(layer=1, head=2)
    np.testing.assert_allclose(spectrum["M"], own.singular_values_M.values, rtol=1e-3, atol=1e-6)
    for name in ("symmetry", "positive_share", "copying"):
        assert spectrum[name] == pytest.approx(float(own[name]), abs=1e-4)
    body = {"layer": 1, "head": 2, "query": 5, "key": 1}
    why = client.post(f"/api/traces/{trace}/attribution", json=body).json()
    parts = sum(one["contribution"] for one in why["components"]) + why["rest"] + why["position_bias"]
    assert parts == pytest.approx(why["score"], abs=1e-4)
    token = client.get(f"/api/traces/{trace}/token/5").json()
    law = small().run(TEXT)[5].softmax(-1).detach()
    assert token["lens"][-1]["probability"] == pytest.approx(float(law.max()), rel=1e-3)
    logits = small().run(TEXT)[5].detach()
    written = sum(one["logits"] for one in token["written"]) + token["rest"]
    assert written == pytest.approx(float(logits.max() - logits.mean()), abs=1e-2)


def test_the_lens_of_every_token_after_every_step(client: TestClient, trace: str) -> None:
    header, found = arrays(client, f"/api/traces/{trace}/lens")
    law = small().run(TEXT).softmax(-1).detach()
    np.testing.assert_allclose(found["probability"].values[-1], law.max(-1).values.numpy(), rtol=1e-3)
    token = client.get(f"/api/traces/{trace}/token/4").json()
    assert [row[4] for row in header["shown"]] == [one["shown"] for one in token["lens"]]


def test_particles_gather(client: TestClient) -> None:
    asked = {"n": 8, "d": 4, "beta": 2.0, "steps": 60}
    for mechanism in ("softmax", "causal", "sinkhorn", "unnormalised"):
        header, found = unpack_envelope(client.post("/api/dynamics", json=asked | {"mechanism": mechanism}).content)
        assert found["points"].values.shape == (61, 8, 3)
        assert header["mean_cosine"][-1] > header["mean_cosine"][0]
    one_line(client.post("/api/dynamics", json={"n": 100_000}), 400)
    one_line(client.post("/api/dynamics", json={"mechanism": "none"}), 422)


def reason_of(client: TestClient, trace: str, name: str) -> str:
    """Why an analysis has no answer; who asks for it as a file is refused."""
    header, found = arrays(client, f"/api/traces/{trace}/analyses/{name}")
    assert (header["name"], found) == (name, {})
    assert one_line(client.get(f"/api/traces/{trace}/analyses/{name}.csv"), 400) == header["reason"]
    return header["reason"]


def test_a_text_too_short_for_a_question_is_told_so_and_no_error(client: TestClient) -> None:
    short = posted(client, "The")
    assert "use a longer text" in reason_of(client, short, "clusters")
    assert "use a longer text" in one_line(client.get(f"/api/traces/{short}/analyses/clusters?angle=0.5"), 400)


# Edits


def test_an_edit_is_shown_as_the_library_has_it(client: TestClient, trace: str) -> None:
    edit = {"layer": 1, "head": 2, "part": "M", "operation": "symmetric"}
    edited = posted(client, edits=[edit])
    assert edited != trace
    assert posted(client, edits=[edit | {"value": None}]) == edited
    _, after = arrays(client, f"/api/traces/{edited}/points", axes=f"text:{trace}", space="raw")
    _, before = arrays(client, f"/api/traces/{trace}/points", axes=f"text:{trace}", space="raw")
    at = small().trace(TEXT).input_steps[1] + 1
    np.testing.assert_array_equal(after["points"].values[:at], before["points"].values[:at])
    assert np.abs(after["points"].values[at:] - before["points"].values[at:]).max() > 0
    own = with_edits(small(), [Edit(1, 2, "symmetric")]).trace(TEXT)
    torch.testing.assert_close(own.points, rs.trace_under(small(), TEXT, heads=[(1, 2)], M="symmetric").points)
    header, found = arrays(client, f"/api/traces/{edited}/analyses/trajectory", draws=0)
    np.testing.assert_allclose(found["speed"].values, rs.trajectory(own, draws=0).speed.values, rtol=1e-5)
    assert "edited" in header["attrs"]
    assert client.get(f"/api/traces/{edited}").json()["edits"] == [edit | {"value": None}]
    assert arrays(client, f"/api/traces/{edited}/weights/1/2")[0]["edited"]
    lens = client.get(f"/api/traces/{edited}/token/3").json()
    logits = with_edits(small(), [Edit(1, 2, "symmetric")]).run(TEXT)[3].detach()
    wrote = sum(one["logits"] for one in lens["written"]) + lens["rest"]
    assert wrote == pytest.approx(float(logits.max() - logits.mean()), abs=1e-4)


def test_what_runs_the_model_again_runs_the_edited_one(client: TestClient, trace: str) -> None:
    edited = posted(client, edits=[{"layer": 0, "head": 0, "operation": "ablate"}])
    model = with_edits(small(), [Edit(0, 0, "ablate")])
    header, found = arrays(client, f"/api/traces/{edited}/analyses/prefix_stability")
    twin, own = (rs.prefix_stability(one, TEXT) for one in (model, small()))
    changes = [name for name in found if not np.allclose(twin[name], own[name], rtol=1e-3, equal_nan=True)]
    assert changes
    for name in found:
        np.testing.assert_allclose(found[name].decoded_values, twin[name].values, rtol=1e-3, atol=1e-5)
    assert "runs and operators of the edited model" in header["attrs"]["edited"]
    _, found = arrays(client, f"/api/traces/{edited}/weights/1/0", kind="reversed")
    assert np.isfinite(found["map"].decoded_values).any()


def test_what_changes_heads_by_itself_is_told_of_edited_heads_too(client: TestClient) -> None:
    edited = posted(client, edits=[{"layer": 0, "head": 0, "operation": "symmetric", "part": "both"}])
    trace = with_edits(small(), [Edit(0, 0, "symmetric", "both")]).trace(TEXT)
    for name in ("attention_patching", "rollout"):
        header, found = arrays(client, f"/api/traces/{edited}/analyses/{name}")
        assert "reason" not in header
        assert found
    _, found = arrays(client, f"/api/traces/{edited}/weights/0/0", kind="reversed")
    assert np.isfinite(found["map"].decoded_values).any()
    spectrum = client.get(f"/api/traces/{edited}/spectrum/0/0").json()
    assert spectrum["symmetry"] == pytest.approx(1.0, abs=1e-5)
    want = trace.view.head(0, 0).M.singular_values()
    np.testing.assert_allclose(spectrum["M"], want[:8].detach(), rtol=1e-3, atol=1e-6)  # ½(M + Mᵀ) has twice the rank


def test_an_untrained_model_is_another(client: TestClient, trace: str) -> None:
    head = client.get(f"/api/traces/{posted(client, untrained=True)}").json()
    assert head["model"] == "default.untrained"


# What it refuses


NASTY = [
    "<img src=x onerror=alert(1)>",
    "a\u202eb\u200f",
    "nul \0 inside",
    "\u0301" * 50,
    "👩‍👩‍👧‍👦" * 5,
    "'\";--",
    "{{7*7}}",
]


@pytest.mark.parametrize("text", NASTY)
def test_any_text_comes_back_as_text(client: TestClient, text: str) -> None:
    answer = client.get(f"/api/traces/{posted(client, text)}")
    assert answer.headers["content-type"] == "application/json"
    head = answer.json()
    assert head["text"] == text
    assert all(one["shown"].isprintable() for one in head["tokens"])


@pytest.mark.parametrize(
    "body",
    [
        {"text": ""},
        {"text": "a " * 40_000},
        {"text": 3},
        {"text": TEXT, "model": "/etc"},
        {"text": TEXT, "model": "../../etc/passwd"},
        {"text": TEXT, "edits": [{"layer": 99, "head": 0, "operation": "symmetric"}]},
        {"text": TEXT, "edits": [{"layer": 0, "head": 0, "operation": "explode"}]},
        {"text": TEXT, "edits": [{"layer": 0, "head": 0, "operation": "scale", "value": 1e300}]},
        {"text": TEXT, "nothing": 1},
        {"text": TEXT, "edits": [{"layer": 0, "head": 0, "operation": "ablate"}] * 33},
        {},
    ],
    ids=lambda body: str(body)[:60],
)
def test_a_text_or_edit_that_cannot_be_is_refused_in_one_line(client: TestClient, body: dict[str, Any]) -> None:
    one_line(client.post("/api/traces", json=body), 400, 422)


def test_half_a_character_is_refused(client: TestClient) -> None:
    answer = client.post(
        "/api/traces", content=b'{"text": "a \\ud800 b"}', headers={"content-type": "application/json"}
    )
    one_line(answer, 400, 422)


@pytest.mark.parametrize(
    "path",
    [
        "/api/traces/none",
        "/api/traces/none/points",
        "/api/traces/..%2f..%2fetc/points",
        "/api/jobs/none",
        "/api/nothing",
        "/api/traces/{trace}/analyses/nothing",
        "/api/traces/{trace}/analyses/..%2f..%2fsecret",
        "/api/traces/{trace}/analyses/transport?draws=x",
        "/api/traces/{trace}/weights/99/0",
        "/api/traces/{trace}/weights/0/99",
        "/api/traces/{trace}/weights/x/0",
        "/api/traces/{trace}/weights/0/0?kind=none",
        "/api/traces/{trace}/token/9999",
        "/api/traces/{trace}/spectrum/0/-1",
        "/api/traces/{trace}/points?axes=layer:9",
        "/api/traces/{trace}/points?axes=tokens:a",
        "/api/traces/{trace}/points?space=none",
    ],
)
def test_what_is_not_there_is_refused_in_one_line(client: TestClient, trace: str, path: str) -> None:
    one_line(client.get(path.replace("{trace}", trace)), 400, 404, 422)


def test_a_model_that_may_not_be_opened_is_refused(client: TestClient) -> None:
    for source in ("/etc", "../x", "gpt2-not-here", "<b>", "\0"):
        one_line(client.post("/api/models", json={"source": source}), 400)


def test_a_fault_shows_nothing_of_the_inside() -> None:
    def broken(source: str | None, untrained: bool = False, progress: Any = None, **how: Any) -> Any:
        raise KeyError("a secret path")

    with running(broken) as (_, client):
        assert "secret" not in one_line(client.post("/api/traces", json={"text": TEXT}), 500)


# The questions


def test_the_questions_are_told_one_by_one_and_everything_is_known_then(studio: tuple[Session, TestClient]) -> None:
    session, client = studio
    answer = client.post(
        "/api/traces", json={"text": TEXT + " It is old.", "questions": ["prediction", "identity"]}
    ).json()
    events = told(client.get(f"/api/traces/{answer['id']}/events").text)
    names = [name for name, _ in events]
    assert (names[0], names[-1]) == ("head", "done")
    verdicts = [json.loads(data) for name, data in events if name == "verdict"]
    assert {one["name"] for one in verdicts} == {"prediction", "identity"}
    assert json.loads(events[0][1])["id"] == answer["id"]
    known = {json.loads(data)["name"] for name, data in events if name == "known"}
    assert known == {"transport", "readout"}
    stored = client.get(f"/api/traces/{answer['id']}/verdicts").json()["verdicts"]
    assert [one["line"] for one in stored] == [
        one["line"] for one in sorted(verdicts, key=lambda one: one["name"] != "identity")
    ]
    entry = session.get_entry(answer["id"])
    assert not hasattr(session.result_or_job(entry, "transport", {}), "holders")  # known: no job is begun


def test_work_is_cancelled_and_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate = threading.Event(), threading.Event()
    with running() as (_, client):
        body = {"text": TEXT, "questions": ["identity"]}
        whole = Session.requests

        def slowly(self: Session, *given: Any) -> Any:
            begun.set()
            gate.wait(10)
            return whole(self, *given)

        monkeypatch.setattr(Session, "requests", slowly)
        answer = client.post("/api/traces", json=body).json()
        assert begun.wait(5)
        assert client.delete(f"/api/jobs/{answer['job']}").json() == {"cancelled": True}
        gate.set()
        assert told(client.get(f"/api/traces/{answer['id']}/events").text)[-1][0] == "cancelled"
        assert client.delete(f"/api/jobs/{answer['job']}").json() == {"cancelled": False}
        again = client.post("/api/traces", json=body).json()
        assert (again["cached"], again["id"]) == (True, answer["id"])
        assert told(client.get(f"/api/jobs/{again['job']}/events").text)[-1][0] == "done"


def test_beyond_the_limit_a_clear_429() -> None:
    gate = Gate()
    with running(gate, max_jobs=1) as (_, client):
        client.post("/api/models", json={"source": "default"})
        assert "try again" in one_line(client.post("/api/models", json={"source": "default", "untrained": True}), 429)
        gate.opens.set()


# What is kept


def test_what_was_longest_unused_is_forgotten_and_can_be_asked_again() -> None:
    with running(max_cache_bytes=10_000) as (session, client):
        first = posted(client)
        posted(client, "Once upon a time there was a king who had a ship")
        assert "post the text again" in one_line(client.get(f"/api/traces/{first}"), 404)
        assert posted(client) == first
        assert session.cache.total_bytes <= max(10_000, session.get_entry(first).n_bytes)

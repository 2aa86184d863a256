"""Every route of the server: its response and its refusals."""

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
from rheoscope.report.analysis_runs import Subject, empty_results
from rheoscope.report.report_plans import analysis_blocks
from rheoscope.report.story import STORY_LINES
from rheoscope.studio.edited_model import with_edits
from rheoscope.studio.edits import Edit
from rheoscope.studio.report_blocks import block_json
from rheoscope.studio.session import Session
from rheoscope.studio.wire import WireArray, encode_json, unpack_envelope
from tests.studio.cases import (
    TEXT,
    GatedLoader,
    error_line,
    parse_events,
    post_text,
    render_text,
    running_studio,
    small,
)


@pytest.fixture(scope="module")
def studio() -> Iterator[tuple[Session, TestClient]]:
    with running_studio() as session_and_client:
        yield session_and_client


@pytest.fixture
def client(studio: tuple[Session, TestClient]) -> TestClient:
    return studio[1]


@pytest.fixture
def trace(client: TestClient) -> str:
    return post_text(client)


def arrays(client: TestClient, path: str, **query: Any) -> tuple[dict[str, Any], dict[str, WireArray]]:
    response = client.get(path, params=query)
    assert response.status_code == 200, response.text
    return unpack_envelope(response.content)


# Responses


def test_the_state_is_available_before_the_model_is_loaded() -> None:
    loader = GatedLoader()
    with running_studio(loader) as (session, client):
        session.open_model("default")
        state = client.get("/api/state").json()
        assert (state["model"], state["models"][0]["ready"], state["models"][0]["layers"]) == ("default", False, None)
        loader.gate.set()
        post_text(client)
        (model,) = client.get("/api/state").json()["models"]
        assert (model["ready"], model["layers"], model["heads"]) == (True, 3, 4)
        assert model["certificate"]["template"] == "{precision}: {errors}"


def test_models_are_listed_and_opened(client: TestClient) -> None:
    response = client.post("/api/models", json={"source": "default"}).json()
    assert "done" in dict(parse_events(client.get(f"/api/jobs/{response['job']}/events").text))
    models = client.get("/api/models").json()
    assert "default" in models["sources"]
    assert models["models"][0]["id"] == "default"
    assert client.get(f"/api/jobs/{response['job']}").json()["over"]


def test_the_catalogue_has_every_analysis_and_every_line_of_the_story(client: TestClient) -> None:
    catalogue = client.get("/api/catalogue").json()
    assert [row["name"] for row in catalogue["analyses"]] == list(ANALYSIS_MODULES)
    assert [row["name"] for row in catalogue["story"]] == [line.name for line in STORY_LINES]
    transport = next(row for row in catalogue["analyses"] if row["name"] == "transport")
    assert transport["settings"]["draws"] == 100
    assert transport["fields"]["kappa"]["null"] == "kappa_null"
    assert {row["name"] for row in catalogue["operations"]} >= {
        "symmetric",
        "skew",
        "rank",
        "offset0",
        "ablate",
        "scale",
    }


def test_a_text_has_tokens_steps_and_predictions(client: TestClient, trace: str) -> None:
    header = client.get(f"/api/traces/{trace}").json()
    expected = small().trace(TEXT)
    assert [token["text"] for token in header["tokens"]] == expected.tokens
    assert header["steps"] == [str(step) for step in expected.steps]
    probabilities = small().run(TEXT)[-1].softmax(-1).detach()
    assert header["next"]["id"] == int(probabilities.argmax())
    assert header["next"]["probability"] == pytest.approx(float(probabilities.max()), rel=1e-4)
    assert header["provenance"]["weights"] == small().view.facts["weights"]


def test_points_have_three_axes_and_a_predicted_point(client: TestClient, trace: str) -> None:
    header, envelope = arrays(client, f"/api/traces/{trace}/points", space="raw")
    assert envelope["points"].values.shape == (*small().trace(TEXT).points.shape[:2], 3)
    assert header["share"] == pytest.approx(sum(header["shares"]))
    assert np.isfinite(envelope["star"].values).all()
    assert header["space"] == "raw"
    default, _ = arrays(client, f"/api/traces/{trace}/points")
    assert (default["axes"], default["space"]) == ("prediction", "sphere")


def test_points_on_the_axes_of_another_text(client: TestClient, trace: str) -> None:
    other_text = post_text(client, "A dog and a cat went to the sea")
    header, _ = arrays(client, f"/api/traces/{trace}/points", axes=f"text:{other_text}", space="raw")
    assert header["axes"] == f"text:{other_text}"
    error_line(client.get(f"/api/traces/{trace}/points", params={"axes": "text:none"}), 404)


def test_an_analysis_equals_the_result_of_the_library(client: TestClient, trace: str) -> None:
    header, envelope = arrays(client, f"/api/traces/{trace}/analyses/trajectory", draws=3)
    expected = rs.trajectory(small().trace(TEXT), draws=3)
    np.testing.assert_allclose(envelope["speed"].values, expected.speed.values, rtol=1e-5)
    assert header["attrs"]["draws"] == 3
    assert header["pictures"][0]["kind"] == "picture"
    assert header["coords"]["token"]["values"] == expected.token.values.tolist()


def test_the_tables_of_an_analysis_are_those_of_the_terminal(client: TestClient, trace: str) -> None:
    path = f"/api/traces/{trace}/analyses/trajectory/tables"
    blocks = client.get(path, params={"draws": 3}).json()["blocks"]
    dataset = rs.trajectory(small().trace(TEXT), draws=3)
    results = empty_results(Subject(small(), TEXT, small().trace(TEXT)), True).with_result("trajectory", dataset)
    expected = [block_json(block) for block in analysis_blocks(results, "trajectory")]
    assert blocks == json.loads(encode_json(expected))
    assert blocks[0]["block"] == "table"
    assert blocks[0]["rows"]
    error_line(client.get(path.replace("trajectory", "nothing")), 400)


def test_downloads_contain_the_provenance(client: TestClient, trace: str) -> None:
    path = f"/api/traces/{trace}/analyses/trajectory"
    csv = client.get(f"{path}.csv?draws=3")
    assert "# weights: " in csv.text
    assert "# speed: " in csv.text
    assert "attachment" in csv.headers["content-disposition"]
    as_json = client.get(f"{path}.json?draws=3").json()
    expected = rs.trajectory(small().trace(TEXT), draws=3)
    np.testing.assert_allclose(as_json["data_vars"]["speed"]["data"], expected.speed.values, rtol=1e-6)
    assert as_json["attrs"]["text"] == TEXT


def test_an_analysis_can_be_started_and_followed(client: TestClient, trace: str) -> None:
    path = f"/api/traces/{trace}/analyses/clusters?draws=0"
    job = client.post(path).json()["job"]
    events = parse_events(client.get(f"/api/jobs/{job}/events").text)
    assert [name for name, _ in events][-2:] == ["known", "done"]
    assert client.post(path).json()["job"] is None  # the result is cached
    assert client.get(path).status_code == 200


def test_the_progress_of_an_analysis_is_streamed(client: TestClient, trace: str) -> None:
    path = f"/api/traces/{trace}/analyses/trajectory"
    events = parse_events(client.get(f"{path}/progress?draws=7").text)
    assert [name for name, _ in events][-2:] == ["known", "done"]
    shares = [json.loads(data) for name, data in events if name == "progress"]
    assert shares
    assert all(0 <= share["done"] <= share["total"] for share in shares)
    assert parse_events(client.get(f"{path}/progress?draws=7").text) == [("done", "{}")]  # the result is cached


@pytest.mark.parametrize("kind", ["weights", "scores", "reversed"])
def test_maps_of_a_head_equal_the_trace(client: TestClient, trace: str, kind: str) -> None:
    header, envelope = arrays(client, f"/api/traces/{trace}/weights/1/2", kind=kind)
    expected = small().trace(TEXT)
    expected_map = {
        "weights": lambda: expected.weights(1, 2),
        "scores": lambda: expected.scores(1, 2),
        "reversed": lambda: rs.reversed_map(small(), expected, 1, 2),
    }[kind]()
    allowed = np.tril(np.ones(expected_map.shape, dtype=bool))
    values = envelope["map"].decoded_values
    assert np.isnan(values[~allowed]).all()
    np.testing.assert_allclose(
        values[allowed], expected_map.detach().numpy()[allowed], atol=header["arrays"][0]["scale"]
    )


def test_spectra_scores_and_logits_equal_the_library(client: TestClient, trace: str) -> None:
    spectrum = client.get(f"/api/traces/{trace}/spectrum/1/2").json()
    expected = rs.operators(small().view).isel(layer=1, head=2)
    np.testing.assert_allclose(spectrum["M"], expected.singular_values_M.values, rtol=1e-3, atol=1e-6)
    for name in ("symmetry", "positive_share", "copying"):
        assert spectrum[name] == pytest.approx(float(expected[name]), abs=1e-4)
    body = {"layer": 1, "head": 2, "query": 5, "key": 1}
    attribution = client.post(f"/api/traces/{trace}/attribution", json=body).json()
    total = (
        sum(component["contribution"] for component in attribution["components"])
        + attribution["rest"]
        + attribution["position_bias"]
    )
    assert total == pytest.approx(attribution["score"], abs=1e-4)
    token = client.get(f"/api/traces/{trace}/token/5").json()
    probabilities = small().run(TEXT)[5].softmax(-1).detach()
    top = probabilities.topk(5).values.tolist()
    assert [candidate["probability"] for candidate in token["lens"][-1]["top"]] == pytest.approx(top, rel=1e-3)
    logits = small().run(TEXT)[5].detach()
    total_logit = sum(component["logits"] for component in token["written"]) + token["rest"]
    assert total_logit == pytest.approx(float(logits.max() - logits.mean()), abs=1e-2)


def test_any_token_has_a_probability_to_come_next_after_any_step(client: TestClient, trace: str) -> None:
    last_step = len(small().trace(TEXT).steps) - 1
    row = client.get(f"/api/traces/{trace}/next/{last_step}?ids=3,0").json()
    expected = small().run(TEXT)[-1].softmax(-1)[[3, 0]].tolist()
    assert [candidate["id"] for candidate in row] == [3, 0]
    assert [candidate["probability"] for candidate in row] == pytest.approx(expected, rel=1e-3)
    lens = client.get(f"/api/traces/{trace}/token/{len(small().trace(TEXT)) - 1}").json()["lens"]
    top = lens[2]["top"][0]
    assert client.get(f"/api/traces/{trace}/next/2?ids={top['id']}").json() == [top]


def test_the_lens_ends_with_the_prediction_of_the_model(client: TestClient, trace: str) -> None:
    header, envelope = arrays(client, f"/api/traces/{trace}/lens")
    probabilities = small().run(TEXT).softmax(-1).detach()
    np.testing.assert_allclose(envelope["probability"].values[-1], probabilities.max(-1).values.numpy(), rtol=1e-3)
    token = client.get(f"/api/traces/{trace}/token/4").json()
    assert [row[4] for row in header["shown"]] == [step["top"][0]["shown"] for step in token["lens"]]


def test_long_responses_are_compressed_and_event_streams_are_not(client: TestClient, trace: str) -> None:
    catalogue = client.get("/api/catalogue")
    assert catalogue.headers["content-encoding"] == "gzip"
    assert int(catalogue.headers["content-length"]) < len(catalogue.content) / 4
    plain = client.get("/api/catalogue", headers={"accept-encoding": "identity"})
    assert ("content-encoding" in plain.headers, plain.content == catalogue.content) == (False, True)
    with client.stream("GET", f"/api/traces/{trace}/events") as events:
        assert "content-encoding" not in events.headers


def test_particles_concentrate(client: TestClient) -> None:
    settings = {"n": 8, "d": 4, "beta": 2.0, "steps": 20}
    for mechanism in ("softmax", "causal", "sinkhorn", "unnormalised"):
        header, envelope = unpack_envelope(
            client.post("/api/dynamics", json=settings | {"mechanism": mechanism}).content
        )
        assert envelope["points"].values.shape == (21, 8, 3)
        assert header["mean_cosine"][-1] > header["mean_cosine"][0]
    error_line(client.post("/api/dynamics", json={"n": 100_000}), 400)
    error_line(client.post("/api/dynamics", json={"mechanism": "none"}), 422)


def reason_of(client: TestClient, trace: str, name: str) -> str:
    """The reason why an analysis has no result. A download of it is refused with the same reason."""
    header, envelope = arrays(client, f"/api/traces/{trace}/analyses/{name}")
    assert (header["name"], envelope) == (name, {})
    assert error_line(client.get(f"/api/traces/{trace}/analyses/{name}.csv"), 400) == render_text(header["reason"])
    return render_text(header["reason"])


def test_a_text_that_is_too_short_gets_a_reason(client: TestClient) -> None:
    short = post_text(client, "The")
    assert "use a longer text" in reason_of(client, short, "clusters")
    assert "use a longer text" in error_line(client.get(f"/api/traces/{short}/analyses/clusters?angle=0.5"), 400)


# Edits


def test_an_edited_text_equals_trace_under(client: TestClient, trace: str) -> None:
    edit = {"layer": 1, "head": 2, "part": "M", "operation": "symmetric"}
    edited = post_text(client, edits=[edit])
    assert edited != trace
    assert post_text(client, edits=[edit | {"value": None}]) == edited
    _, edited_points = arrays(client, f"/api/traces/{edited}/points", axes=f"text:{trace}", space="raw")
    _, points = arrays(client, f"/api/traces/{trace}/points", axes=f"text:{trace}", space="raw")
    first_changed = small().trace(TEXT).input_steps[1] + 1
    np.testing.assert_array_equal(
        edited_points["points"].values[:first_changed], points["points"].values[:first_changed]
    )
    assert np.abs(edited_points["points"].values[first_changed:] - points["points"].values[first_changed:]).max() > 0
    expected = with_edits(small(), [Edit(1, 2, "symmetric")]).trace(TEXT)
    torch.testing.assert_close(expected.points, rs.trace_under(small(), TEXT, heads=[(1, 2)], M="symmetric").points)
    header, envelope = arrays(client, f"/api/traces/{edited}/analyses/trajectory", draws=0)
    np.testing.assert_allclose(envelope["speed"].values, rs.trajectory(expected, draws=0).speed.values, rtol=1e-5)
    assert "edited" in header["attrs"]
    assert client.get(f"/api/traces/{edited}").json()["edits"] == [edit | {"value": None}]
    assert arrays(client, f"/api/traces/{edited}/weights/1/2")[0]["edited"]
    lens = client.get(f"/api/traces/{edited}/token/3").json()
    logits = with_edits(small(), [Edit(1, 2, "symmetric")]).run(TEXT)[3].detach()
    total_logit = sum(component["logits"] for component in lens["written"]) + lens["rest"]
    assert total_logit == pytest.approx(float(logits.max() - logits.mean()), abs=1e-4)


def test_analyses_that_run_the_model_run_the_edited_one(client: TestClient, trace: str) -> None:
    edited = post_text(client, edits=[{"layer": 0, "head": 0, "operation": "ablate"}])
    model = with_edits(small(), [Edit(0, 0, "ablate")])
    header, envelope = arrays(client, f"/api/traces/{edited}/analyses/prefix_stability")
    expected, unedited = (rs.prefix_stability(subject_model, TEXT) for subject_model in (model, small()))
    changed_fields = [
        name for name in envelope if not np.allclose(expected[name], unedited[name], rtol=1e-3, equal_nan=True)
    ]
    assert changed_fields
    for name in envelope:
        np.testing.assert_allclose(envelope[name].decoded_values, expected[name].values, rtol=1e-3, atol=1e-5)
    assert "computed with the edited model" in header["attrs"]["edited"]
    _, envelope = arrays(client, f"/api/traces/{edited}/weights/1/0", kind="reversed")
    assert np.isfinite(envelope["map"].decoded_values).any()


def test_analyses_that_change_heads_accept_edited_heads(client: TestClient) -> None:
    edited = post_text(client, edits=[{"layer": 0, "head": 0, "operation": "symmetric", "part": "both"}])
    trace = with_edits(small(), [Edit(0, 0, "symmetric", "both")]).trace(TEXT)
    for name in ("attention_patching", "rollout"):
        header, envelope = arrays(client, f"/api/traces/{edited}/analyses/{name}")
        assert "reason" not in header
        assert envelope
    _, envelope = arrays(client, f"/api/traces/{edited}/weights/0/0", kind="reversed")
    assert np.isfinite(envelope["map"].decoded_values).any()
    spectrum = client.get(f"/api/traces/{edited}/spectrum/0/0").json()
    assert spectrum["symmetry"] == pytest.approx(1.0, abs=1e-5)
    expected = trace.view.head(0, 0).M.singular_values()
    np.testing.assert_allclose(
        spectrum["M"], expected[:8].detach(), rtol=1e-3, atol=1e-6
    )  # ½(M + Mᵀ) has twice the rank


def test_the_untrained_control_has_its_own_id(client: TestClient, trace: str) -> None:
    header = client.get(f"/api/traces/{post_text(client, untrained=True)}").json()
    assert header["model"] == "default.untrained"


# Refusals


HOSTILE_TEXTS = [
    "<img src=x onerror=alert(1)>",
    "a\u202eb\u200f",
    "nul \0 inside",
    "\u0301" * 50,
    "👩‍👩‍👧‍👦" * 5,
    "'\";--",
    "{{7*7}}",
]


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_any_text_is_returned_unchanged(client: TestClient, text: str) -> None:
    response = client.get(f"/api/traces/{post_text(client, text)}")
    assert response.headers["content-type"] == "application/json"
    header = response.json()
    assert header["text"] == text
    assert all(token["shown"].isprintable() for token in header["tokens"])


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
def test_an_invalid_text_or_edit_is_refused_in_one_line(client: TestClient, body: dict[str, Any]) -> None:
    error_line(client.post("/api/traces", json=body), 400, 422)


def test_a_lone_surrogate_is_refused(client: TestClient) -> None:
    response = client.post(
        "/api/traces", content=b'{"text": "a \\ud800 b"}', headers={"content-type": "application/json"}
    )
    error_line(response, 400, 422)


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
        "/api/traces/{trace}/next/99?ids=1",
        "/api/traces/{trace}/next/0?ids=999999",
        "/api/traces/{trace}/next/0?ids=x",
        "/api/traces/{trace}/next/0",
        "/api/traces/{trace}/spectrum/0/-1",
        "/api/traces/{trace}/points?axes=layer:9",
        "/api/traces/{trace}/points?axes=tokens:a",
        "/api/traces/{trace}/points?space=none",
    ],
)
def test_an_unknown_path_is_refused_in_one_line(client: TestClient, trace: str, path: str) -> None:
    error_line(client.get(path.replace("{trace}", trace)), 400, 404, 422)


def test_a_forbidden_model_is_refused(client: TestClient) -> None:
    for source in ("/etc", "../x", "gpt2-not-here", "<b>", "\0"):
        error_line(client.post("/api/models", json={"source": source}), 400)


def test_an_internal_error_shows_no_details() -> None:
    def failing_load(source: str | None, untrained: bool = False, progress: Any = None, **options: Any) -> Any:
        raise KeyError("a secret path")

    with running_studio(failing_load) as (_, client):
        assert "secret" not in error_line(client.post("/api/traces", json={"text": TEXT}), 500)


# The story


def test_a_cancelled_job_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started, gate = threading.Event(), threading.Event()
    with running_studio() as (_, client):
        body = {"text": TEXT, "lines": ["destination"]}
        original = Session.requests

        def wait_and_call(self: Session, *arguments: Any) -> Any:
            started.set()
            gate.wait(10)
            return original(*arguments)

        monkeypatch.setattr(Session, "requests", wait_and_call)
        response = client.post("/api/traces", json=body).json()
        assert started.wait(5)
        assert client.delete(f"/api/jobs/{response['job']}").json() == {"cancelled": True}
        gate.set()
        assert parse_events(client.get(f"/api/traces/{response['id']}/events").text)[-1][0] == "cancelled"
        assert client.delete(f"/api/jobs/{response['job']}").json() == {"cancelled": False}
        second_response = client.post("/api/traces", json=body).json()
        assert (second_response["cached"], second_response["id"]) == (True, response["id"])
        assert parse_events(client.get(f"/api/jobs/{second_response['job']}/events").text)[-1][0] == "done"


def test_a_full_queue_answers_429() -> None:
    loader = GatedLoader()
    with running_studio(loader, max_jobs=1) as (_, client):
        client.post("/api/models", json={"source": "default"})
        assert "Try again soon" in error_line(
            client.post("/api/models", json={"source": "default", "untrained": True}), 429
        )
        loader.gate.set()


# The cache


def test_an_evicted_text_can_be_posted_again() -> None:
    with running_studio(max_cache_bytes=10_000) as (session, client):
        first = post_text(client)
        post_text(client, "Once upon a time there was a king who had a ship")
        assert "send the text again" in error_line(client.get(f"/api/traces/{first}"), 404)
        assert post_text(client) == first
        assert session.cache.total_bytes <= max(10_000, session.get_entry(first).n_bytes)

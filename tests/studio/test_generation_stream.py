"""A generation as events of the studio: the prompt's cloud, a token at a time, and the answer as a sum."""

import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.studio.projected_points import principal_axes, project_cloud
from tests.report.cases import small
from tests.studio.cases import TEXT, running_studio


def events_of(client: Any, job: str) -> dict[str, list[dict[str, Any]]]:
    events: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for block in client.get(f"/api/jobs/{job}/events").text.strip().split("\n\n"):
        if block.startswith("event: "):
            name, data = block.removeprefix("event: ").split("\ndata: ")
            events[name].append(json.loads(data))
    return events


@pytest.fixture(scope="module")
def events() -> dict[str, list[dict[str, Any]]]:
    with running_studio() as (_session, client):
        job = client.post("/api/generations", json={"text": TEXT, "tokens": 5}).json()["job"]
        return events_of(client, job)


def test_every_token_is_an_event_with_its_path(events: dict[str, list[dict[str, Any]]]) -> None:
    generation = rs.generate(small(), TEXT, tokens=5)
    tokens = list(generation)
    assert [event["index"] for event in events["token"]] == list(range(len(tokens)))
    assert [event["probability"] for event in events["token"]] == pytest.approx(
        [t.probability for t in tokens], abs=1e-5
    )
    start = small().trace(TEXT)
    cloud = project_cloud(generation.trace(), principal_axes(start, "sphere"), "sphere").points.numpy()
    prompt = np.array(events["prompt"][0]["paths"])
    np.testing.assert_allclose(prompt, cloud[:, : len(start)].transpose(1, 0, 2), atol=2e-4)
    for event in events["token"]:
        np.testing.assert_allclose(event["path"], cloud[:, event["position"]], atol=2e-4)
        assert sum(event["by_prompt_token"]) == pytest.approx(event["from_prompt"], abs=1e-2)
        assert event["lens"][-1]["shown"] == event["shown"]


def test_the_answer_is_the_sum_of_its_groups(events: dict[str, list[dict[str, Any]]]) -> None:
    answer = events["answer"][0]
    assert sum(answer["groups"].values()) == pytest.approx(answer["logit_above_mean"], abs=1e-3)
    assert sum(answer["by_prompt_token"]) == pytest.approx(answer["groups"]["prompt"], abs=1e-2)
    assert "done" in events


def test_a_wrong_body_is_refused_and_an_empty_text_is_an_error() -> None:
    with running_studio(max_text_bytes=1000) as (_session, client):
        assert client.post("/api/generations", json={"text": TEXT, "tokens": 0}).status_code == 422
        assert client.post("/api/generations", json={"text": "x" * 2000}).status_code == 400
        job = client.post("/api/generations", json={"text": ""}).json()["job"]
        assert "error" in events_of(client, job)

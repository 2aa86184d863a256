"""The story of a text: it is told line by line, and compared with the card of the model if there is one."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import xarray as xr
from starlette.testclient import TestClient

from rheoscope.report.next_steps import card_line
from rheoscope.report.story import TEXT_LINES
from rheoscope.space.results import Results
from rheoscope.studio import session as session_module
from rheoscope.studio.session import Session
from tests.studio.cases import TEXT, parse_events, render_text, running_studio, small

EDIT = {"layer": 0, "head": 0, "operation": "ablate"}


@pytest.fixture(scope="module")
def studio() -> Iterator[tuple[Session, TestClient]]:
    with running_studio() as session_and_client:
        yield session_and_client


def story_lines(client: TestClient, text: str, names: list[str] | None = None, **fields: Any) -> dict[str, str]:
    """The lines of a story as they arrive, in English."""
    response = client.post("/api/traces", json={"text": text, "lines": names} | fields).json()
    events = parse_events(client.get(f"/api/traces/{response['id']}/events").text)
    assert events[-1][0] == "done", events[-1]
    lines = [json.loads(data) for name, data in events if name == "line"]
    return {line["name"]: render_text(line["sentence"]) for line in lines}


def test_the_story_is_told_line_by_line_and_results_are_cached(studio: tuple[Session, TestClient]) -> None:
    session, client = studio
    body = {"text": TEXT + " It is old.", "lines": ["next_token", "destination"]}
    response = client.post("/api/traces", json=body).json()
    events = parse_events(client.get(f"/api/traces/{response['id']}/events").text)
    names = [name for name, _ in events]
    assert (names[0], names[-1]) == ("head", "done")
    lines = [json.loads(data) for name, data in events if name == "line"]
    assert [line["name"] for line in lines] == ["next_token", "destination"]
    assert [line["needs"] for line in lines] == [["readout"], ["transport"]]
    assert render_text(lines[0]["title"]) == "Next token"
    assert "in first place since" in render_text(lines[0]["sentence"])
    assert json.loads(events[0][1])["id"] == response["id"]
    finished_analyses = {json.loads(data)["name"] for name, data in events if name == "known"}
    assert finished_analyses == {"transport", "readout"}
    stored_lines = client.get(f"/api/traces/{response['id']}/story").json()["story"]
    assert [line for line in stored_lines if line["name"] in body["lines"]] == lines
    entry = session.get_entry(response["id"])
    assert not hasattr(session.result_or_job(entry, "transport", {}), "holders")  # a cached result, not a job


def card_line_of(client: TestClient, text: str, **fields: Any) -> str | None:
    """The line about the model, in English; None if the story has none."""
    response = client.post("/api/traces", json={"text": text, "lines": ["destination"]} | fields).json()
    events = parse_events(client.get(f"/api/traces/{response['id']}/events").text)
    lines = [json.loads(data) for name, data in events if name == "card"]
    return render_text(lines[0]["sentence"]) if lines else None


def test_a_story_has_the_line_about_the_model_that_the_terminal_prints(
    studio: tuple[Session, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = studio
    monkeypatch.setattr(session_module, "find_card", lambda view: None)
    assert card_line_of(client, f"{TEXT} One.") == (
        "One text proves nothing about a model. rs.card(model) answers claims over many texts."
    )
    card = xr.Dataset({"answer": ("claim", ["yes", "yes", "no"])})
    monkeypatch.setattr(session_module, "find_card", lambda view: card)
    answers = "For this model, rs.card(model) answers 3 claims: 2 yes, 1 no, 0 reversed, 0 unclear."
    assert card_line_of(client, f"{TEXT} Two.") == answers
    assert card_line_of(client, f"{TEXT} Two.", edits=[EDIT]) == answers
    assert card_line_of(client, f"{TEXT} Two.", untrained=True) is None
    assert card_line_of(client, f"{TEXT} Three.", lines=[]) is None  # a comparison shows no story of its own
    results = Results(small().view, small().token_strings, None, card=card)
    assert card_line(results) == answers


def test_a_short_text_has_reasons_for_the_lines_without_a_result(studio: tuple[Session, TestClient]) -> None:
    lines = story_lines(studio[1], "The")
    assert set(lines) == {line.name for line in TEXT_LINES}
    assert "in first place since" in lines["next_token"]
    assert "use a longer text" in lines["groups"]


def test_a_line_is_compared_with_the_card_of_the_model_but_not_under_an_edit(
    studio: tuple[Session, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card describes the weights as they are, so it says nothing about an edited model."""
    shares = np.linspace(0.1, 0.5, 21)
    numbers = {"story_number": (("line", "text"), shares[None]), "answer": ("claim", ["yes"])}
    card = xr.Dataset(numbers, {"line": ["destination"]})
    _, client = studio
    assert "usual here" not in story_lines(client, TEXT, ["destination"])["destination"]
    monkeypatch.setattr(session_module, "find_card", lambda view: card)
    text = f"{TEXT} It is new."
    assert "usual here 14 % to 46 %" in story_lines(client, text, ["destination"])["destination"]
    assert "usual here" not in story_lines(client, text, ["destination"], edits=[EDIT])["destination"]

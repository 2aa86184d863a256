"""Every message that the server sends to the page has a Chinese translation."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rheoscope.messages.message import Message
from rheoscope.picture.field_panels import field_title
from rheoscope.report.story import TEXT_LINES
from rheoscope.studio import wire
from tests.studio.cases import (
    TEXT,
    message_templates,
    parse_events,
    post_text,
    running_studio,
    untranslated_templates,
)

LONG_TEXT = f"{TEXT} One day the king took the gold from the bank, and the children played on the bank of the river."
REFUSED_PATHS = [
    "/api/traces/none",
    "/api/jobs/none",
    "/api/nothing",
    "/api/corpus",
    "/api/traces/{trace}/analyses/nothing",
    "/api/traces/{trace}/analyses/transport?draws=x",
    "/api/traces/{trace}/analyses/transport?draws=100000",
    "/api/traces/{trace}/analyses/transport?nothing=1",
    "/api/traces/{trace}/analyses/transport?keep_massive=maybe",
    "/api/traces/{trace}/analyses/clusters?angle=x",
    "/api/traces/{trace}/weights/99/0",
    "/api/traces/{trace}/weights/0/0?kind=none",
    "/api/traces/{trace}/token/9999",
    "/api/traces/{trace}/next/99?ids=1",
    "/api/traces/{trace}/next/0?ids=999999",
    "/api/traces/{trace}/points?axes=layer:x",
    "/api/traces/{trace}/points?axes=tokens:a",
    "/api/traces/{trace}/points?axes=nothing",
    "/api/traces/{trace}/points?space=none",
]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with running_studio() as (_, test_client):
        yield test_client


@pytest.fixture(scope="module")
def events(client: TestClient) -> list[tuple[str, object]]:
    """All events of a text: its story and every other analysis of a report."""
    trace = client.post("/api/traces", json={"text": LONG_TEXT}).json()["id"]
    stream = client.get(f"/api/traces/{trace}/events").text
    return [(name, json.loads(data)) for name, data in parse_events(stream)]


def test_the_templates_of_nested_messages_are_listed() -> None:
    inner = Message("{n} unheard heads", n=3)
    value = json.loads(wire.encode_json([{"reason": Message("a plain reason")}, Message("{part}!", part=inner)]))
    assert list(message_templates(value)) == ["a plain reason", "{part}!", "{n} unheard heads"]
    assert untranslated_templates(value) == {"a plain reason", "{n} unheard heads"}


def test_the_catalogue_is_translated(client: TestClient) -> None:
    catalogue = client.get("/api/catalogue").json()
    assert len(set(message_templates(catalogue))) > 100
    assert untranslated_templates(catalogue) == set()


def test_models_are_translated(client: TestClient, events: list[tuple[str, object]]) -> None:
    post_text(client, untrained=True)
    models = client.get("/api/models").json()["models"]
    assert "{model}, untrained" in set(message_templates(models))
    assert untranslated_templates(models) == set()


def test_the_story_and_the_findings_are_translated(events: list[tuple[str, object]]) -> None:
    assert sum(name == "line" for name, _ in events) == len(TEXT_LINES)
    assert untranslated_templates([data for _, data in events]) == set()


def test_no_parameter_of_the_story_is_an_english_phrase(events: list[tuple[str, Any]]) -> None:
    """A phrase in a parameter must be a message itself, because a plain string is not translated."""
    parameters = [part for name, data in events if name == "line" for part in plain_parameters(data["sentence"])]
    assert len(parameters) > 20
    assert [part for part in parameters if re.search(r" [a-z]{2,} ", part)] == []


def plain_parameters(text: Any) -> Iterator[str]:
    """The parameters of a message of the wire, and of the messages in it, that are plain strings."""
    for part in text.get("parameters", {}).values() if isinstance(text, dict) else ():
        yield from [part] if isinstance(part, str) else plain_parameters(part)


def test_results_and_their_pictures_are_translated(client: TestClient, events: list[tuple[str, object]]) -> None:
    trace, names = post_text(client, LONG_TEXT), [data["name"] for name, data in events if name == "known"]  # type: ignore[index]
    assert len(names) > 10
    responses = [
        client.get(f"/api/traces/{trace}/analyses/{name}") for name in names if "." not in name and " " not in name
    ]
    headers = [wire.unpack_envelope(response.content)[0] for response in responses if response.status_code == 200]
    assert any(header["pictures"] for header in headers)
    field_names = {field_title(name) for header in headers for name in header["fields"]}  # names are not translated
    assert untranslated_templates(headers) - field_names == set()


@pytest.mark.parametrize("path", REFUSED_PATHS)
def test_errors_are_translated(client: TestClient, path: str) -> None:
    response = client.get(path.replace("{trace}", post_text(client)))
    assert response.status_code >= 400
    assert any(message_templates(response.json()))
    assert untranslated_templates(response.json()) == set()

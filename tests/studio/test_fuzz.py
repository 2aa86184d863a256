"""Random requests that the OpenAPI schema allows cause no 5xx, and every refusal is one line."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from starlette.testclient import TestClient

from rheoscope.studio.session import Session
from tests.studio.cases import BASE_URL, error_line, post_text, running_studio

STREAMS = "/events"
"""Event streams last as long as their job, so other tests cover them."""
REQUEST_ARGUMENTS = ("method", "url", "json", "params", "content", "data", "headers")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Stories are switched off, so that no thread computes while hypothesis draws cases."""
    monkeypatch.setattr(Session, "_run_story", lambda *arguments: None)
    with running_studio(max_tokens=64, max_jobs=1000) as (_, test_client):
        yield test_client


@pytest.mark.filterwarnings(
    "ignore::hypothesis.errors.HypothesisDeprecationWarning"
)  # schemathesis draws examples itself
def test_no_request_causes_a_server_error(client: TestClient) -> None:
    import schemathesis  # takes seconds, so only this test imports it

    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    schema.config.generation.codec = None  # any text, as in tests/texts.py
    operations = [operation.ok() for operation in schema.get_all_operations()]
    assert len(operations) > 18
    trace = post_text(client)
    for operation in operations:
        if not operation.path.endswith(STREAMS):
            _send_random_requests(client, operation, trace)


def _send_random_requests(client: TestClient, operation: Any, trace: str) -> None:
    @given(operation.as_strategy())
    @settings(max_examples=2, phases=[Phase.generate], suppress_health_check=list(HealthCheck), derandomize=True)
    def send(case: Any) -> None:
        valid_trace = {"trace": trace} if "{trace}" in operation.path else {}
        for parameters in [case.path_parameters, *([case.path_parameters | valid_trace] if valid_trace else [])]:
            case.path_parameters = parameters
            arguments = case.as_transport_kwargs(base_url=BASE_URL)
            response = client.request(**{name: value for name, value in arguments.items() if name in REQUEST_ARGUMENTS})
            assert response.status_code < 500, (operation.label, arguments, response.text)
            if response.status_code >= 400:
                error_line(response, response.status_code)

    send()

"""Whatever its own OpenAPI lets in: no 5xx, and every refusal is one line."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from starlette.testclient import TestClient

from rheoscope.studio.session import Session
from tests.studio.cases import HERE, one_line, posted, running

STREAMS = "/events"
"""They end when their job does, and are asked by name in the other tests."""
KNOWN = ("method", "url", "json", "params", "content", "data", "headers")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The questions are left out: no thread works while cases are drawn."""
    monkeypatch.setattr(Session, "_run_questions", lambda *given: None)
    with running(max_tokens=64, max_jobs=1000) as (_, one):
        yield one


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")  # schemathesis draws by itself
def test_no_request_brings_it_down(client: TestClient) -> None:
    import schemathesis  # seconds, so only where it is asked

    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    schema.config.generation.codec = None  # all that can be written: tests/texts.py
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 18
    trace = posted(client)
    for operation in operations:
        if not operation.path.endswith(STREAMS):
            _asked_anything(client, operation, trace)


def _asked_anything(client: TestClient, operation: Any, trace: str) -> None:
    @given(operation.as_strategy())
    @settings(max_examples=2, phases=[Phase.generate], suppress_health_check=list(HealthCheck), derandomize=True)
    def ask(case: Any) -> None:
        own = {"trace": trace} if "{trace}" in operation.path else {}
        for parameters in [case.path_parameters, *([case.path_parameters | own] if own else [])]:
            case.path_parameters = parameters
            sent = case.as_transport_kwargs(base_url=HERE)
            answer = client.request(**{name: value for name, value in sent.items() if name in KNOWN})
            assert answer.status_code < 500, (operation.label, sent, answer.text)
            if answer.status_code >= 400:
                one_line(answer, answer.status_code)

    ask()

"""Concurrent clients: each gets the results of its own text, edits and window."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice

import numpy as np
from starlette.testclient import TestClient

import rheoscope as rs
from rheoscope.space.trace import Trace
from rheoscope.studio.edited_model import with_edits
from rheoscope.studio.edits import Edit
from rheoscope.studio.projected_points import prediction_axes, project_cloud
from rheoscope.studio.windows import select_window
from rheoscope.studio.wire import WireArray, unpack_envelope
from tests.studio.cases import parse_events, post_text, running_studio, small

N_CLIENTS, N_ROUNDS, MAX_TOKENS = 6, 2, 12
LONG_TEXT = "The keys to the cabinet are on the old table in the hall."


@dataclass(frozen=True)
class ClientRequest:
    """A text with an optional edit and window."""

    text: str
    edit: Edit | None = None
    window: int | None = None

    @property
    def body(self) -> dict[str, object]:
        return {"text": self.text, "edits": [] if self.edit is None else [self.edit.json_dict], "window": self.window}


REQUESTS = [
    ClientRequest("A dog went to the sea"),
    ClientRequest("The king went to the sea"),
    ClientRequest("The king went to the sea", Edit(1, 2, "ablate")),
    ClientRequest("The king went to the sea", Edit(1, 2, "scale", value=3.0)),
    ClientRequest(LONG_TEXT, window=1),
    ClientRequest(LONG_TEXT, window=2),
    ClientRequest(LONG_TEXT, Edit(0, 1, "symmetric"), window=2),
]
"""Some differ in one respect only. Two neighbouring clients send the same request."""


@cache
def expected_trace(request: ClientRequest) -> Trace:
    """The trace computed without a server."""
    window = select_window(small(), request.text, MAX_TOKENS, request.window)
    model = with_edits(small(), [] if request.edit is None else [request.edit])
    return model.trace(request.text if window is None else window.model_input)


def arrays(client: TestClient, path: str) -> dict[str, WireArray]:
    response = client.get(path)
    assert response.status_code == 200, response.text
    return unpack_envelope(response.content)[1]


def visit(client: TestClient, requests: Iterator[ClientRequest], cancels: bool) -> None:
    for request in requests:
        trace = expected_trace(request)
        trace_id = post_text(client, **request.body)
        header = client.get(f"/api/traces/{trace_id}").json()
        assert (header["id"], header["text"], header["edits"]) == (trace_id, request.text, request.body["edits"])
        assert [token["text"] for token in header["tokens"]] == trace.tokens
        points = project_cloud(trace, prediction_axes(trace, "raw"), "raw").points
        values = arrays(client, f"/api/traces/{trace_id}/points?space=raw")["points"].decoded_values
        np.testing.assert_allclose(values, points.numpy(), atol=1e-4)
        values = arrays(client, f"/api/traces/{trace_id}/analyses/trajectory?draws=0")["speed"].decoded_values
        np.testing.assert_allclose(values, rs.trajectory(trace, draws=0).speed.values, rtol=1e-3)
        response = client.post("/api/traces", json=request.body | {"lines": ["next_token"]}).json()
        if cancels:
            client.delete(f"/api/jobs/{response['job']}")
            continue
        events = parse_events(client.get(f"/api/jobs/{response['job']}/events").text)
        assert events[-1][0] == "done", events[-1]
        assert f'"id":"{trace_id}"' in events[0][1]


def test_concurrent_clients_get_their_own_results() -> None:
    for request in REQUESTS:
        expected_trace(request)
    with running_studio(max_tokens=MAX_TOKENS) as (session, client), ThreadPoolExecutor(N_CLIENTS) as pool:
        requests_by_client = [
            islice(cycle(REQUESTS), client_index, client_index + N_ROUNDS) for client_index in range(N_CLIENTS)
        ]
        futures = [
            pool.submit(visit, client, requests, client_index % 4 == 3)
            for client_index, requests in enumerate(requests_by_client)
        ]
        for future in futures:
            future.result(60)
        assert len({post_text(client, **request.body) for request in REQUESTS}) == len(REQUESTS)
        assert not any(not job.is_over for job in session.queue._jobs_by_holder.values() if job.holders)

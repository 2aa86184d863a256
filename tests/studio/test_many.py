"""Many clients at once: each gets what its own text, edits and window give, whatever the others ask, cancel or leave."""

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
from rheoscope.studio.projected_points import principal_axes, project_cloud
from rheoscope.studio.windows import select_window
from rheoscope.studio.wire import WireArray, unpack_envelope
from tests.studio.cases import posted, running, small, told

CLIENTS, ROUNDS, TOKENS = 8, 3, 12
LONG = "The keys to the cabinet are on the old table in the hall."


@dataclass(frozen=True)
class Wish:
    """What a client asks for."""

    text: str
    edit: Edit | None = None
    window: int | None = None

    @property
    def body(self) -> dict[str, object]:
        return {"text": self.text, "edits": [] if self.edit is None else [self.edit.json_dict], "window": self.window}


WISHES = [
    Wish("A dog went to the sea"),
    Wish("The king went to the sea"),
    Wish("The king went to the sea", Edit(1, 2, "ablate")),
    Wish("The king went to the sea", Edit(1, 2, "scale", value=3.0)),
    Wish(LONG, window=1),
    Wish(LONG, window=2),
    Wish(LONG, Edit(0, 1, "symmetric"), window=2),
]
"""Some differ in one thing alone; their number has nothing in common with that of the clients."""


@cache
def alone(wish: Wish) -> Trace:
    """The slow twin: the text put through the model by nobody but us."""
    part = select_window(small(), wish.text, TOKENS, wish.window)
    model = with_edits(small(), [] if wish.edit is None else [wish.edit])
    return model.trace(wish.text if part is None else part.model_input)


def arrays(client: TestClient, path: str) -> dict[str, WireArray]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return unpack_envelope(answer.content)[1]


def visit(client: TestClient, wishes: Iterator[Wish], leaves: bool) -> None:
    for wish in wishes:
        trace = alone(wish)
        name = posted(client, **wish.body)
        head = client.get(f"/api/traces/{name}").json()
        assert (head["id"], head["text"], head["edits"]) == (name, wish.text, wish.body["edits"])
        assert [one["text"] for one in head["tokens"]] == trace.tokens
        points = project_cloud(trace, principal_axes(trace, "raw"), "raw").points
        found = arrays(client, f"/api/traces/{name}/points?space=raw")["points"].decoded_values
        np.testing.assert_allclose(found, points.numpy(), atol=1e-4)
        found = arrays(client, f"/api/traces/{name}/analyses/trajectory?draws=0")["speed"].decoded_values
        np.testing.assert_allclose(found, rs.trajectory(trace, draws=0).speed.values, rtol=1e-3)
        answer = client.post("/api/traces", json=wish.body | {"questions": ["prediction"]}).json()
        if leaves:
            client.delete(f"/api/jobs/{answer['job']}")
            continue
        events = told(client.get(f"/api/jobs/{answer['job']}/events").text)
        assert events[-1][0] == "done", events[-1]
        assert f'"id":"{name}"' in events[0][1]


def test_clients_never_get_each_others_answers() -> None:
    for wish in WISHES:
        alone(wish)
    with running(max_tokens=TOKENS) as (session, client), ThreadPoolExecutor(CLIENTS) as pool:
        asked = [islice(cycle(WISHES), at, at + ROUNDS) for at in range(CLIENTS)]
        visits = [pool.submit(visit, client, wishes, at % 4 == 3) for at, wishes in enumerate(asked)]
        for one in visits:
            one.result(60)
        assert len({posted(client, **wish.body) for wish in WISHES}) == len(WISHES)
        assert not any(not job.is_over for job in session.queue._jobs_by_holder.values() if job.holders)

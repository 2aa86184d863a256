"""Long texts, a window at a time: nothing is lost, nothing is there twice, and each is what the model reads alone."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rheoscope as rs
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.windows import Window, select_window
from rheoscope.studio.wire import unpack_envelope
from tests.studio.cases import TEXT, one_line, posted, running, small, told

WORDS = ["The", " keys", " to", " the", " cabinet", "\n", " 7"]


def all_of(text: str, most: int) -> list[Window]:
    first = select_window(small(), text, most, None)
    assert first is not None
    found = [select_window(small(), text, most, at) for at in range(1, first.of + 1)]
    return [one for one in found if one is not None]


@settings(max_examples=25, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), min_size=12, max_size=40), most=st.integers(5, 9))
def test_windows_are_the_text(words: list[str], most: int) -> None:
    text = "".join(words)
    ids = small().encode(text)
    if len(ids) <= most:
        return
    bare = len(small().encode(""))
    found = all_of(text, most)
    own = [one.model_input.tolist()[bare:] for one in found]  # type: ignore[union-attr]
    assert [one for part in own for one in part] == ids[bare:]
    assert all(one.model_input.tolist()[:bare] == ids[:bare] for one in found)  # type: ignore[union-attr]
    assert all(len(one.model_input) == most for one in found[:-1])
    assert [(one.first, one.last) for one in found] == [
        (sum(map(len, own[:at])) + 1, sum(map(len, own[: at + 1]))) for at in range(len(own))
    ]
    assert {(one.of, one.tokens) for one in found} == {(len(found), len(ids) - bare)}


def test_a_text_that_is_read_whole_has_one_window() -> None:
    assert select_window(small(), TEXT, 100, None) is None
    assert select_window(small(), TEXT, 100, 1) is None
    with pytest.raises(RheoscopeError, match=r"type window 1$"):
        select_window(small(), TEXT, 100, 2)


def test_a_window_is_asked_as_a_text_of_its_own() -> None:
    with running(max_tokens=8) as (_, client):
        first, second = posted(client, window=None), posted(client, window=2)
        assert posted(client, window=1) == first != second
        heads: list[dict[str, Any]] = [client.get(f"/api/traces/{one}").json() for one in (first, second)]
        ids = small().encode(TEXT)
        bare = len(small().encode(""))
        own = 8 - bare
        inner = len(ids) - bare
        several = {"of": -(-inner // own), "tokens": inner}
        assert [head["window"] for head in heads] == [
            {"at": at, "first": (at - 1) * own + 1, "last": min(at * own, inner)} | several for at in (1, 2)
        ]
        assert {head["text"] for head in heads} == {TEXT}
        twin = small().trace(torch.tensor([*ids[:bare], *ids[bare + own : bare + 2 * own]]))
        assert [one["text"] for one in heads[1]["tokens"]] == twin.tokens
        header, found = unpack_envelope(client.get(f"/api/traces/{second}/analyses/trajectory?draws=0").content)
        np.testing.assert_allclose(found["speed"].decoded_values, rs.trajectory(twin, draws=0).speed.values, rtol=1e-4)
        assert header["attrs"]["window"] == f"tokens {own + 1} to {inner} of {inner}"
        edited = posted(client, window=2, edits=[{"layer": 1, "head": 0, "operation": "ablate"}])
        assert client.get(f"/api/traces/{edited}").json()["window"]["at"] == 2
        answer = client.post("/api/traces", json={"text": TEXT, "window": 2, "questions": ["prediction"]}).json()
        assert told(client.get(f"/api/traces/{answer['id']}/events").text)[-1][0] == "done"


def test_windows_that_are_not_there_are_refused() -> None:
    with running(max_tokens=8) as (_, client):
        assert "type window 1 to" in one_line(client.post("/api/traces", json={"text": TEXT, "window": 99}), 400)
        for wrong in (0, -1, 10**9, "x"):
            one_line(client.post("/api/traces", json={"text": TEXT, "window": wrong}), 422)

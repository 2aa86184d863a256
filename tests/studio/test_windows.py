"""Windows of long texts partition the text, and each equals its tokens traced alone."""

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
from tests.studio.cases import TEXT, error_line, parse_events, post_text, render_text, running_studio, small

TOKEN_TEXTS = ["The", " keys", " to", " the", " cabinet", "\n", " 7"]


def all_windows(text: str, max_tokens: int) -> list[Window]:
    first = select_window(small(), text, max_tokens, None)
    assert first is not None
    windows = [select_window(small(), text, max_tokens, number) for number in range(1, first.total + 1)]
    return [window for window in windows if window is not None]


@settings(max_examples=25, deadline=None)
@given(token_texts=st.lists(st.sampled_from(TOKEN_TEXTS), min_size=12, max_size=40), max_tokens=st.integers(5, 9))
def test_windows_partition_the_text(token_texts: list[str], max_tokens: int) -> None:
    text = "".join(token_texts)
    ids = small().encode(text)
    if len(ids) <= max_tokens:
        return
    n_special = len(small().encode(""))
    windows = all_windows(text, max_tokens)
    window_ids = [window.model_input.tolist()[n_special:] for window in windows]  # type: ignore[union-attr]
    assert [window for ids_of_window in window_ids for window in ids_of_window] == ids[n_special:]
    assert all(window.model_input.tolist()[:n_special] == ids[:n_special] for window in windows)  # type: ignore[union-attr]
    assert all(len(window.model_input) == max_tokens for window in windows[:-1])
    assert [(window.first, window.last) for window in windows] == [
        (sum(map(len, window_ids[:index])) + 1, sum(map(len, window_ids[: index + 1])))
        for index in range(len(window_ids))
    ]
    assert {(window.total, window.tokens) for window in windows} == {(len(windows), len(ids) - n_special)}


def test_a_short_text_has_one_window() -> None:
    assert select_window(small(), TEXT, 100, None) is None
    assert select_window(small(), TEXT, 100, 1) is None
    with pytest.raises(RheoscopeError, match=r"type window=1$"):
        select_window(small(), TEXT, 100, 2)


def test_a_window_is_analysed_as_its_own_text() -> None:
    with running_studio(max_tokens=8) as (_, client):
        first, second = post_text(client, window=None), post_text(client, window=2)
        assert post_text(client, window=1) == first != second
        heads: list[dict[str, Any]] = [client.get(f"/api/traces/{trace_id}").json() for trace_id in (first, second)]
        ids = small().encode(TEXT)
        n_special = len(small().encode(""))
        size = 8 - n_special
        n_tokens = len(ids) - n_special
        totals = {"total": -(-n_tokens // size), "tokens": n_tokens}
        assert [head["window"] for head in heads] == [
            {"number": number, "first": (number - 1) * size + 1, "last": min(number * size, n_tokens)} | totals
            for number in (1, 2)
        ]
        assert {head["text"] for head in heads} == {TEXT}
        expected = small().trace(torch.tensor([*ids[:n_special], *ids[n_special + size : n_special + 2 * size]]))
        assert [trace_id["text"] for trace_id in heads[1]["tokens"]] == expected.tokens
        header, arrays = unpack_envelope(client.get(f"/api/traces/{second}/analyses/trajectory?draws=0").content)
        np.testing.assert_allclose(
            arrays["speed"].decoded_values, rs.trajectory(expected, draws=0).speed.values, rtol=1e-4
        )
        assert render_text(header["attrs"]["window"]) == f"tokens {size + 1}–{n_tokens} of {n_tokens}"
        edited = post_text(client, window=2, edits=[{"layer": 1, "head": 0, "operation": "ablate"}])
        assert client.get(f"/api/traces/{edited}").json()["window"]["number"] == 2
        response = client.post("/api/traces", json={"text": TEXT, "window": 2, "lines": ["next_token"]}).json()
        assert parse_events(client.get(f"/api/traces/{response['id']}/events").text)[-1][0] == "done"


def test_an_invalid_window_is_refused() -> None:
    with running_studio(max_tokens=8) as (_, client):
        assert "window must lie between 1 and" in error_line(
            client.post("/api/traces", json={"text": TEXT, "window": 99}), 400
        )
        for window in (0, -1, 10**9, "x"):
            error_line(client.post("/api/traces", json={"text": TEXT, "window": window}), 422)

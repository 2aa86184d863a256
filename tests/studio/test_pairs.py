"""An encoder-decoder in the studio: one line that says which command shows it."""

from typing import Any

import pytest

from rheoscope.shapes import RheoscopeError
from tests.running.test_pair_sides import pair
from tests.studio.cases import error_line, load_small, running_studio


def load(source: str | None, **options: Any) -> Any:
    return pair("translator") if source == "default" or source is None else load_small(source, **options)


def test_a_pair_is_refused_with_the_command_that_shows_it() -> None:
    with running_studio(load) as (session, client):
        opened = session.open_model("default")
        with pytest.raises(RheoscopeError, match="shows models of one text, but default reads a source and a target"):
            opened.job.result.result(timeout=300)
        response = client.post("/api/traces", json={"text": "a text", "lines": []})
        assert "reads a source and a target" in error_line(response, 400, 404, 422, 500, 503)

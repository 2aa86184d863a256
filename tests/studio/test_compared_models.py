"""The comparison of two models on the page: the blocks of `rheoscope compare`, computed once."""

import pytest

from rheoscope.studio import compared_models
from tests.studio.cases import error_line, post_text, render_text, running_studio, untranslated_templates


def test_two_models_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_studio() as (_, client):
        own, untrained = post_text(client), post_text(client, untrained=True)
        path = f"/api/traces/{untrained}/comparison/{own}"
        assert client.get(f"{path}/space").json() == {"shared": False}
        assert client.get(f"/api/traces/{own}/comparison/{own}/space").json() == {"shared": True}
        response = client.get(path)
        assert response.status_code == 200, response.text
        report = response.json()
        assert [block["block"] for block in report["blocks"][:2]] == ["lines", "drawing"]
        assert {"table"} == {block["block"] for block in report["blocks"][2:]}
        assert "Not everything is compared" in render_text(report["blocks"][0]["lines"][0])
        assert untranslated_templates(report) == set()
        monkeypatch.setattr(compared_models, "compare_on_traces", None)  # it is not computed again
        assert client.get(path).json() == report


def test_a_model_and_itself_differ_nowhere_and_unknown_texts_are_refused() -> None:
    with running_studio() as (_, client):
        own = post_text(client)
        blocks = client.get(f"/api/traces/{own}/comparison/{own}").json()["blocks"]
        assert render_text(blocks[0]["lines"][0]) == "Both models have the same weights."
        assert "there is no text" in error_line(client.get(f"/api/traces/{own}/comparison/none"), 404)

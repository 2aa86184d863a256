"""Cards and the atlas on the page: they are those of the report, from the stored cards."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import xarray as xr
from starlette.testclient import TestClient

from rheoscope.report.card_cache import SHIPPED_CARDS, read_card, store_card, stored_cards
from rheoscope.report.card_rows import card_blocks
from rheoscope.studio import cards
from rheoscope.studio.stored_example import StoredExample
from rheoscope.studio.wire import encode_json
from tests.studio.cases import GatedLoader, error_line, render_text, running_studio, untranslated_templates


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with running_studio() as (_, test_client):
        yield test_client


@pytest.fixture(scope="module")
def shipped_card() -> xr.Dataset:
    return read_card(next(SHIPPED_CARDS.glob("*.json")))


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_stored_card_has_the_rows_of_the_report(
    client: TestClient, shipped_card: xr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cards, "find_card", lambda view: shipped_card)
    report = client.get("/api/cards/default").json()
    assert report["stored"]
    rows, table, lines = report["blocks"]
    assert [block["block"] for block in (rows, table, lines)] == ["rows", "table", "lines"]
    expected = card_blocks(shipped_card)[0]
    assert [render_text(row["title"]) for row in rows["rows"]] == [row.title for row in expected.rows]
    assert [render_text(row["answer"]) for row in rows["rows"]] == [row.answer for row in expected.rows]
    estimate = float(shipped_card.estimate[0] / shipped_card.smallest_effect[0])
    assert rows["rows"][0]["strip"]["marks"][-1]["x"] == pytest.approx([estimate])
    assert len(table["rows"]) == shipped_card.sizes["interval"]
    assert render_text(rows["rows"][0]["details"][0]["facts"][0][0]) == "Statistic"
    assert untranslated_templates(report) == set()


def test_a_model_without_a_card_gets_the_command(client: TestClient) -> None:
    for model, expected in (("default", "rs.card(model)"), ("default.untrained", "no card of its own")):
        report = client.get(f"/api/cards/{model}").json()
        assert not report["stored"]
        (block,) = report["blocks"]
        (line,) = block["lines"]
        assert expected in render_text(line)
        assert untranslated_templates(report) == set()


def test_the_card_of_a_forbidden_model_is_refused(client: TestClient) -> None:
    assert "may not open" in error_line(client.get("/api/cards/other/model"), 400)


def test_the_stored_card_needs_no_model(tmp_path: Path) -> None:
    """The page of the default model shows its card before the model is loaded."""
    (tmp_path / "api" / "cards").mkdir(parents=True)
    (tmp_path / "api" / "cards" / "default.json").write_bytes(encode_json({"stored": True, "blocks": []}))
    example = StoredExample(tmp_path, "ab", "", {"id": "default"})
    with running_studio(loader := GatedLoader(), stored_example=example) as (_, client):
        assert client.get("/api/cards/default").json() == {"stored": True, "blocks": []}
        loader.gate.set()
        assert not client.get("/api/cards/default.untrained").json()["stored"]


def test_the_atlas_has_a_row_for_every_stored_card(
    client: TestClient, shipped_card: xr.Dataset, tmp_path: Path
) -> None:
    store_card(shipped_card.assign_attrs(model="another model", weights="ab"))
    store_card(shipped_card.drop_vars("threshold").assign_attrs(model="an old card", weights="cd"))
    (tmp_path / "rheoscope" / "cards" / "damaged.json").write_text('{"coords"')
    assert len(stored_cards()) == 3
    report = client.get("/api/atlas").json()
    drawing, table = report["blocks"]
    assert report["models"] == 2
    assert len(drawing["picture"]["panels"]) == shipped_card.sizes["claim"]
    assert all(panel["y"]["names"] == ["another model", "the default model"] for panel in drawing["picture"]["panels"])
    assert len(table["rows"]) == shipped_card.sizes["claim"]
    assert untranslated_templates(report) == set()


def test_a_card_of_the_package_comes_before_a_cached_one(shipped_card: xr.Dataset) -> None:
    store_card(shipped_card.assign_attrs(model="a copy in the cache"))
    assert [card.attrs["model"] for card in stored_cards()] == ["the default model"]

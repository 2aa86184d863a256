"""A corpus run in the studio: what it holds, its fields of heads, one head with its distribution and its texts."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

import rheoscope as rs
from rheoscope.corpus.summaries import BINS_PER_CELL, quantiles
from rheoscope.shapes import RheoscopeError
from rheoscope.studio import startup, wire
from rheoscope.studio.corpus import LiveCorpusRun, _single_cell_summary, distribution
from rheoscope.studio.session import Session
from rheoscope.studio.startup import StudioOptions, resolve_corpus
from tests.corpus.cases import job, lines, text_file, tiny_model
from tests.studio.cases import TEXT, one_line, posted, ran, running, small

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, TestClient, LiveCorpusRun]]:
    run = ran(tmp_path_factory.mktemp("studio") / "run")
    with running(run=run) as (session, client):
        session.open_model("default").job.result.result()
        yield session, client, run


def test_the_page_is_told_what_the_run_is_of(shown: tuple[Session, TestClient, LiveCorpusRun]) -> None:
    _, client, _ = shown
    assert client.get("/api/state").json()["corpus"] == "run"
    told = client.get("/api/corpus").json()
    assert (told["texts"], told["rejects"], told["shards"], told["of"]) == (3, 0, 1, 1)
    assert told["weights"] == small().view.facts["weights"]
    assert {"head_types.sink", "reversed_attention.gradient_sum"} <= set(told["fields"])
    assert "reversed_attention.loss" not in told["fields"]


def test_a_field_is_that_of_the_run(shown: tuple[Session, TestClient, LiveCorpusRun]) -> None:
    _, client, run = shown
    header, arrays = wire.unpack_envelope(client.get("/api/corpus/head_types/sink").content)
    own = rs.open_corpus(run.folder)["head_types"]
    for name, field in (("mean", "sink"), ("low", "sink_low"), ("high", "sink_high")):
        np.testing.assert_allclose(arrays[name].decoded_values, own[field].values, rtol=1e-6)
    np.testing.assert_allclose(arrays["null"].decoded_values, own.sink_null.broadcast_like(own.sink).values, rtol=1e-6)
    assert header["coords"]["layer"]["values"] == [0, 1, 2]


def test_a_head_has_its_distribution_and_its_texts(shown: tuple[Session, TestClient, LiveCorpusRun]) -> None:
    _, client, run = shown
    found = client.get("/api/corpus/reversed_attention/gradient_sum/1/0").json()
    rows = run.current_run.sql(
        "SELECT gradient_sum FROM reversed_attention.layer_head WHERE layer = 1 AND head = 0"
    ).df()["gradient_sum"]
    assert found["mean"] == pytest.approx(rows.mean(), rel=1e-5)
    assert found["items"] > found["texts"] == 3
    assert len(found["distribution"]["edges"]) == len(found["distribution"]["shares"]) + 1
    first = found["most"][0]
    assert TEXT.endswith(first["text"])
    before, token, after = first["around"]
    assert (before + token + after).removeprefix("<s>") in first["text"]
    assert small().token_strings_in_text(small().encode(first["text"]))[first["token"]] == token
    assert first["value"] >= found["most"][1]["value"] >= found["least"][0]["value"]


def test_an_example_opens_as_the_run_read_it(shown: tuple[Session, TestClient, LiveCorpusRun]) -> None:
    """The number of the text alone is the number of the example."""
    _, client, _ = shown
    example = client.get("/api/corpus/head_statistics/first_token_weight/0/1").json()["most"][0]
    trace = posted(client, example["text"])
    assert len(client.get(f"/api/traces/{trace}").json()["tokens"]) == example["tokens"]
    _, arrays = wire.unpack_envelope(client.get(f"/api/traces/{trace}/analyses/head_statistics").content)
    assert arrays["first_token_weight"].decoded_values[0, 1] == pytest.approx(example["value"], rel=1e-4)


@pytest.mark.parametrize("path", ["head_types/sunk", "no/sink", "head_types/sink/9/0", "head_types/sink/0/0?piece=1"])
def test_what_the_corpus_has_not_is_refused(shown: tuple[Session, TestClient, LiveCorpusRun], path: str) -> None:
    assert "this corpus" in one_line(shown[1].get(f"/api/corpus/{path}"), 404)


def test_without_a_corpus_there_is_none() -> None:
    with running() as (_, client):
        assert client.get("/api/state").json()["corpus"] is None
        assert "--corpus DIR" in one_line(client.get("/api/corpus"), 404)


def test_shares_are_those_of_the_numbers(tmp_path: Path) -> None:
    """Bars against a count of the rows themselves, to the width of a bin."""
    run = ran(tmp_path / "many", lines(200), analyses={"head_types": {}})
    kept = run.current_run.summaries["head_types", "local"].summary
    one = _single_cell_summary(kept, 1)
    found = distribution(one, one)
    values = run.current_run.sql("SELECT local FROM head_types WHERE layer = 0 AND head = 1").df()["local"].to_numpy()
    cuts = np.array(found["edges"])
    inside = values[(values >= cuts[0]) & (values <= cuts[-1])]
    below = np.searchsorted(np.sort(inside), cuts, side="right") / len(values)
    assert np.abs(np.cumsum(found["shares"]) - below[1:]).max() < 0.1
    assert found["null"] == found["shares"]
    assert sum(found["shares"]) + found["outside"] == pytest.approx(1)
    assert quantiles(one, [0.5])[0, 0] == quantiles(kept, [0.5])[1, 0]
    assert (one.bins < BINS_PER_CELL).all()


def test_a_run_that_goes_on_is_seen_to_go_on(tmp_path: Path) -> None:
    run = ran(tmp_path / "run", lines(30), analyses={"head_types": {}}, shard=300)
    parts = sorted((run.folder / "done").iterdir())
    held = parts[-1].rename(tmp_path / "held")
    fewer = run.to_json()["texts"]
    held.rename(parts[-1])
    assert run.to_json()["texts"] > fewer


def test_the_command_opens_the_model_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rheoscope.corpus.corpus_run import run_job

    asked = job(tiny_model(tmp_path / "model"), text_file(tmp_path / "a.txt", lines(4)), untrained=True)
    run_job(asked, tmp_path / "run")
    opening, run = resolve_corpus(StudioOptions(corpus_folder=tmp_path / "run"))
    assert run is not None
    assert (opening.model, run.model_id) == (asked.model, f"{asked.model}.untrained")
    assert resolve_corpus(StudioOptions("gpt2", corpus_folder=tmp_path / "run"))[0].model == "gpt2"
    with pytest.raises(RheoscopeError, match="holds no corpus run"):
        resolve_corpus(StudioOptions(corpus_folder=tmp_path))
    monkeypatch.setattr(startup, "check_installation", lambda static: None)
    with pytest.raises(RheoscopeError, match="an export holds one text"):
        startup.run_command(
            StudioOptions(corpus_folder=tmp_path / "run"), "127.0.0.1", 0, False, tmp_path / "page", "a", None
        )

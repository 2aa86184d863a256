"""A corpus run in the studio: its summary, its per-head fields, and the distribution and examples of a head."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

import rheoscope as rs
from rheoscope.corpus.summaries import BINS_PER_CELL, quantiles
from rheoscope.shapes import RheoscopeError
from rheoscope.studio import run_studio, wire
from rheoscope.studio.corpus import LiveCorpusRun, _single_cell_summary, distribution
from rheoscope.studio.session import Session
from rheoscope.studio.startup import StudioOptions, resolve_corpus
from tests.corpus.cases import job, lines, text_file, tiny_model
from tests.studio.cases import TEXT, error_line, post_text, run_corpus, running_studio, small

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, TestClient, LiveCorpusRun]]:
    run = run_corpus(tmp_path_factory.mktemp("studio") / "run")
    with running_studio(corpus_run=run) as (session, client):
        session.open_model("default").job.result.result()
        yield session, client, run


def test_the_summary_describes_the_run(studio: tuple[Session, TestClient, LiveCorpusRun]) -> None:
    _, client, _ = studio
    assert client.get("/api/state").json()["corpus"] == "run"
    summary = client.get("/api/corpus").json()
    assert (summary["texts"], summary["rejects"], summary["shards"], summary["total_shards"]) == (3, 0, 1, 1)
    assert summary["weights"] == small().view.facts["weights"]
    assert {"head_types.sink", "reversed_attention.gradient_sum"} <= set(summary["fields"])
    assert "reversed_attention.loss" not in summary["fields"]


def test_a_field_equals_the_field_of_the_opened_run(studio: tuple[Session, TestClient, LiveCorpusRun]) -> None:
    _, client, run = studio
    header, arrays = wire.unpack_envelope(client.get("/api/corpus/head_types/sink").content)
    expected = rs.open_corpus(run.folder)["head_types"]
    for name, field in (("mean", "sink"), ("low", "sink_low"), ("high", "sink_high")):
        np.testing.assert_allclose(arrays[name].decoded_values, expected[field].values, rtol=1e-6)
    np.testing.assert_allclose(
        arrays["null"].decoded_values, expected.sink_null.broadcast_like(expected.sink).values, rtol=1e-6
    )
    assert header["coords"]["layer"]["values"] == [0, 1, 2]


def test_a_head_has_a_distribution_and_examples(studio: tuple[Session, TestClient, LiveCorpusRun]) -> None:
    _, client, run = studio
    head = client.get("/api/corpus/reversed_attention/gradient_sum/1/0").json()
    rows = run.current_run.sql(
        "SELECT gradient_sum FROM reversed_attention.layer_head WHERE layer = 1 AND head = 0"
    ).df()["gradient_sum"]
    assert head["mean"] == pytest.approx(rows.mean(), rel=1e-5)
    assert head["items"] > head["texts"] == 3
    assert len(head["distribution"]["edges"]) == len(head["distribution"]["shares"]) + 1
    first = head["most"][0]
    assert TEXT.endswith(first["text"])
    before, token, after = first["around"]
    assert (before + token + after).removeprefix("<s>") in first["text"]
    assert small().token_strings_in_text(small().encode(first["text"]))[first["token"]] == token
    assert first["value"] >= head["most"][1]["value"] >= head["least"][0]["value"]


def test_an_example_opened_alone_has_the_value_of_the_run(studio: tuple[Session, TestClient, LiveCorpusRun]) -> None:
    _, client, _ = studio
    example = client.get("/api/corpus/head_statistics/first_token_weight/0/1").json()["most"][0]
    trace = post_text(client, example["text"])
    assert len(client.get(f"/api/traces/{trace}").json()["tokens"]) == example["tokens"]
    _, arrays = wire.unpack_envelope(client.get(f"/api/traces/{trace}/analyses/head_statistics").content)
    assert arrays["first_token_weight"].decoded_values[0, 1] == pytest.approx(example["value"], rel=1e-4)


@pytest.mark.parametrize("path", ["head_types/sunk", "no/sink", "head_types/sink/9/0", "head_types/sink/0/0?piece=1"])
def test_an_unknown_field_or_head_is_refused(studio: tuple[Session, TestClient, LiveCorpusRun], path: str) -> None:
    assert "this corpus" in error_line(studio[1].get(f"/api/corpus/{path}"), 404)


def test_a_server_without_a_corpus_refuses_corpus_requests() -> None:
    with running_studio() as (_, client):
        assert client.get("/api/state").json()["corpus"] is None
        assert "--corpus run" in error_line(client.get("/api/corpus"), 404)


def test_the_histogram_matches_the_rows(tmp_path: Path) -> None:
    """The bars are compared with counts of the rows, up to the width of a bin."""
    run = run_corpus(tmp_path / "many", lines(80), analyses={"head_types": {}})
    summary = run.current_run.summaries["head_types", "local"].summary
    cell = _single_cell_summary(summary, 1)
    histogram = distribution(cell, cell)
    values = run.current_run.sql("SELECT local FROM head_types WHERE layer = 0 AND head = 1").df()["local"].to_numpy()
    edges = np.array(histogram["edges"])
    inside = values[(values >= edges[0]) & (values <= edges[-1])]
    below = np.searchsorted(np.sort(inside), edges, side="right") / len(values)
    assert np.abs(np.cumsum(histogram["shares"]) - below[1:]).max() < 0.1
    assert histogram["null"] == histogram["shares"]
    assert sum(histogram["shares"]) + histogram["outside"] == pytest.approx(1)
    assert quantiles(cell, [0.5])[0, 0] == quantiles(summary, [0.5])[1, 0]
    assert (cell.bins < BINS_PER_CELL).all()


def test_a_growing_run_is_reopened(tmp_path: Path) -> None:
    run = run_corpus(tmp_path / "run", lines(10), analyses={"head_types": {}}, shard=200)
    (run.folder / "done" / "summary.json").unlink()  # as in an unfinished run
    parts = sorted((run.folder / "done").iterdir())
    hidden_shard = parts[-1].rename(tmp_path / "held")
    fewer = run.to_json()["texts"]
    hidden_shard.rename(parts[-1])
    assert run.to_json()["texts"] > fewer


def test_the_command_opens_the_model_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rheoscope.corpus.corpus_run import run_job

    corpus_job = job(tiny_model(tmp_path / "model"), text_file(tmp_path / "a.txt", lines(4)), untrained=True)
    run_job(corpus_job, tmp_path / "run")
    options, run = resolve_corpus(StudioOptions(corpus_folder=tmp_path / "run"))
    assert run is not None
    assert (options.model, run.model_id) == (corpus_job.model, f"{corpus_job.model}.untrained")
    assert resolve_corpus(StudioOptions("gpt2", corpus_folder=tmp_path / "run"))[0].model == "gpt2"
    with pytest.raises(RheoscopeError, match="holds no corpus run"):
        resolve_corpus(StudioOptions(corpus_folder=tmp_path))
    monkeypatch.setattr(run_studio, "check_installation", lambda page_folder: None)
    with pytest.raises(RheoscopeError, match="an export contains one text"):
        run_studio.run_command(
            StudioOptions(corpus_folder=tmp_path / "run"), "127.0.0.1", 0, False, tmp_path / "page", "a", None
        )

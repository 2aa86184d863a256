"""A corpus run as xarray, SQL, examples, drift and a page, and the commands that show them."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t as student_t

import rheoscope as rs
from rheoscope.catalogue import analysis_by_name
from rheoscope.corpus import corpus_report
from rheoscope.corpus.corpus_intervals import student_ends
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_page import save_page
from rheoscope.corpus.corpus_run import CorpusProgress, run_job
from rheoscope.corpus.drift import drift
from rheoscope.corpus.segments import MAX_SEGMENTS
from rheoscope.shapes import RheoscopeError
from rheoscope.statistics.intervals import bootstrap_t_interval
from tests.commands.cases import run_rheoscope
from tests.corpus.cases import LETTERS, job, lines, text_file, tiny_model

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path, Path]:
    """A job, the folder of its run, and the folder of another corpus that mostly repeats one letter."""
    root = tmp_path_factory.mktemp("runs")
    base_job = job(
        tiny_model(root / "model"),
        text_file(root / "one.txt", lines(40)),
        shard=10**6,
        analyses={"head_types": {}, "trajectory": {}},
    )
    run_job(base_job, root / "one")
    texts = [text.translate({ord(letter): "e" for letter in LETTERS[5:26]}) for text in lines(40, seed=1)]
    run_job(replace(base_job, texts=(text_file(root / "other.txt", texts),)), root / "other")
    return base_job, root / "one", root / "other"


def test_means_and_intervals_equal_those_of_the_rows(runs: tuple[Job, Path, Path]) -> None:
    corpus = rs.open_corpus(runs[1])
    result, rows = corpus["head_types"], corpus.sql("SELECT * FROM head_types").df()
    by_head = rows.groupby(["layer", "head"])["sink"]
    np.testing.assert_allclose(result.sink.values.ravel(), by_head.mean(), rtol=1e-6)
    np.testing.assert_allclose(result.sink_sd.values.ravel(), by_head.std(), rtol=1e-5)
    rows["off"] = rows["sink"] - by_head.transform("mean")
    rows["document"] = rows["text"] // MAX_SEGMENTS
    deviations = rows.groupby(["layer", "head", "document"])["off"].sum().groupby(["layer", "head"])
    documents = deviations.count()
    assert (documents < by_head.count()).all()
    error = np.sqrt(deviations.apply(lambda x: (x**2).sum()) * documents / (documents - 1)) / by_head.count()
    assert (result.sink_documents.values.ravel() == documents).all()
    grouped = rows.groupby(["layer", "head", "document"])["sink"]
    sums, sizes = (
        torch.tensor(x.to_numpy(np.float64).reshape(len(error), -1)) for x in (grouped.sum(), grouped.count())
    )
    for end, expected in zip((result.sink_low, result.sink_high), bootstrap_t_interval(sums, sizes), strict=True):
        np.testing.assert_allclose(end.values.ravel(), expected, rtol=1e-5)
    low, high = student_ends(corpus.field_summary("head_types", "sink").summary)  # for many documents
    quantile = student_t.ppf(0.975, documents.iloc[0] - 1)
    np.testing.assert_allclose(high - low, 2 * quantile * error, rtol=1e-5)
    medians = by_head.quantile(0.5).to_numpy()
    np.testing.assert_allclose(result.sink_quantiles.sel(quantile=0.5).values.ravel(), medians, rtol=0.02)
    assert result.sink.attrs["null"] == "sink_null"


def test_axes_have_the_labels_of_the_analysis(runs: tuple[Job, Path, Path], tmp_path: Path) -> None:
    analyses: dict[str, dict[str, Any]] = {"distortion": {}, "transport": {"draws": 0, "strides": [1, 2]}}
    texts_path = text_file(tmp_path / "few.txt", lines(3))
    run_job(replace(runs[0], analyses=analyses, texts=(texts_path,)), tmp_path / "run")
    corpus, trace = rs.open_corpus(tmp_path / "run"), rs.load(runs[0].model).trace(lines(1)[0])
    for name, settings in analyses.items():
        result, single_result = corpus[name], analysis_by_name(name).ask(trace, **{"draws": 0} | settings)
        for dim in set(result.dims) - {"quantile"}:
            assert result[dim].values.tolist() == single_result[dim].values.tolist(), (name, dim)
    rows = corpus.sql("SELECT name FROM places WHERE axis = 'image' ORDER BY place").fetchall()
    assert [name for (name,) in rows] == ["query", "key", "content"]
    assert len(corpus.examples("distortion", "rsa", layer=0, head=0, image="key"))
    with pytest.raises(RheoscopeError, match="has no image 'value'; it has 'query', 'key', 'content'"):
        corpus.examples("distortion", "rsa", layer=0, head=0, image="value")


def test_examples_are_the_largest_values_with_their_texts(runs: tuple[Job, Path, Path]) -> None:
    corpus = rs.open_corpus(runs[1])
    result = corpus.examples("head_types", "local", layer=1, head=0)
    expected = corpus.sql(
        "SELECT text, local FROM head_types WHERE layer = 1 AND head = 0 ORDER BY local DESC, text LIMIT 3"
    ).df()
    assert result["text"].tolist() == expected["text"].tolist()
    source = Path(runs[0].texts[0]).read_text().splitlines()
    assert all(row.words in source[row.line - 1] for row in result.itertuples())
    examples = corpus.examples("trajectory", "speed", smallest=True, step="L0.resid_mid")
    assert (examples["token"] < examples["tokens"]).all()


@pytest.mark.parametrize(
    ("access", "pattern"),
    [
        (lambda corpus: corpus["energy"], "has no analysis energy; its analyses are head_types, trajectory"),
        (lambda corpus: corpus.examples("head_types", "sunk", layer=0, head=0), "has no field 'sunk' of head_types"),
        (lambda corpus: corpus.examples("head_types", "sink", layer=0), "sink has the axes layer, head, got layer"),
        (lambda corpus: corpus.sql("SELECT nothing FROM head_types"), "DuckDB rejected the query"),
    ],
)
def test_unknown_names_are_refused(runs: tuple[Job, Path, Path], access: object, pattern: str) -> None:
    with pytest.raises(RheoscopeError, match=re.escape(pattern)):
        access(rs.open_corpus(runs[1]))  # type: ignore[operator]


def test_drift_is_detected_between_corpora_and_not_within_one(runs: tuple[Job, Path, Path], tmp_path: Path) -> None:
    base_job, first_folder, second_folder = runs
    head_types = drift(rs.open_corpus(first_folder), rs.open_corpus(second_folder))["head_types"]
    rows = [
        rs.open_corpus(folder).sql("SELECT * FROM head_types WHERE layer = 0 AND head = 1").df()["local"]
        for folder in (first_folder, second_folder)
    ]
    effect = (rows[1].mean() - rows[0].mean()) / np.sqrt((rows[0].var() + rows[1].var()) / 2)
    np.testing.assert_allclose(head_types.local_effect.values[0, 1], effect, rtol=1e-5)
    third_job = replace(base_job, texts=(text_file(tmp_path / "again.txt", lines(40, seed=2)),))
    run_job(third_job, tmp_path / "again")
    null_drift = drift(rs.open_corpus(first_folder), rs.open_corpus(tmp_path / "again"))
    shares = [
        np.mean(
            [
                float((data[key] <= 0.05).mean())
                for data in datasets.values()
                for key in data
                if key.endswith("_q_value")
            ]
        )
        for datasets in (drift(rs.open_corpus(first_folder), rs.open_corpus(second_folder)), null_drift)
    ]
    assert shares[0] > 0.3
    assert shares[1] < 0.02


def test_drift_needs_the_same_model(runs: tuple[Job, Path, Path], tmp_path: Path) -> None:
    few_texts = text_file(tmp_path / "few.txt", lines(2))
    untrained_job = replace(runs[0], texts=(few_texts,), untrained=True, seed=5, analyses={"head_types": {}})
    run_job(untrained_job, tmp_path / "untrained")
    with pytest.raises(RheoscopeError, match="two runs of the same model"):
        drift(rs.open_corpus(runs[1]), rs.open_corpus(tmp_path / "untrained"))


def test_the_commands_run_resume_query_and_report(runs: tuple[Job, Path, Path], tmp_path: Path) -> None:
    base_job, first_folder, _ = runs
    few_texts = text_file(tmp_path / "few.txt", lines(3))
    (tmp_path / "job.toml").write_text(
        f'texts = "{few_texts}"\nmodel = "{base_job.model}"\nlength = 40\n[analyses.head_types]\nlocal_window = 4\n'
    )
    outcome = run_rheoscope(
        "corpus", "run", "--job", str(tmp_path / "job.toml"), "--length", "32", "--out", str(tmp_path / "run")
    )
    assert outcome.status == 0, outcome.err
    assert re.search(r"1 shard, \d+ texts, [\d,]+ tokens, \d+ rejects", outcome.out)
    assert not outcome.err
    stored_job = rs.open_corpus(tmp_path / "run").manifest.job
    assert (stored_job.length, stored_job.analyses) == (32, {"head_types": {"local_window": 4}})
    assert "1 of 1 shard," in run_rheoscope("corpus", "status", str(tmp_path / "run")).out
    assert run_rheoscope("corpus", "resume", str(tmp_path / "run")).status == 0
    assert "head_types.layer_head: text, layer, head" in run_rheoscope("corpus", "query", str(first_folder)).out
    query_outcome = run_rheoscope(
        "corpus", "query", str(first_folder), "SELECT count(*) AS n FROM head_types", "--csv", str(tmp_path / "n.csv")
    )
    assert query_outcome.status == 0
    assert int((tmp_path / "n.csv").read_text().split()[1]) > 100
    page_outcome = run_rheoscope("corpus", "report", str(first_folder), "--html", str(tmp_path / "page.html"))
    assert page_outcome.status == 0, page_outcome.err
    html = (tmp_path / "page.html").read_text()
    assert all(
        pattern in html for pattern in ("Distributions: head_types", "Example texts: head_types", "95 % interval")
    )


def test_the_page_compares_two_runs(runs: tuple[Job, Path, Path], tmp_path: Path) -> None:
    _, first_folder, second_folder = runs
    save_page(first_folder, second_folder, tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    assert "Largest drift" in html
    assert "cells differ significantly (q ≤ 0.05). For the others the difference is unclear." in html


def test_an_interrupted_run_says_how_to_resume(
    runs: tuple[Job, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_job, _, _ = runs

    def interrupt(progress: CorpusProgress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "rheoscope.corpus.corpus_report.run_job",
        lambda job, folder, engine, on_progress: run_job(job, folder, engine, interrupt),
    )
    arguments = [
        "--texts",
        text_file(tmp_path / "texts.txt", lines(12)),
        "--model",
        str(base_job.model),
        "--analyses",
        "head_types",
        "--length",
        "32",
        "--shard",
        "150",
    ]
    outcome = run_rheoscope("corpus", "run", *arguments, "--out", str(tmp_path / "run"))
    assert outcome.status == 130
    assert re.fullmatch(
        r"rheoscope: stopped, \d shards? (is|are) complete; type rheoscope corpus resume \S+\n", outcome.err
    )
    monkeypatch.undo()
    assert run_rheoscope("corpus", "resume", str(tmp_path / "run")).status == 0


def test_a_terminal_shows_speed_and_rejects_and_a_pipe_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    for is_terminal in (True, False):
        out = io.StringIO()
        monkeypatch.setattr(
            corpus_report,
            "console",
            lambda stderr, out=out, is_terminal=is_terminal: Console(file=out, force_terminal=is_terminal, width=120),
        )
        with corpus_report._progress_bar() as on_progress:
            on_progress(CorpusProgress(2, 9, 40, 12_000, 3, 4.0))
        assert ("12,000 tokens, 3,000 tokens/s, 3 rejects" in out.getvalue()) == is_terminal
        assert is_terminal or not out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["run", "--texts", "no.txt", "--out", "run", "--analyses", "readout"], "there is no file no.txt"),
        (["run", "--out", "run"], "needs at least one file of texts, got none"),
        (["run", "--texts", "a.txt", "--out", "run", "--set", "readout"], "must have the form ANALYSIS.SETTING=VALUE"),
        (["run", "--job", "no.toml", "--out", "run"], "there is no file no.toml"),
        (["status", "nowhere"], "holds no corpus run"),
        (["report", "nowhere"], "holds no corpus run"),
    ],
)
def test_mistakes_are_errors_of_one_line(arguments: list[str], pattern: str, tmp_path: Path) -> None:
    outcome = run_rheoscope("corpus", *arguments, cwd=tmp_path)
    assert outcome.status == 1
    assert pattern in outcome.err
    assert outcome.err.count("\n") == 1

"""A run as xarray, SQL, examples, drift and a page; and the commands that show them."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.catalogue import analysis_by_name
from rheoscope.corpus import corpus_report
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import CorpusProgress, run_job
from rheoscope.corpus.drift import drift
from rheoscope.corpus.segments import MAX_SEGMENTS
from rheoscope.shapes import RheoscopeError
from tests.commands.cases import run_rheoscope
from tests.corpus.cases import LETTERS, job, lines, text_file, tiny_model

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path, Path]:
    """A job, the folder of its run, and that of another corpus, which says one letter again and again."""
    root = tmp_path_factory.mktemp("runs")
    asked = job(
        tiny_model(root / "model"),
        text_file(root / "one.txt", lines(40)),
        shard=10**6,
        analyses={"head_types": {}, "trajectory": {}},
    )
    run_job(asked, root / "one")
    other = [text.translate({ord(letter): "e" for letter in LETTERS[5:26]}) for text in lines(40, seed=1)]
    run_job(replace(asked, texts=(text_file(root / "other.txt", other),)), root / "other")
    return asked, root / "one", root / "other"


def test_means_and_intervals_are_those_of_the_rows(runs: tuple[Job, Path, Path]) -> None:
    corpus = rs.open_corpus(runs[1])
    found, rows = corpus["head_types"], corpus.sql("SELECT * FROM head_types").df()
    own = rows.groupby(["layer", "head"])["sink"]
    np.testing.assert_allclose(found.sink.values.ravel(), own.mean(), rtol=1e-6)
    np.testing.assert_allclose(found.sink_sd.values.ravel(), own.std(), rtol=1e-5)
    rows["off"] = rows["sink"] - own.transform("mean")
    rows["document"] = rows["text"] // MAX_SEGMENTS
    off = rows.groupby(["layer", "head", "document"])["off"].sum().groupby(["layer", "head"])
    documents = off.count()
    assert (documents < own.count()).all()
    error = np.sqrt(off.apply(lambda x: (x**2).sum()) * documents / (documents - 1)) / own.count()
    half = (1.959964 * error).to_numpy()
    assert (found.sink_documents.values.ravel() == documents).all()
    np.testing.assert_allclose((found.sink_high - found.sink_low).values.ravel(), 2 * half, rtol=1e-5)
    middle = own.quantile(0.5).to_numpy()
    np.testing.assert_allclose(found.sink_quantiles.sel(quantile=0.5).values.ravel(), middle, rtol=0.02)
    assert found.sink.attrs["null"] == "sink_null"


def test_places_have_the_names_that_the_analysis_gives_them(runs: tuple[Job, Path, Path], tmp_path: Path) -> None:
    asked: dict[str, dict[str, Any]] = {"distortion": {}, "transport": {"draws": 0, "strides": [1, 2]}}
    few = text_file(tmp_path / "few.txt", lines(3))
    run_job(replace(runs[0], analyses=asked, texts=(few,)), tmp_path / "run")
    corpus, trace = rs.open_corpus(tmp_path / "run"), rs.load(runs[0].model).trace(lines(1)[0])
    for name, settings in asked.items():
        found, alone = corpus[name], analysis_by_name(name).ask(trace, **{"draws": 0} | settings)
        for dim in set(found.dims) - {"quantile"}:
            assert found[dim].values.tolist() == alone[dim].values.tolist(), (name, dim)
    rows = corpus.sql("SELECT name FROM places WHERE axis = 'image' ORDER BY place").fetchall()
    assert [name for (name,) in rows] == ["query", "key", "content"]
    assert len(corpus.examples("distortion", "rsa", layer=0, head=0, image="key"))
    with pytest.raises(RheoscopeError, match="has no image 'value'; it has 'query', 'key', 'content'"):
        corpus.examples("distortion", "rsa", layer=0, head=0, image="value")


def test_examples_are_the_largest_with_their_words(runs: tuple[Job, Path, Path]) -> None:
    corpus = rs.open_corpus(runs[1])
    found = corpus.examples("head_types", "local", layer=1, head=0)
    every = corpus.sql(
        "SELECT text, local FROM head_types WHERE layer = 1 AND head = 0 ORDER BY local DESC, text LIMIT 3"
    ).df()
    assert found["text"].tolist() == every["text"].tolist()
    source = Path(runs[0].texts[0]).read_text().splitlines()
    assert all(row.words in source[row.line - 1] for row in found.itertuples())
    speed = corpus.examples("trajectory", "speed", smallest=True, step="L0.resid_mid")
    assert (speed["token"] < speed["tokens"]).all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda corpus: corpus["energy"], "holds no energy; it has head_types, trajectory"),
        (lambda corpus: corpus.examples("head_types", "sunk", layer=0, head=0), "holds no 'sunk' of head_types"),
        (lambda corpus: corpus.examples("head_types", "sink", layer=0), "a number for every layer, head"),
        (lambda corpus: corpus.sql("SELECT nothing FROM head_types"), "DuckDB says"),
    ],
)
def test_what_is_not_there_is_refused_by_name(runs: tuple[Job, Path, Path], wrong: object, said: str) -> None:
    with pytest.raises(RheoscopeError, match=re.escape(said)):
        wrong(rs.open_corpus(runs[1]))  # type: ignore[operator]


def test_drift_is_found_between_corpora_and_not_within_one(runs: tuple[Job, Path, Path], tmp_path: Path) -> None:
    asked, one, other = runs
    found = drift(rs.open_corpus(one), rs.open_corpus(other))["head_types"]
    rows = [
        rs.open_corpus(where).sql("SELECT * FROM head_types WHERE layer = 0 AND head = 1").df()["local"]
        for where in (one, other)
    ]
    effect = (rows[1].mean() - rows[0].mean()) / np.sqrt((rows[0].var() + rows[1].var()) / 2)
    np.testing.assert_allclose(found.local_effect.values[0, 1], effect, rtol=1e-5)
    again = replace(asked, texts=(text_file(tmp_path / "again.txt", lines(40, seed=2)),))
    run_job(again, tmp_path / "again")
    alike = drift(rs.open_corpus(one), rs.open_corpus(tmp_path / "again"))
    shares = [
        np.mean(
            [float((data[key] <= 0.05).mean()) for data in both.values() for key in data if key.endswith("_q_value")]
        )
        for both in (drift(rs.open_corpus(one), rs.open_corpus(other)), alike)
    ]
    assert shares[0] > 0.3
    assert shares[1] < 0.02


def test_drift_needs_one_model(runs: tuple[Job, Path, Path], tmp_path: Path) -> None:
    run_job(replace(runs[0], untrained=True, seed=5, analyses={"head_types": {}}), tmp_path / "untrained")
    with pytest.raises(RheoscopeError, match="two corpora in one model"):
        drift(rs.open_corpus(runs[1]), rs.open_corpus(tmp_path / "untrained"))


def test_the_commands(runs: tuple[Job, Path, Path], tmp_path: Path) -> None:
    asked, one, other = runs
    (tmp_path / "job.toml").write_text(
        f'texts = "{asked.texts[0]}"\nmodel = "{asked.model}"\nlength = 40\n[analyses.head_types]\nreach = 4\n'
    )
    ran = run_rheoscope(
        "corpus", "run", "--job", str(tmp_path / "job.toml"), "--length", "32", "--out", str(tmp_path / "run")
    )
    assert ran.status == 0, ran.err
    assert re.search(r"1 shard, \d+ texts, [\d,]+ tokens, \d+ rejects", ran.out)
    assert not ran.err
    held = rs.open_corpus(tmp_path / "run").manifest.job
    assert (held.length, held.analyses) == (32, {"head_types": {"reach": 4}})
    assert "1 of 1 shard," in run_rheoscope("corpus", "status", str(tmp_path / "run")).out
    assert run_rheoscope("corpus", "resume", str(tmp_path / "run")).status == 0
    assert "head_types.layer_head: text, layer, head" in run_rheoscope("corpus", "query", str(one)).out
    asks = run_rheoscope(
        "corpus", "query", str(one), "SELECT count(*) AS n FROM head_types", "--csv", str(tmp_path / "n.csv")
    )
    assert asks.status == 0
    assert int((tmp_path / "n.csv").read_text().split()[1]) > 100
    page = run_rheoscope("corpus", "report", str(one), "--compare", str(other), "--html", str(tmp_path / "page.html"))
    assert page.status == 0, page.err
    html = (tmp_path / "page.html").read_text()
    assert all(
        said in html
        for said in ("Distributions: head_types", "Texts: head_types", "The largest drift", "95 % interval")
    )


def test_a_run_that_is_stopped_says_how_to_go_on(
    runs: tuple[Job, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, _, _ = runs

    def stopped(progress: CorpusProgress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "rheoscope.corpus.corpus_report.run_job",
        lambda job, folder, engine, hear: run_job(job, folder, engine, stopped),
    )
    words = [
        "--texts",
        asked.texts[0],
        "--model",
        str(asked.model),
        "--analyses",
        "head_types",
        "--length",
        "32",
        "--shard",
        "300",
    ]
    done = run_rheoscope("corpus", "run", *words, "--out", str(tmp_path / "run"))
    assert done.status == 130
    assert re.fullmatch(
        r"rheoscope: stopped, \d shards? (is|are) complete; type rheoscope corpus resume \S+\n", done.err
    )
    monkeypatch.undo()
    assert run_rheoscope("corpus", "resume", str(tmp_path / "run")).status == 0


def test_a_terminal_shows_rate_and_rejects_and_a_pipe_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    for terminal in (True, False):
        out = io.StringIO()
        monkeypatch.setattr(
            corpus_report,
            "console",
            lambda stderr, out=out, is_it=terminal: Console(file=out, force_terminal=is_it, width=120),
        )
        with corpus_report._progress_bar() as hear:
            hear(CorpusProgress(2, 9, 40, 12_000, 3, 4.0))
        assert ("12,000 tokens, 3,000 tokens/s, 3 rejects" in out.getvalue()) == terminal
        assert terminal or not out.getvalue()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--texts", "no.txt", "--out", "run", "--analyses", "readout"], "there is no file no.txt"),
        (["run", "--out", "run"], "no texts were named"),
        (["run", "--texts", "a.txt", "--out", "run", "--set", "readout"], "expected ANALYSIS.SETTING=VALUE"),
        (["run", "--job", "no.toml", "--out", "run"], "there is no file no.toml"),
        (["status", "nowhere"], "holds no corpus run"),
        (["report", "nowhere"], "holds no corpus run"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    done = run_rheoscope("corpus", *words, cwd=tmp_path)
    assert done.status == 1
    assert said in done.err
    assert done.err.count("\n") == 1

"""A damaged file of a finished run is named, never read, and repaired by `resume` to the same bytes."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import rheoscope as rs
from rheoscope.corpus import corpus_run
from rheoscope.corpus.corpus_page import build_page
from rheoscope.corpus.corpus_report import show_query, show_status
from rheoscope.corpus.file_faults import DamagedRunError
from rheoscope.corpus.run_files import find_faults
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.corpus import LiveCorpusRun
from tests.attention.cases import without_jaxtyping_checks
from tests.corpus.cases import content, job, lines, text_file, tiny_model

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")
COUNTS = (
    "SELECT count(*) FROM clusters UNION ALL SELECT count(words) FROM texts UNION ALL SELECT sum(mean) FROM summary"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The folder of a finished run of two shards, and that of the same texts with another setting."""
    root = tmp_path_factory.mktemp("runs")
    model, texts = tiny_model(root / "model"), text_file(root / "texts.txt", [*lines(5), "short"])
    small_job = job(model, texts, shard=125, analyses={"clusters": {}})
    loaded_model = corpus_run.open_model(small_job)
    with pytest.MonkeyPatch.context() as patch, without_jaxtyping_checks():
        patch.setattr(corpus_run, "open_model", lambda job: loaded_model)
        with corpus_run.local_engine(small_job, root / "no run") as engine:
            facts = engine.model
        patch.setattr(corpus_run, "worker_facts", lambda worker: facts)
        corpus_run.run_job(small_job, root / "run")
        corpus_run.run_job(replace(small_job, top=2, least=13), root / "other")
        yield root / "run", root / "other"


def flip(path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def delete(path: Path, other: Path) -> None:
    path.unlink()


def swap(path: Path, other: Path) -> None:
    """Replace a file by that of the other shard; a file that exists once, by that of the other run."""
    number = {"0000000": "0000001", "0000001": "0000000"}.get(path.stem.removeprefix("part-"))
    source = path.with_name(f"part-{number}{path.suffix}") if number else other
    shutil.copy(source, path)


def readers(folder: Path) -> dict[str, Callable[[], object]]:
    """Everything that answers from a run."""
    return {
        "status": lambda: show_status(folder),
        "query": lambda: show_query(folder, COUNTS, None),
        "tables": lambda: show_query(folder, "", None),
        "open_corpus": lambda: print(rs.open_corpus(folder)["clusters"].to_dict()),
        "page": lambda: print(LiveCorpusRun(folder, "default").to_json()),
        "report": lambda: print(build_page(rs.open_corpus(folder))),
    }


@pytest.mark.parametrize(("damage", "shard"), [(flip, 0), (truncate, 1), (delete, 0), (swap, 1)])
def test_damage_is_found_never_answered_from_and_repaired(
    damage: Callable[[Path, Path], None],
    shard: int,
    runs: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, other_run = runs
    intact, folder = content(run), tmp_path / "run"
    shutil.copytree(run, folder)

    def answers() -> dict[str, str]:
        result = {}
        for name, read in readers(folder).items():
            try:
                read()
            except RheoscopeError as error:
                result[name] = str(error)
            result[name] = result.get(name, "") + capsys.readouterr().out
        return result

    expected = answers()
    assert len(intact) == 15  # two shards with five files each, and five files of the run
    for name in (name for name in intact if f"part-000000{1 - shard}" not in name):
        damage(folder / name, other_run / name)
        assert content(folder) != intact, name
        with pytest.raises(DamagedRunError, match=name):
            show_status(folder, deep=True)
        assert [reader for reader, text in answers().items() if text != expected[reader] and name not in text] == []
        capsys.readouterr()
        corpus_run.resume(folder)
        assert name in capsys.readouterr().err
        assert content(folder) == intact, name
    assert find_faults(folder) == []


def test_a_checked_digest_is_cached_by_size_and_time_except_in_a_deep_check(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[0], folder)
    texts = folder / "texts" / "part-0000001.parquet"
    before = texts.stat()
    words = rs.open_corpus(folder).sql("SELECT words FROM texts").fetchall()
    assert len(words) == 6
    flip(texts, texts)
    os.utime(texts, ns=(before.st_atime_ns, before.st_mtime_ns))
    rs.open_corpus(folder).sql("SELECT count(*) FROM texts")  # its damage cannot be seen from size and time
    assert [fault.path for fault in find_faults(folder)] == ["texts/part-0000001.parquet"]
    os.utime(texts, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    corpus = rs.open_corpus(folder)
    assert corpus.sql("SELECT count(*) FROM clusters").fetchall()  # does not read the texts
    with pytest.raises(DamagedRunError, match=r"run is damaged: texts/part-0000001.parquet is not as it was written"):
        corpus.sql("SELECT count(*) FROM texts")


def test_an_open_page_answers_no_more_after_damage(runs: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[0], folder)
    page = LiveCorpusRun(folder, "default")
    assert page.to_json()["texts"] == 6
    delete(folder / "texts" / "part-0000001.parquet", folder)
    with pytest.raises(DamagedRunError, match=r"run is damaged: texts/part-0000001.parquet is missing"):
        page.to_json()


def test_two_damaged_manifests_are_an_error_of_one_line(runs: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[0], folder)
    for name in ("manifest.json", "manifest.copy.json"):
        truncate(folder / name, folder)
    with pytest.raises(RheoscopeError, match=r"both copies of the manifest of .* are damaged; run the corpus again"):
        corpus_run.resume(folder)
    (folder / "manifest.copy.json").unlink()
    with pytest.raises(RheoscopeError, match="was written by an earlier version, or its manifest is damaged"):
        rs.open_corpus(folder)

"""Whole runs: numbers as of one text at a time, the same bytes however they came about, and one line for what stops a run."""

import errno
import fcntl
import gzip
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.catalogue import analysis_by_name
from rheoscope.corpus import parquet_tables as written
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import LocalEngine, resume, run_job
from rheoscope.corpus.disk_space import RetryingWriter
from rheoscope.corpus.distributed_run import ray_engine
from rheoscope.corpus.shard_worker import Worker
from rheoscope.shapes import RheoscopeError
from tests.corpus.cases import ASKED, content, job, lines, text_file, tiny_model

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
TEXTS = [*lines(30), "too short", "b" * 40]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def first(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """A job and the folder of its run, which nothing disturbed. Shared: change nothing in it."""
    root = tmp_path_factory.mktemp("first")
    asked = job(model, text_file(root / "texts.txt", TEXTS))
    run_job(asked, root / "run")
    return asked, root / "run"


def table(folder: Path, name: str) -> Any:
    import pyarrow as pa

    return pa.concat_tables([pq.read_table(file) for file in sorted((folder / name).glob("*.parquet"))]).to_pandas()


def test_numbers_are_those_of_one_text_at_a_time(first: tuple[Job, Path]) -> None:
    asked, folder = first
    model, texts = rs.load(asked.model), table(folder, "texts").set_index("text")
    assert len(texts) > 20
    for name, settings in ASKED.items():
        one = analysis_by_name(name)
        heads = table(folder, f"rows/{name}.layer_head").set_index(["text", "layer", "head"])
        for text, piece in texts.iloc[::7].iterrows():
            trace = model.trace(piece["words"])
            assert len(trace) == piece["tokens"]
            alone = one.ask(*({"model": model, "trace": trace}[subject] for subject in one.subjects), **settings)
            for field in heads.columns:
                np.testing.assert_allclose(
                    heads.loc[text][field].to_numpy().reshape(2, 2),
                    alone[field].values,
                    rtol=2e-4,
                    atol=1e-5,
                    err_msg=field,
                )


def test_numbers_of_tokens_stand_in_rows_and_their_means_in_texts(first: tuple[Job, Path], tmp_path: Path) -> None:
    asked, folder = first
    run_job(replace(asked, tokens=True, analyses={"trajectory": {"draws": 4}}), tmp_path / "run")
    each = table(tmp_path / "run", "rows/trajectory.step_token")
    means = each.groupby(["text", "step"])["speed"].mean()
    stored = table(folder, "rows/trajectory.step").set_index(["text", "step"])["speed"]
    np.testing.assert_allclose(means.to_numpy(), stored.to_numpy(), rtol=1e-5)
    tokens = table(folder, "texts").set_index("text")["tokens"]
    assert (each.groupby("text")["token"].max() < tokens).all()


@pytest.mark.parametrize("changed", [{"batch": 32}, {"batch": 10_000}, {"shard": 10_000}], ids=str)
def test_batches_padding_and_shards_change_nothing_beyond_rounding(
    changed: dict[str, Any], first: tuple[Job, Path], tmp_path: Path
) -> None:
    asked, folder = first
    run_job(replace(asked, **changed), tmp_path / "run")
    one, other = (table(where, "rows/agreement.layer_head") for where in (folder, tmp_path / "run"))
    assert one[["text", "layer", "head"]].equals(other[["text", "layer", "head"]])
    np.testing.assert_allclose(one.to_numpy(float), other.to_numpy(float), atol=1e-4)


def test_packed_texts_are_traced_as_they_stand(first: tuple[Job, Path], tmp_path: Path) -> None:
    asked, _ = first
    run_job(replace(asked, pack=True, join=" ", analyses={"head_types": {}}), tmp_path / "run")
    texts, model = table(tmp_path / "run", "texts"), rs.load(asked.model)
    assert (texts["tokens"] == 32).mean() > 0.7
    found = table(tmp_path / "run", "rows/head_types.layer_head").groupby("text")["sink"].apply(list)
    for text, words in texts[["text", "words"]].iloc[:3].itertuples(index=False):
        alone = rs.head_types(model, model.trace(words)).sink.values.ravel()
        np.testing.assert_allclose(found[text], alone, rtol=2e-4)


def test_a_second_run_and_a_resumed_one_have_the_same_bytes(first: tuple[Job, Path], tmp_path: Path) -> None:
    asked, folder = first
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_job(asked, run, on_progress=_interrupting(1))
    assert 0 < len(list((run / "done").iterdir())) < len(list((folder / "done").iterdir()))
    resume(run)
    assert content(run) == content(folder)
    before = {name: (run / name).stat().st_mtime_ns for name in content(run) if name.startswith(("rows", "done"))}
    assert run_job(asked, run).tokens == 0
    assert {name: (run / name).stat().st_mtime_ns for name in before} == before


def _interrupting(after: int) -> Any:
    def hear(progress: Any) -> None:
        if progress.shards_done == after:
            raise KeyboardInterrupt

    return hear


def test_what_a_killed_worker_was_writing_does_not_stay(first: tuple[Job, Path], tmp_path: Path) -> None:
    asked, folder = first

    def torn(progress: Any) -> None:
        place = next((tmp_path / "run" / "rows").iterdir())
        (place / ".part-0000001-torn.parquet").write_bytes(b"PAR1")

    run_job(asked, tmp_path / "run", on_progress=torn)
    assert content(tmp_path / "run") == content(folder)


def test_the_order_of_shards_does_not_show(first: tuple[Job, Path], tmp_path: Path) -> None:
    from contextlib import contextmanager

    @contextmanager
    def backwards(asked: Job, folder: Path) -> Iterator[Any]:
        worker = Worker(asked, folder, rs.load(asked.model))

        class Reversed(LocalEngine):
            def work(self, inputs: Any, shards: Any) -> Any:
                return super().process_shards(inputs, shards[::-1])

        yield Reversed(worker)
        worker.close()

    asked, folder = first
    run_job(asked, tmp_path / "run", backwards)
    assert content(tmp_path / "run") == content(folder)


def test_what_has_no_batch_is_asked_text_by_text(first: tuple[Job, Path], tmp_path: Path) -> None:
    asked, _ = first
    run_job(replace(asked, analyses={"transport": {"draws": 2}, "clusters": {}}, shard=10**6), tmp_path / "run")
    found = rs.open_corpus(tmp_path / "run")["transport"]
    assert found.kappa.dims == ("step",)
    assert not bool(found.kappa.isnull().any())


# What goes wrong


def test_rows_without_a_text_are_told_and_the_run_goes_on(model: str, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl.gz"
    rows = [
        b'{"text": "abcdefghijklmnopqrstu"}',
        b"{",
        b'{"text": "\xff\xfe"}',
        b'{"text": "abc"}',
        b'{"text": "' + b"a" * 2**22 + b'"}',
    ]
    file.write_bytes(gzip.compress(b"\n".join([*rows, b'{"text": "' + b"z" * 30 + b'"}']), 1))
    progress = run_job(job(model, str(file), analyses={"agreement": {"draws": 0, "min_keys": 25}}), tmp_path / "run")
    told = table(tmp_path / "run", "rejects")
    assert progress.texts == 2
    assert told["line"].tolist() == [1, 2, 3, 4, 5]
    assert told["analysis"].tolist() == ["agreement", "", "", "", ""]
    words = ["at least 25 other keys", "no JSON", "no UTF-8", "fewer than 12 tokens", "4 MB"]
    assert all(word in reason for word, reason in zip(words, told["reason"], strict=True))
    assert set(told["file"]) == {str(file)}
    assert table(tmp_path / "run", "rows/agreement.layer_head")["text"].nunique() == 1


def without_room(monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
    """A disk on which there is no room from one write on to another."""
    calls = iter(range(10_000))

    def full(table: Any, path: Path, **how: Any) -> None:
        path.write_bytes(b"torn")
        if first <= next(calls) < last:
            raise OSError(errno.ENOSPC, "No space left on device")
        pq_write(table, path, **how)

    pq_write = pq.write_table
    monkeypatch.setattr(pq, "write_table", full)


def test_a_full_disk_is_waited_for_and_nothing_is_missing(
    first: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, folder = first
    monkeypatch.setattr("rheoscope.corpus.disk_space.RETRY_PAUSES", (0.0,) * 9)
    without_room(monkeypatch, 11, 15)
    run_job(asked, tmp_path / "run")
    told = capsys.readouterr().err
    assert told.count("is full; make room within") == 1
    assert f"the disk of {tmp_path / 'run'} is full" in told
    assert content(tmp_path / "run") == content(folder)


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "summary"])
def test_a_disk_that_stays_full_leaves_nothing_torn_and_the_run_goes_on_later(
    first: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: bool
) -> None:
    asked, folder = first
    monkeypatch.setattr("rheoscope.corpus.disk_space.RETRY_PAUSES", (0.0,))
    files = sum(name.endswith(".parquet") for name in content(folder))
    without_room(monkeypatch, 11 if rows else files - 1, 10_000)
    with pytest.raises(RheoscopeError, match=f"the disk is full; .* rheoscope corpus resume {tmp_path / 'run'}$"):
        run_job(asked, tmp_path / "run")
    assert all(data != b"torn" for data in content(tmp_path / "run").values())
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert content(tmp_path / "run") == content(folder)


def test_who_waits_for_room_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_room(monkeypatch, 0, 10_000)
    room, found = RetryingWriter(), Future[None]()

    def wait() -> None:
        try:
            room.write(tmp_path / "part.parquet", pa.table({}))
        except RheoscopeError as error:
            found.set_exception(error)

    thread = threading.Thread(target=wait)
    thread.start()
    room.close()
    thread.join()
    with pytest.raises(RheoscopeError, match="the disk is full"):
        found.result(0)


def test_without_a_lock_of_the_kernels_nothing_is_begun(
    first: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where a run can still be read."""
    asked, folder = first
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(RheoscopeError, match="need file locks, which Windows lacks; use WSL, Linux or macOS"):
        run_job(asked, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert rs.open_corpus(folder).analyses == list(ASKED)


def test_another_job_in_the_same_folder_is_refused(first: tuple[Job, Path], tmp_path: Path) -> None:
    asked, folder = first
    with pytest.raises(RheoscopeError, match=r"holds another run .*length 32, not 16.*; type another --out"):
        run_job(replace(asked, length=16), folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(RheoscopeError, match="holds no corpus run"):
        run_job(asked, tmp_path / "mine")


def test_a_changed_input_is_refused_and_a_touched_one_is_not(model: str, tmp_path: Path) -> None:
    file = Path(text_file(tmp_path / "texts.txt", TEXTS[:6]))
    asked = job(model, str(file), analyses={"head_types": {}})
    run_job(asked, tmp_path / "run")
    os.utime(file, (1, 1))
    run_job(asked, tmp_path / "run")
    file.write_text(file.read_text().replace("a", "b"))
    with pytest.raises(RheoscopeError, match="input files"):
        resume(tmp_path / "run")


def test_an_input_that_changes_while_it_is_read_stops_the_run(model: str, tmp_path: Path) -> None:
    file = Path(text_file(tmp_path / "texts.txt", TEXTS))

    def spoil(progress: Any) -> None:
        file.write_text(file.read_text().upper())

    with pytest.raises(RheoscopeError, match="has changed since the work was planned"):
        run_job(job(model, str(file), analyses={"head_types": {}}, shard=100), tmp_path / "run", on_progress=spoil)


def test_a_second_driver_is_refused(first: tuple[Job, Path]) -> None:
    asked, folder = first
    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RheoscopeError, match=r"is in use by process .* on "):
            run_job(asked, folder)


def test_what_cannot_work_stops_at_once(model: str, tmp_path: Path) -> None:
    texts = text_file(tmp_path / "texts.txt", TEXTS)
    for changed, said in [
        ({"model": str(tmp_path / "no model")}, "no model"),
        ({"length": 1000}, "reads at most 64 tokens"),
        ({"analyses": {"operators": {}}}, "is not asked of one text"),
        ({"analyses": {"agreement": {"drawn": 3}}}, "has no setting 'drawn'"),
        ({"analyses": {"nothing": {}}}, "there is no analysis"),
        ({"least": 40}, "type a smaller --least"),
        ({"batch": 0}, "batch is a whole number"),
        ({"texts": ("nowhere.txt",)}, "there is no file nowhere.txt"),
    ]:
        with pytest.raises(RheoscopeError, match=said):
            run_job(replace(job(model, texts), **changed), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with pytest.raises(RheoscopeError, match="cannot write"):
        run_job(job(model, texts), tmp_path / "texts.txt" / "run")


def test_without_pyarrow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(RheoscopeError, match=r"pip install 'rheoscope\[corpus\]'"):
        written.import_parquet()


def test_without_ray_it_says_what_to_install(first: tuple[Job, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(RheoscopeError, match=r"pip install 'rheoscope\[corpus\]', or --workers 0"):
        run_job(*first, ray_engine)


def test_threads_do_not_stay(first: tuple[Job, Path]) -> None:
    import threading

    assert not [one for one in threading.enumerate() if one.name.startswith("corpus-")]
    assert torch.is_grad_enabled()
    assert sys.getswitchinterval() == pytest.approx(5e-3)

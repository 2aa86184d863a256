"""Corpus runs: results of single texts, the same bytes however they were computed, and errors of one line."""

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
from rheoscope.corpus import parquet_tables
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import LocalEngine, resume, run_job
from rheoscope.corpus.disk_space import RetryingWriter
from rheoscope.corpus.distributed_run import ray_engine
from rheoscope.corpus.shard_worker import Worker
from rheoscope.shapes import RheoscopeError
from tests.corpus.cases import ANALYSES, content, job, lines, text_file, tiny_model

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
TEXTS = [*lines(14), "too short", "b" * 40]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """A job and the folder of its uninterrupted run. It is shared and must not be changed."""
    root = tmp_path_factory.mktemp("first")
    base_job = job(model, text_file(root / "texts.txt", TEXTS), shard=220)
    run_job(base_job, root / "run")
    return base_job, root / "run"


@pytest.fixture(scope="module")
def brief(reference: tuple[Job, Path]) -> tuple[Job, Path]:
    """The same with one analysis, which has random draws. It is shared and must not be changed."""
    brief_job, folder = replace(reference[0], analyses={"trajectory": {"draws": 4}}), reference[1].with_name("brief")
    run_job(brief_job, folder)
    return brief_job, folder


def table(folder: Path, name: str) -> Any:
    import pyarrow as pa

    return pa.concat_tables([pq.read_table(file) for file in sorted((folder / name).glob("*.parquet"))]).to_pandas()


def test_results_equal_those_of_single_texts(reference: tuple[Job, Path]) -> None:
    base_job, folder = reference
    model, texts = rs.load(base_job.model), table(folder, "texts").set_index("text")
    assert len(texts) > 14
    for name, settings in ANALYSES.items():
        analysis = analysis_by_name(name)
        heads = table(folder, f"rows/{name}.layer_head").set_index(["text", "layer", "head"])
        for text, piece in texts.iloc[::4].iterrows():
            trace = model.trace(piece["words"])
            assert len(trace) == piece["tokens"]
            single_result = analysis.ask(
                *({"model": model, "trace": trace}[subject] for subject in analysis.subjects), **settings
            )
            for field in heads.columns:
                np.testing.assert_allclose(
                    heads.loc[text][field].to_numpy().reshape(2, 2),
                    single_result[field].values,
                    rtol=2e-4,
                    atol=1e-5,
                    err_msg=field,
                )


def test_token_values_are_rows_and_their_means_are_text_values(reference: tuple[Job, Path], tmp_path: Path) -> None:
    base_job, folder = reference
    run_job(replace(base_job, tokens=True, analyses={"trajectory": {"draws": 4}}), tmp_path / "run")
    token_rows = table(tmp_path / "run", "rows/trajectory.step_token")
    means = token_rows.groupby(["text", "step"])["speed"].mean()
    text_means = table(folder, "rows/trajectory.step").set_index(["text", "step"])["speed"]
    np.testing.assert_allclose(means.to_numpy(), text_means.to_numpy(), rtol=1e-5)
    tokens = table(folder, "texts").set_index("text")["tokens"]
    assert (token_rows.groupby("text")["token"].max() < tokens).all()


@pytest.mark.parametrize("changes", [{"batch": 32}, {"batch": 10_000}, {"shard": 10_000}], ids=str)
def test_batches_and_shards_change_only_rounding(
    changes: dict[str, Any], reference: tuple[Job, Path], tmp_path: Path
) -> None:
    base_job, folder = reference
    run_job(replace(base_job, analyses={"agreement": ANALYSES["agreement"]}, **changes), tmp_path / "run")
    reference_rows, other_rows = (table(where, "rows/agreement.layer_head") for where in (folder, tmp_path / "run"))
    assert reference_rows[["text", "layer", "head"]].equals(other_rows[["text", "layer", "head"]])
    np.testing.assert_allclose(reference_rows.to_numpy(float), other_rows.to_numpy(float), atol=1e-4)


def test_packed_texts_give_the_results_of_their_content(reference: tuple[Job, Path], tmp_path: Path) -> None:
    base_job, _ = reference
    run_job(replace(base_job, pack=True, join=" ", analyses={"head_types": {}}), tmp_path / "run")
    texts, model = table(tmp_path / "run", "texts"), rs.load(base_job.model)
    assert (texts["tokens"] == 32).mean() > 0.7
    values_by_text = table(tmp_path / "run", "rows/head_types.layer_head").groupby("text")["sink"].apply(list)
    for text, text_content in texts[["text", "words"]].iloc[:3].itertuples(index=False):
        single_result = rs.head_types(model, model.trace(text_content)).sink.values.ravel()
        np.testing.assert_allclose(values_by_text[text], single_result, rtol=2e-4)


def test_a_second_run_and_a_resumed_one_have_the_same_bytes(brief: tuple[Job, Path], tmp_path: Path) -> None:
    base_job, folder = brief
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_job(base_job, run, on_progress=interrupt_after(1))
    assert 0 < len(list((run / "done").iterdir())) < len(list((folder / "done").iterdir()))
    resume(run)
    assert content(run) == content(folder)
    times_before = {name: (run / name).stat().st_mtime_ns for name in content(run) if name.startswith(("rows", "done"))}
    assert run_job(base_job, run).tokens == 0
    assert {name: (run / name).stat().st_mtime_ns for name in times_before} == times_before


def interrupt_after(n_shards: int) -> Any:
    def on_progress(progress: Any) -> None:
        if progress.shards_done == n_shards:
            raise KeyboardInterrupt

    return on_progress


def test_partial_files_are_removed(brief: tuple[Job, Path], tmp_path: Path) -> None:
    base_job, folder = brief

    def leave_partial_file(progress: Any) -> None:
        folder_of_rows = next((tmp_path / "run" / "rows").iterdir())
        (folder_of_rows / ".part-0000001-torn.parquet").write_bytes(b"PAR1")

    run_job(base_job, tmp_path / "run", on_progress=leave_partial_file)
    assert content(tmp_path / "run") == content(folder)


def test_the_order_of_shards_does_not_matter(brief: tuple[Job, Path], tmp_path: Path) -> None:
    from contextlib import contextmanager

    @contextmanager
    def reversed_engine(base_job: Job, folder: Path) -> Iterator[Any]:
        worker = Worker(base_job, folder, rs.load(base_job.model))

        class ReversedEngine(LocalEngine):
            def process_shards(self, inputs: Any, shards: Any) -> Any:
                return super().process_shards(inputs, shards[::-1])

        yield ReversedEngine(worker)
        worker.close()

    base_job, folder = brief
    run_job(base_job, tmp_path / "run", reversed_engine)
    assert content(tmp_path / "run") == content(folder)


def test_analyses_without_a_batched_version_run_text_by_text(model: str, tmp_path: Path) -> None:
    texts = text_file(tmp_path / "texts.txt", TEXTS[:4])
    run_job(job(model, texts, analyses={"transport": {"draws": 2}, "clusters": {}}), tmp_path / "run")
    result = rs.open_corpus(tmp_path / "run")["transport"]
    assert result.kappa.dims == ("step",)
    assert not bool(result.kappa.isnull().any())


# Errors


def test_unusable_rows_are_rejected_and_the_run_continues(model: str, tmp_path: Path) -> None:
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
    rejects = table(tmp_path / "run", "rejects")
    assert progress.texts == 2
    assert rejects["line"].tolist() == [1, 2, 3, 4, 5]
    assert rejects["analysis"].tolist() == ["agreement", "", "", "", ""]
    patterns = ["at least 25 other keys", "invalid JSON", "invalid UTF-8", "fewer than 12 tokens", "4 MB"]
    assert all(pattern in reason for pattern, reason in zip(patterns, rejects["reason"], strict=True))
    assert set(rejects["file"]) == {str(file)}
    assert table(tmp_path / "run", "rows/agreement.layer_head")["text"].nunique() == 1


def fill_disk(monkeypatch: pytest.MonkeyPatch, first_failure: int, last_failure: int) -> None:
    """Simulate a disk that is full from one write to another."""
    calls = iter(range(10_000))

    def write_or_fail(table: Any, path: Path, **options: Any) -> None:
        path.write_bytes(b"torn")
        if first_failure <= next(calls) < last_failure:
            raise OSError(errno.ENOSPC, "No space left on device")
        pq_write(table, path, **options)

    pq_write = pq.write_table
    monkeypatch.setattr(pq, "write_table", write_or_fail)


def test_a_run_waits_for_a_full_disk(
    brief: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base_job, folder = brief
    monkeypatch.setattr("rheoscope.corpus.disk_space.RETRY_PAUSES", (0.0,) * 9)
    fill_disk(monkeypatch, 11, 15)
    run_job(base_job, tmp_path / "run")
    warning = capsys.readouterr().err
    assert warning.count("is full; free space within") == 1
    assert f"the disk of {tmp_path / 'run'} is full" in warning
    assert content(tmp_path / "run") == content(folder)


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "summary"])
def test_a_disk_that_stays_full_leaves_no_partial_files(
    brief: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: bool
) -> None:
    base_job, folder = brief
    monkeypatch.setattr("rheoscope.corpus.disk_space.RETRY_PAUSES", (0.0,))
    files = sum(name.endswith(".parquet") for name in content(folder))
    fill_disk(monkeypatch, 11 if rows else files - 1, 10_000)
    with pytest.raises(RheoscopeError, match=f"the disk is full; .* rheoscope corpus resume {tmp_path / 'run'}$"):
        run_job(base_job, tmp_path / "run")
    assert all(data != b"torn" for data in content(tmp_path / "run").values())
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert content(tmp_path / "run") == content(folder)


def test_waiting_for_disk_space_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(monkeypatch, 0, 10_000)
    writer, outcome = RetryingWriter(tmp_path), Future[None]()

    def wait() -> None:
        try:
            writer.write_table("part.parquet", pa.table({}))
        except RheoscopeError as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=wait)
    thread.start()
    writer.close()
    thread.join()
    with pytest.raises(RheoscopeError, match="the disk is full"):
        outcome.result(0)


def test_without_file_locks_no_run_starts(
    reference: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where an existing run can still be read."""
    base_job, folder = reference
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(
        RheoscopeError, match="a run locks its folder, which Windows cannot do: run it in WSL, on Linux or on macOS"
    ):
        run_job(base_job, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert rs.open_corpus(folder).analyses == list(ANALYSES)


def test_another_job_in_the_same_folder_is_refused(reference: tuple[Job, Path], tmp_path: Path) -> None:
    base_job, folder = reference
    with pytest.raises(
        RheoscopeError, match=r"holds another run .*length is 32 there, 16 here.*; choose another folder"
    ):
        run_job(replace(base_job, length=16), folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(RheoscopeError, match="holds no corpus run"):
        run_job(base_job, tmp_path / "mine")


def test_a_changed_input_is_refused_and_a_touched_one_is_not(model: str, tmp_path: Path) -> None:
    file = Path(text_file(tmp_path / "texts.txt", TEXTS[:6]))
    base_job = job(model, str(file), analyses={"head_types": {}})
    run_job(base_job, tmp_path / "run")
    os.utime(file, (1, 1))
    run_job(base_job, tmp_path / "run")
    file.write_text(file.read_text().replace("a", "b"))
    with pytest.raises(RheoscopeError, match="input files"):
        resume(tmp_path / "run")


def test_an_input_that_changes_while_it_is_read_stops_the_run(model: str, tmp_path: Path) -> None:
    file = Path(text_file(tmp_path / "texts.txt", TEXTS))

    def change_input(progress: Any) -> None:
        file.write_text(file.read_text().upper())

    with pytest.raises(RheoscopeError, match=r"has changed in rows .* since the run started"):
        run_job(
            job(model, str(file), analyses={"head_types": {}}, shard=100), tmp_path / "run", on_progress=change_input
        )


def test_a_second_driver_is_refused(reference: tuple[Job, Path]) -> None:
    base_job, folder = reference
    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RheoscopeError, match=r"is in use by process .* on "):
            run_job(base_job, folder)


def test_invalid_jobs_stop_before_anything_is_written(model: str, tmp_path: Path) -> None:
    texts = text_file(tmp_path / "texts.txt", TEXTS)
    for changes, pattern in [
        ({"model": str(tmp_path / "no model")}, "no model"),
        ({"length": 1000}, "length must be at most 64"),
        ({"analyses": {"operators": {}}}, "does not run on single texts"),
        ({"analyses": {"agreement": {"drawn": 3}}}, "has no setting 'drawn'"),
        ({"analyses": {"nothing": {}}}, "there is no analysis"),
        ({"least": 40}, r"least \(40\) is larger than length \(32\); type least=32"),
        ({"batch": 0}, "batch must be an integer of at least 1, got 0"),
        ({"texts": ("nowhere.txt",)}, "there is no file nowhere.txt"),
    ]:
        with pytest.raises(RheoscopeError, match=pattern):
            run_job(replace(job(model, texts), **changes), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with pytest.raises(RheoscopeError, match="cannot write"):
        run_job(job(model, texts), tmp_path / "texts.txt" / "run")


def test_a_missing_pyarrow_is_an_error_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(RheoscopeError, match=r"pip install 'rheoscope\[corpus\]'"):
        parquet_tables.import_parquet()


def test_a_missing_ray_is_an_error_with_the_install_command(
    reference: tuple[Job, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(RheoscopeError, match=r"pip install 'rheoscope\[corpus\]', or --workers 0"):
        run_job(*reference, ray_engine)


def test_threads_and_settings_are_cleaned_up(reference: tuple[Job, Path]) -> None:
    import threading

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("corpus-")]
    assert torch.is_grad_enabled()
    assert sys.getswitchinterval() == pytest.approx(5e-3)

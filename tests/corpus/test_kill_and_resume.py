"""A run that is killed at any point resumes to the bytes of an uninterrupted run.

The test process loads the model once. Each run is a fork of it that kills itself at a given call of a function: while a
segment is cut, while a batch is computed, or when a file is flushed to the disk. The test process then resumes the run.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rheoscope.corpus import corpus_run, shard_worker
from rheoscope.corpus.commit_records import finished_shards
from rheoscope.corpus.corpus_job import Job
from tests.attention.cases import without_jaxtyping_checks
from tests.corpus.cases import content, job, lines, text_file, tiny_model
from tests.processes import run_in_fork

pytest.importorskip("pyarrow")
KILL_POINTS: list[tuple[Any, str, int]] = [
    *((os, "fsync", n_calls) for n_calls in (0, 1, 2, 3, 7, 13, 30, 40)),
    *((shard_worker, "cut_segments", n_calls) for n_calls in (0, 3)),
    *((shard_worker, "run_request", n_calls) for n_calls in (0, 3)),
]
"""A module, one of its functions, and the number of calls that return before the process is killed."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Job, dict[str, bytes]]]:
    """A job and the files of its uninterrupted run."""
    root = tmp_path_factory.mktemp("reference")
    model, texts = tiny_model(root / "model"), text_file(root / "texts.txt", lines(10))
    small_job = job(model, texts, shard=90, analyses={"clusters": {}})
    loaded_model = corpus_run.open_model(small_job)
    with pytest.MonkeyPatch.context() as patch, without_jaxtyping_checks():
        patch.setattr(corpus_run, "open_model", lambda job: loaded_model)
        with corpus_run.local_engine(small_job, root / "no run") as engine:
            facts = engine.model
        patch.setattr(corpus_run, "worker_facts", lambda worker: facts)
        corpus_run.run_job(small_job, root / "warm up")  # imports happen here, not in every fork
        outcome = run_in_fork(lambda: corpus_run.run_job(small_job, root / "run"))
        assert outcome.returncode == 0, outcome.stderr
        assert len(finished_shards(root / "run")) >= 4
        yield small_job, content(root / "run")


def kill_after(function: Callable[..., Any], n_calls: int) -> Callable[..., Any]:
    """The function, except that the process is killed at the call after `n_calls`."""
    remaining = iter(range(n_calls))

    def call_or_die(*arguments: Any, **options: Any) -> Any:
        if next(remaining, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return call_or_die


def run_and_die(run_job: Job, folder: Path, module: Any, name: str, n_calls: int) -> None:
    """Run a job in a fork; the replaced function exists only there."""
    setattr(module, name, kill_after(getattr(module, name), n_calls))
    corpus_run.run_job(run_job, folder)


@pytest.mark.parametrize(
    ("module", "name", "n_calls"), KILL_POINTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_killed_run_resumes_to_the_same_bytes(
    module: Any, name: str, n_calls: int, reference: tuple[Job, dict[str, bytes]], tmp_path: Path
) -> None:
    killed_job, expected = reference
    folder = tmp_path / "run"
    killed = run_in_fork(lambda: run_and_die(killed_job, folder, module, name, n_calls))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    corpus_run.run_job(killed_job, folder)
    files = content(folder)
    assert [file for file in {**files, **expected} if files.get(file) != expected.get(file)] == []

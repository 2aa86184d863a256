"""kill −9 at any moment: after resume every byte is that of a run that nothing disturbed.

This process opens the model; each run is a fork of it, killed after a share of the time that a whole run takes, or at one of the
moments at which a file becomes permanent.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rheoscope.corpus import corpus_run
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.shards import finished_shards
from tests.attention.cases import without_jaxtyping_checks
from tests.corpus.cases import content, job, lines, text_file, tiny_model
from tests.processes import Fork, run_in_fork

pytest.importorskip("pyarrow")
MOMENTS = 16


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """What every run does, done once: what a process imports, opens and plans, no run does again."""
    model, texts = tiny_model(tmp_path / "model"), text_file(tmp_path / "texts.txt", lines(14))
    asked = job(model, texts, shard=125, analyses={"clusters": {}})
    opened = corpus_run.open_model(asked)
    monkeypatch.setattr(corpus_run, "open_model", lambda job: opened)
    corpus_run.run_job(asked, tmp_path / "before")
    return asked


def dying(calls: int) -> Callable[[Any], None]:
    """fsync, but that the call after so many is the last thing that its process does."""
    sync, left = os.fsync, iter(range(calls))

    def sync_or_die(file: Any) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(file)

    return sync_or_die


def run(asked: Job, folder: Path, dies_at: int | None = None) -> None:
    if dies_at is not None:
        os.fsync = dying(dies_at)
    corpus_run.run_job(asked, folder)


def test_killed_at_random_moments_it_resumes_to_the_same_bytes(asked: Job, tmp_path: Path) -> None:
    draw, killed, begun = random.Random(0), 0, time.monotonic()
    with without_jaxtyping_checks():
        first = run_in_fork(lambda: run(asked, tmp_path / "whole"))
        assert first.returncode == 0, first.stderr
        takes, whole = time.monotonic() - begun, content(tmp_path / "whole")
        assert len(finished_shards(tmp_path / "whole")) >= 4
        for moment in range(MOMENTS):
            folder = tmp_path / f"run{moment}"
            if moment % 2:
                dies_at = moment // 2 if moment < 8 else draw.randrange(4, 2 * len(whole) - 2)
                status = run_in_fork(lambda: run(asked, folder, dies_at)).returncode
            else:
                with Fork(lambda: run(asked, folder)) as child:
                    time.sleep(draw.uniform(0, 0.8 * takes))  # the last moments are those of files
                    os.kill(child.pid, signal.SIGKILL)
                    status = child.done().returncode
            killed += status == -signal.SIGKILL
            again = run_in_fork(lambda: run(asked, folder))
            assert again.returncode == 0, (moment, again.stderr)
            found = content(folder)
            apart = [name for name in {**found, **whole} if found.get(name) != whole.get(name)]
            assert not apart, moment
    assert killed >= MOMENTS - 4, "most runs were killed before their end"

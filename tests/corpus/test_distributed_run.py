"""A corpus run on Ray: the same bytes on two nodes, and after workers, nodes and drivers are killed."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rheoscope.corpus.commit_records import finished_shards
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import resume, run_job
from rheoscope.corpus.distributed_run import ray_engine
from rheoscope.shapes import RheoscopeError
from tests.cluster import workers
from tests.corpus.cases import content, job, lines, text_file, tiny_model

pytest.importorskip("ray", reason="needs Ray: pip install 'rheoscope[corpus]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """A job and its uninterrupted run in one process."""
    root = tmp_path_factory.mktemp("whole")
    base_job = job(tiny_model(root / "model"), text_file(root / "texts.txt", lines(60)), shard=200)
    run_job(base_job, root / "run")
    return base_job, root / "run"


def two_workers(base_job: Job, folder: Path) -> Any:
    return ray_engine(base_job, folder, workers=2, threads=1)


def test_two_nodes_give_the_bytes_of_one_process(cluster: Any, reference: tuple[Job, Path], tmp_path: Path) -> None:
    base_job, folder = reference
    raylets: set[int] = set()
    run_job(
        base_job, tmp_path / "run", two_workers, lambda progress: raylets.update(worker.ppid() for worker in workers())
    )
    assert len(raylets) == 2
    assert content(tmp_path / "run") == content(folder)
    assert len(finished_shards(folder)) > 8


def test_dead_workers_and_a_dead_node_are_survived(cluster: Any, reference: tuple[Job, Path], tmp_path: Path) -> None:
    base_job, folder = reference
    killed: list[int] = []

    def kill_something(progress: Any) -> None:
        """Kill two workers one after the other, then a node with its workers."""
        if progress.shards_done in (2, 4):
            worker = next(worker for worker in workers() if worker.pid not in killed)
            killed.append(worker.pid)
            worker.send_signal(signal.SIGKILL)
        elif progress.shards_done == 6:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    run_job(base_job, tmp_path / "run", two_workers, kill_something)
    assert len(killed) == 2
    assert not cluster.worker_nodes
    assert content(tmp_path / "run") == content(folder)


DRIVER = """
import sys
from functools import partial
from pathlib import Path
from rheoscope.corpus.corpus_run import run_job
from rheoscope.corpus.distributed_run import ray_engine
from tests.cluster import workers
from tests.corpus.cases import job
engine = partial(ray_engine, workers=1, threads=1, address=sys.argv[4])
run_job(job(sys.argv[1], sys.argv[2], shard=200), Path(sys.argv[3]), engine)
"""


def test_a_dead_driver_leaves_a_folder_that_can_be_resumed(
    cluster: Any, reference: tuple[Job, Path], tmp_path: Path
) -> None:
    base_job, folder = reference
    run = tmp_path / "run"
    arguments = [sys.executable, "-c", DRIVER, str(base_job.model), base_job.texts[0], str(run), cluster.address]
    driver = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not finished_shards(run):
        assert driver.poll() is None
        time.sleep(0.01)
    driver.send_signal(signal.SIGSTOP)  # it keeps the lock but assigns no more shards
    with pytest.raises(RheoscopeError, match="is in use by process"):
        resume(run)
    driver.kill()
    driver.wait()
    assert len(finished_shards(run)) < len(finished_shards(folder))
    resume(run)
    assert content(run) == content(folder)


def test_an_error_of_all_workers_stops_the_run(cluster: Any, reference: tuple[Job, Path], tmp_path: Path) -> None:
    base_job, _ = reference
    with pytest.raises(RheoscopeError, match="length must be at most 64"):
        run_job(replace(base_job, length=65), tmp_path / "run", partial(ray_engine, workers=1, threads=1))

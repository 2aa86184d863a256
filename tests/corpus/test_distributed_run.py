"""Ray: the same bytes by workers of two nodes, and whatever is killed on the way."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import resume, run_job
from rheoscope.corpus.distributed_run import ray_engine
from rheoscope.corpus.shards import finished_shards
from rheoscope.shapes import RheoscopeError
from tests.cluster import workers
from tests.corpus.cases import content, job, lines, text_file, tiny_model

pytest.importorskip("ray", reason="needs Ray: pip install 'rheoscope[corpus]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """A job, and its run by one process that nothing disturbed."""
    root = tmp_path_factory.mktemp("whole")
    asked = job(tiny_model(root / "model"), text_file(root / "texts.txt", lines(60)), shard=200)
    run_job(asked, root / "run")
    return asked, root / "run"


def two(asked: Job, folder: Path) -> Any:
    return ray_engine(asked, folder, workers=2, threads=1)


def test_two_nodes_give_the_bytes_of_one_process(cluster: Any, whole: tuple[Job, Path], tmp_path: Path) -> None:
    asked, folder = whole
    raylets: set[int] = set()
    run_job(asked, tmp_path / "run", two, lambda progress: raylets.update(one.ppid() for one in workers()))
    assert len(raylets) == 2
    assert content(tmp_path / "run") == content(folder)
    assert len(finished_shards(folder)) > 8


def test_dead_workers_and_a_dead_node_are_survived(cluster: Any, whole: tuple[Job, Path], tmp_path: Path) -> None:
    asked, folder = whole
    killed: list[int] = []

    def kill(progress: Any) -> None:
        """Two workers, one after the other, and then a node with whoever is on it."""
        if progress.shards_done in (2, 4):
            one = next(one for one in workers() if one.pid not in killed)
            killed.append(one.pid)
            one.send_signal(signal.SIGKILL)
        elif progress.shards_done == 6:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    run_job(asked, tmp_path / "run", two, kill)
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


def test_a_dead_driver_leaves_a_folder_that_goes_on(cluster: Any, whole: tuple[Job, Path], tmp_path: Path) -> None:
    asked, folder = whole
    run = tmp_path / "run"
    words = [sys.executable, "-c", DRIVER, str(asked.model), asked.texts[0], str(run), cluster.address]
    driver = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not finished_shards(run):
        assert driver.poll() is None
        time.sleep(0.01)
    driver.send_signal(signal.SIGSTOP)  # it holds the folder, and hands out nothing more
    with pytest.raises(RheoscopeError, match="is in use by process"):
        resume(run)
    driver.kill()
    driver.wait()
    assert len(finished_shards(run)) < len(finished_shards(folder))
    resume(run)
    assert content(run) == content(folder)


def test_a_model_that_no_worker_can_open_stops_the_run(cluster: Any, whole: tuple[Job, Path], tmp_path: Path) -> None:
    asked, _ = whole
    with pytest.raises(RheoscopeError, match="reads at most 64 tokens"):
        run_job(replace(asked, length=65), tmp_path / "run", partial(ray_engine, workers=1, threads=1))

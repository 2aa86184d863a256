"""A race on Ray: the same bytes as one process, on two nodes and after workers and nodes are killed."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rheoscope.learn import race_files
from rheoscope.learn.distributed_race import run_distributed_race
from rheoscope.learn.race import run_race
from rheoscope.learn.race_plan import Race
from rheoscope.shapes import RheoscopeError
from tests.cluster import workers
from tests.learn.cases import Letters, recipe
from tests.learn.test_race import Stopped, files, stop_after

pytest.importorskip("ray", reason="needs Ray: pip install 'rheoscope[corpus]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings
RACE = Race(recipe(steps=40, evaluate_every=10), ("tied", "metric_map"), 2, (1e-2, 1e-3))
run_on_two_workers = partial(run_distributed_race, workers=2, threads=1, device="cpu")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A race of one process without interruption."""
    out = tmp_path_factory.mktemp("races") / "whole"
    run_race(RACE, Letters(), out, "cpu")
    return out


def test_two_nodes_give_the_bytes_of_one_process(cluster: Any, reference: Path, tmp_path: Path) -> None:
    raylets: set[int] = set()
    progress: list[tuple[int, int]] = []

    def on_progress(tokens: int, total: int, pack_name: str) -> None:
        progress.append((tokens, total))
        raylets.update(worker.ppid() for worker in workers())

    run_on_two_workers(RACE, Letters(), tmp_path / "out", on_progress=on_progress)
    assert len(raylets) == 2
    assert [total - tokens for tokens, total in progress] == [40 * 4 * 8 * 2 * n_left for n_left in range(5, -1, -1)]
    assert files(tmp_path / "out") == files(reference)
    run_on_two_workers(RACE, Letters(), tmp_path / "out", on_progress=pytest.fail)  # nothing is left to train


def test_an_error_of_a_worker_is_raised_by_the_driver(cluster: Any, reference: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stopped):
        run_race(RACE, Letters(), out, "cpu", on_progress=stop_after(15))
    folder = next(iter((out / race_files.PACKS_FOLDER).iterdir()))
    for state in folder.glob("state-*"):
        state.unlink()
    with pytest.raises(RheoscopeError, match="is missing, although the log refers to it"):
        run_on_two_workers(RACE, Letters(), out)


def test_unpackable_models_are_logged(cluster: Any, tmp_path: Path) -> None:
    log: list[str] = []
    race = Race(recipe(position="buckets", steps=2, evaluate_every=2), (), 2)
    run_on_two_workers(race, Letters(), tmp_path / "out", log=log.append)
    assert log == [
        "untied: seeds are trained one after another (BucketTable has no packed form; add one to PACKED_FORMS)"
    ]


def test_dead_workers_and_a_dead_node_are_survived(cluster: Any, reference: Path, tmp_path: Path) -> None:
    killed: list[int] = []
    pack_names: list[str] = []

    def kill_something(tokens: int, total: int, pack_name: str) -> None:
        """Kill a worker, then a node with its workers."""
        pack_names.append(pack_name)
        if len(pack_names) == 1:
            worker = next(iter(workers()))
            killed.append(worker.pid)
            worker.send_signal(signal.SIGKILL)
        elif len(pack_names) == 3:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    run_on_two_workers(RACE, Letters(), tmp_path / "out", on_progress=kill_something)
    assert len(killed) == 1
    assert not cluster.worker_nodes
    assert sorted(pack_names) == sorted(pack.name for pack in RACE.packs())
    assert files(tmp_path / "out") == files(reference)

"""A race on Ray: the bytes of one process by workers of two nodes, and whatever is killed on the way."""

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
from tests.learn.test_race import Stopped, files, stopping

pytest.importorskip("ray", reason="needs Ray: pip install 'rheoscope[corpus]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings
ASKED = Race(recipe(steps=40, evaluate_every=10), ("tied", "metric_map"), 2, (1e-2, 1e-3))
two = partial(run_distributed_race, workers=2, threads=1, device="cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A race of one process that nothing disturbed."""
    out = tmp_path_factory.mktemp("races") / "whole"
    run_race(ASKED, Letters(), out, "cpu")
    return out


def test_two_nodes_give_the_bytes_of_one_process(cluster: Any, whole: Path, tmp_path: Path) -> None:
    raylets: set[int] = set()
    heard: list[tuple[int, int]] = []

    def tell(tokens: int, total: int, what: str) -> None:
        heard.append((tokens, total))
        raylets.update(one.ppid() for one in workers())

    two(ASKED, Letters(), tmp_path / "out", on_progress=tell)
    assert len(raylets) == 2
    assert [total - tokens for tokens, total in heard] == [40 * 4 * 8 * 2 * left for left in range(5, -1, -1)]
    assert files(tmp_path / "out") == files(whole)
    two(ASKED, Letters(), tmp_path / "out", on_progress=pytest.fail)  # all of it is there


def test_a_mistake_of_the_user_comes_back_as_one_line(cluster: Any, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stopped):
        run_race(ASKED, Letters(), out, "cpu", on_progress=stopping(15))
    folder = next(iter((out / race_files.PACKS_FOLDER).iterdir()))
    for state in folder.glob("state-*"):
        state.unlink()
    with pytest.raises(RheoscopeError, match="is gone, its log says that it was written"):
        two(ASKED, Letters(), out)


def test_what_cannot_be_packed_is_said(cluster: Any, tmp_path: Path) -> None:
    said: list[str] = []
    asked = Race(recipe(position="buckets", steps=2, evaluate_every=2), (), 2)
    two(asked, Letters(), tmp_path / "out", log=said.append)
    assert said == [
        "untied: no packed form of BucketTable is known; add a line to PACKED_FORMS; its seeds are trained one after another"
    ]


def test_dead_workers_and_a_dead_node_are_survived(cluster: Any, whole: Path, tmp_path: Path) -> None:
    killed: list[int] = []
    told: list[str] = []

    def kill(tokens: int, total: int, what: str) -> None:
        """A worker, then a node with whoever is on it."""
        told.append(what)
        if len(told) == 1:
            one = next(iter(workers()))
            killed.append(one.pid)
            one.send_signal(signal.SIGKILL)
        elif len(told) == 3:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    two(ASKED, Letters(), tmp_path / "out", on_progress=kill)
    assert len(killed) == 1
    assert not cluster.worker_nodes
    assert sorted(told) == sorted(pack.name for pack in ASKED.packs())
    assert files(tmp_path / "out") == files(whole)

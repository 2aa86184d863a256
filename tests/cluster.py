"""One Ray cluster of two raylets on this machine, shared by all tests that need it, since it takes long to start."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MEMORY = {"object_store_memory": 80 * 2**20}


@pytest.fixture(scope="session")
def head() -> Iterator[Any]:
    """A node with two slots: one for a worker, and one for its replacement."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
        patch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False} | MEMORY)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def cluster(head: Any) -> Any:
    """The same with a second node of one slot, which an earlier test may have removed."""
    if not head.worker_nodes:
        head.add_node(num_cpus=1, **MEMORY)
        head.wait_for_nodes()
    return head


def workers() -> list[Any]:
    """The processes of our actors; each is a child of the raylet of its node."""
    import psutil

    def command_line(process: Any) -> str:
        try:
            return " ".join(process.cmdline())
        except psutil.Error:
            return ""

    children = psutil.Process().children(recursive=True)
    return [process for process in children if command_line(process).startswith("ray::Actor")]

"""One Ray cluster of two raylets on this machine, for all tests that need one: it takes long to start."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MEMORY = {"object_store_memory": 80 * 2**20}


@pytest.fixture(scope="session")
def head() -> Iterator[Any]:
    """A node with two slots: one, and one more for who takes the place of the dead."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
        patch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False} | MEMORY)
        ray.init(address=made.address, log_to_driver=False, logging_level="error")
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def cluster(head: Any) -> Any:
    """The same with a second node, of one slot, which a test may have removed before."""
    if not head.worker_nodes:
        head.add_node(num_cpus=1, **MEMORY)
        head.wait_for_nodes()
    return head


def workers() -> list[Any]:
    """The processes of our actors; each is a child of the raylet of its node."""
    import psutil

    def called(process: Any) -> str:
        try:
            return " ".join(process.cmdline())
        except psutil.Error:
            return ""

    return [one for one in psutil.Process().children(recursive=True) if called(one).startswith("ray::Actor")]

"""Results that are computed once per run of the suite and shared between its workers."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rheoscope.files import atomic_file


def shared_result(name: str, compute: Callable[[], Any]) -> Any:
    """The result with this name, from the worker that computed it first."""
    path = Path(os.environ["RHEOSCOPE_TESTS_SHARED"]) / f"{name}.pickle"
    if not path.exists():
        with atomic_file(path) as file:
            file.write_bytes(pickle.dumps(compute()))
    return pickle.loads(path.read_bytes())

"""Results of theory experiments that several tests share."""

import os
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import rheoscope as rs
from rheoscope.files import atomic_file


@cache
def done(name: str, seed: int = 0) -> Any:
    """The result of an experiment, computed once per run of the suite and shared between its workers."""
    path = Path(os.environ["RHEOSCOPE_TESTS_SHARED"]) / f"{name}-{seed}.pickle"
    if not path.exists():
        with atomic_file(path) as file:
            file.write_bytes(pickle.dumps(rs.dynamics(name, seed)))
    return pickle.loads(path.read_bytes())

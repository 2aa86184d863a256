"""What the tests of the bench share."""

import os
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import rheoscope as rs
from rheoscope.files import atomic_file


@cache
def done(name: str, seed: int = 0) -> Any:
    """One experiment, done once in a run of the suite: workers of one run find what another has done."""
    kept = Path(os.environ["RHEOSCOPE_TESTS_SHARED"]) / f"{name}-{seed}.pickle"
    if not kept.exists():
        with atomic_file(kept) as file:
            file.write_bytes(pickle.dumps(rs.dynamics(name, seed)))
    return pickle.loads(kept.read_bytes())

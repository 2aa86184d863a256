"""Results of theory experiments that several tests share."""

from functools import cache
from typing import Any

import rheoscope as rs
from tests.shared_results import shared_result


@cache
def done(name: str, seed: int = 0) -> Any:
    """The result of an experiment, computed once per run of the suite and shared between its workers."""
    return shared_result(f"{name}-{seed}", lambda: rs.dynamics(name, seed))

"""What the tests of the bench share."""

from functools import cache
from typing import Any

import rheoscope as rs


@cache
def done(name: str, seed: int = 0) -> Any:
    """One experiment, done once."""
    return rs.dynamics(name, seed)

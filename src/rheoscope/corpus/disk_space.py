"""A full disk: the shard that meets it waits for room with all that it has computed, and the run goes on by itself.

A text that could not be written is no reject: a reject says that a text is missing, needs room itself, and would make the tables of a run
depend on its disk. So nothing is told in the tables, and after the wait they hold the same bytes.
"""

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.corpus.parquet_tables import DiskFullError, run_folder, write_table

if TYPE_CHECKING:
    import pyarrow

RETRY_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, *(30.0,) * 19)
"""Seconds between two tries: ten minutes in all, then the run stops and can be resumed."""


class RetryingWriter:
    """Writes tables, and waits where there is no room; `close` ends the waiting."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def close(self) -> None:
        """Nobody waits any longer: what finds no room is an error at once."""
        self._closed.set()

    def write(self, path: Path, table: "pyarrow.Table") -> None:
        """A table as a file that is there whole or not at all, as soon as there is room."""
        for attempt, pause in enumerate(RETRY_PAUSES):
            try:
                return write_table(path, table)
            except DiskFullError:
                if not attempt:
                    advice = f"make room within {sum(RETRY_PAUSES) / 60:.0f} minutes, and the run goes on"
                    print(f"rheoscope: the disk of {run_folder(path)} is full; {advice}", file=sys.stderr, flush=True)
                if self._closed.wait(pause):
                    raise
        return write_table(path, table)

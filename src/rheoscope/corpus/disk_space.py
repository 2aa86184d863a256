"""Wait for free disk space. A shard that meets a full disk keeps its results and continues when there is space.

A text that could not be written is not a reject. Rejects need disk space too, and the tables of a run would depend
on its disk. After the wait, the tables contain the same bytes as without it.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.corpus.durable_files import CommittedFile, DiskFullError, write_text
from rheoscope.corpus.parquet_tables import write_table
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message

if TYPE_CHECKING:
    import pyarrow

RETRY_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, *(30.0,) * 19)
"""Seconds between attempts, ten minutes in all. After that the run stops and can be resumed."""


class RetryingWriter:
    """Writes the files of a run and waits if the disk is full. `close` ends the waiting."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._closed = folder, threading.Event()

    def close(self) -> None:
        """Stop waiting: a full disk is an error from now on."""
        self._closed.set()

    def write_table(self, name: str, table: "pyarrow.Table") -> CommittedFile:
        """Write a table atomically, as soon as there is space."""
        return self._retry(lambda: write_table(self.folder, name, table))

    def write_text(self, name: str, text: str) -> CommittedFile:
        """Write a text file atomically, as soon as there is space."""
        return self._retry(lambda: write_text(self.folder, name, text))

    def _retry(self, write: Callable[[], CommittedFile]) -> CommittedFile:
        for attempt, pause in enumerate(RETRY_PAUSES):
            try:
                return write()
            except DiskFullError:
                if not attempt:
                    warning = Message(
                        "the disk of {folder} is full; free space within {minutes:.0f} minutes and the run continues",
                        folder=str(self.folder),
                        minutes=sum(RETRY_PAUSES) / 60,
                    )
                    print(f"rheoscope: {render(warning)}", file=sys.stderr, flush=True)
                if self._closed.wait(pause):
                    raise
        return write()

"""The command line as the tests run it: in this process, with its arguments, directory, streams and exit status."""

import io
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import typer.main

from rheoscope.commands.app import run_command_line
from rheoscope.messages.catalogue import set_language

command_of = cache(typer.main.get_command)
"""Typer's parser of a command line. Typer builds it at every call, which takes longer than most refused commands."""


@dataclass(frozen=True)
class Outcome:
    """The exit status of a command and what it printed."""

    status: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Standard output on one line."""
        return " ".join(self.out.split())


def run_rheoscope(
    *arguments: str, cwd: Path | None = None, encoding: str = "utf-8", width: int | None = None, stdin: bytes = b""
) -> Outcome:
    """Run `rheoscope` with these arguments in this process, which has loaded torch already."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", command_of)
        patch.setattr(sys, "argv", ["rheoscope", *arguments])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        if width is not None:
            patch.setenv("COLUMNS", str(width))
        patch.chdir(cwd or Path.cwd())
        try:
            status = run_command_line()
        except SystemExit as end:  # typer's own options exit
            status = int(end.code or 0)
        finally:
            set_language(None)
    out, err = (stream.buffer.getvalue().decode(encoding) for stream in streams)  # type: ignore[attr-defined]
    return Outcome(status, out, err)

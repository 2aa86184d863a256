"""Consoles print every character, and a closed pipe does not stop a command."""

import io
import os
import subprocess
import sys

import pytest

from rheoscope.report.console import ASCII_FALLBACKS, ascii_fallback, console, replace_unencodable


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "cp437", "utf-8"])
def test_printing_never_fails_on_unencodable_characters(encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    replace_unencodable(stream, io.StringIO())
    stream.write("".join(ASCII_FALLBACKS) + "中😀\udce9\n")
    assert stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_known_symbols_have_readable_replacements() -> None:
    assert all(ASCII_FALLBACKS[sign].isascii() for sign in ASCII_FALLBACKS)
    assert ascii_fallback("→") == "->"
    assert ascii_fallback("😀") == r"\U0001f600"
    assert ascii_fallback("\udce9") == r"\udce9"


def test_markup_is_printed_verbatim(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("[bold]a[/] :smile: 12 [/nothing]")
    assert capsys.readouterr().out == "[bold]a[/] :smile: 12 [/nothing]\n"


def test_a_closed_pipe_does_not_stop_a_command() -> None:
    """Behind `| head`, further output is dropped and the work continues."""
    output = (
        "import sys; from rheoscope.report.console import console; where = console()\n"
        "for _ in range(9): where.print('x' * 99)\n"
        "print('end', file=sys.stderr)"
    )
    reading, writing = os.pipe()
    os.close(reading)
    completed = subprocess.run(
        [sys.executable, "-c", output], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(writing)
    assert completed.stderr.decode().strip() == "end"
    assert completed.returncode == 0

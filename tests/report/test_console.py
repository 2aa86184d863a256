"""Consoles as they are: every sign can be written on every one of them, and a reader who has gone stops nothing."""

import io
import os
import subprocess
import sys

import pytest

from rheoscope.report.console import ASCII_FALLBACKS, ascii_fallback, console, replace_unencodable


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "cp437", "utf-8"])
def test_nothing_that_is_printed_can_fail(encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    replace_unencodable(stream, io.StringIO())
    stream.write("".join(ASCII_FALLBACKS) + "中😀\udce9\n")
    assert stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_signs_of_ours_are_readable_and_others_keep_their_number() -> None:
    assert all(ASCII_FALLBACKS[sign].isascii() for sign in ASCII_FALLBACKS)
    assert ascii_fallback("→") == "->"
    assert ascii_fallback("😀") == r"\U0001f600"
    assert ascii_fallback("\udce9") == r"\udce9"


def test_brackets_colons_and_numbers_mean_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("[bold]a[/] :smile: 12 [/nothing]")
    assert capsys.readouterr().out == "[bold]a[/] :smile: 12 [/nothing]\n"


def test_a_reader_who_has_gone_stops_nothing() -> None:
    """As behind `| head`: what follows is dropped, the work goes on to its end."""
    said = (
        "import sys; from rheoscope.report.console import console; where = console()\n"
        "for _ in range(9): where.print('x' * 99)\n"
        "print('end', file=sys.stderr)"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", said], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert done.stderr.decode().strip() == "end"
    assert done.returncode == 0

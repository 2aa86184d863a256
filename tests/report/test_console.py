"""Consoles: substitutes for missing characters, plain printing, no colour on request, and readers that have gone."""

import io
import os
import subprocess
import sys

import pytest

from rheoscope.report.console import ASCII_FALLBACKS, ascii_fallback, console, ignore_zero_width, replace_unencodable


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "cp437", "utf-8"])
def test_every_character_can_be_printed_in_every_encoding(encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    replace_unencodable(stream, io.StringIO())
    stream.write("".join(ASCII_FALLBACKS) + "中😀\udce9\n")
    assert stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_known_characters_have_a_readable_substitute_and_others_their_code() -> None:
    assert all(ASCII_FALLBACKS[character].isascii() for character in ASCII_FALLBACKS)
    assert ascii_fallback("→") == "->"
    assert ascii_fallback("😀") == r"\U0001f600"
    assert ascii_fallback("\udce9") == r"\udce9"


def test_brackets_colons_and_numbers_are_printed_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("[bold]a[/] :smile: 12 [/nothing]")
    assert capsys.readouterr().out == "[bold]a[/] :smile: 12 [/nothing]\n"


def test_output_is_dropped_after_the_reader_of_a_pipe_has_gone() -> None:
    """As in `| head`: the rest of the output is dropped, and the program runs to its end."""
    program = (
        "import sys; from rheoscope.report.console import console; target = console()\n"
        "for _ in range(9): target.print('x' * 99)\n"
        "print('end', file=sys.stderr)"
    )
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=write_end, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(write_end)
    assert done.stderr.decode().strip() == "end"
    assert done.returncode == 0


class TerminalStream(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_colour_and_dumb_terminals_print_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        stream = TerminalStream()
        with monkeypatch.context() as patch:
            patch.setenv("TERM", "xterm-256color")
            patch.setenv("COLORTERM", "truecolor")
            patch.setenv(name, value)
            patch.setattr("sys.stdout", stream)
            console().print("a", style="green")
        assert stream.getvalue().startswith("a")
        assert "\x1b[32m" not in stream.getvalue()


def test_a_width_of_zero_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setenv("LINES", "40")
    ignore_zero_width()
    assert "COLUMNS" not in os.environ
    assert os.environ["LINES"] == "40"

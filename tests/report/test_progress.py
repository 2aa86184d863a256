"""A bar: nothing at all where stderr is no terminal."""

import pytest

from rheoscope.report.progress import progress


def test_a_pipe_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("counting") as tell:
        tell(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_sees_what_is_done(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress("counting") as tell:
        tell(1, 2)
    out, error = capsys.readouterr()
    assert not out
    assert "counting" in error

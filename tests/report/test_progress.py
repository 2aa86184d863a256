"""A bar: nothing at all where stderr is no terminal."""

import pytest

from rheoscope.report.progress import opened, progress


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


def test_a_name_in_brackets_is_written_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress("loading my[/red]model") as tell:
        tell(1, 2)
    assert "my[/red]model" in capsys.readouterr().err


def test_a_command_opens_its_model_under_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = opened(None, None, None)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    control = opened(None, None, None, untrained=True, seed=3)
    out, error = capsys.readouterr()
    assert not out
    assert "loading the default model" in error
    assert control.view.facts["model"] == "the default model, untrained (seed 3)"
    assert plain.view.facts["weights"] != control.view.facts["weights"]

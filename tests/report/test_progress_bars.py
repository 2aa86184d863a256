"""Progress: a bar in a terminal, a line now and then in a pipe."""

import time

import pytest

import rheoscope as rs
from rheoscope.report import progress_bars as module
from rheoscope.report.analysis_runs import Subject, run_analysis
from rheoscope.report.progress_bars import load_model, progress, progress_bar
from rheoscope.running.progress import listen
from tests.report.cases import small


def test_a_pipe_shows_nothing_of_short_work(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("counting") as on_progress:
        on_progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress("counting") as on_progress:
        on_progress(1, 2)
    out, error = capsys.readouterr()
    assert not out
    assert "counting" in error


def test_square_brackets_in_a_name_are_printed_unchanged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress("loading my[/red]model") as on_progress:
        on_progress(1, 2)
    assert "my[/red]model" in capsys.readouterr().err


def test_a_command_loads_its_model_with_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = load_model(None, None, None)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    control = load_model(None, None, None, untrained=True, seed=3)
    out, error = capsys.readouterr()
    assert not out
    assert "loading the default model" in error
    assert control.view.facts["model"] == "the default model, untrained (seed 3)"
    assert plain.view.facts["weights"] != control.view.facts["weights"]


def test_a_pipe_shows_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_INTERVAL", 0.01)
    output = ""
    with progress_bar() as on_progress:
        on_progress("my[/red]analysis")(1, 4)
        deadline = time.monotonic() + 60
        while "\n" not in output and time.monotonic() < deadline:
            output += capsys.readouterr().err
    assert "rheoscope: my[/red]analysis 25 % (0 s)\n" in output


@pytest.mark.parametrize("name", ["distortion", "agreement", "transport", "fixed_point", "scores", "stack"])
def test_a_long_analysis_reports_its_progress(name: str) -> None:
    """Through its own callback, or through the loop over layers."""
    model, shares = small(), []
    trace = model.trace("the keys to the cabinet are on the table in the old hall of the house")
    subject = Subject(model, trace.text, trace)
    settings = {"layers": [0, 1], "iterations": 3} if name == "fixed_point" else {}
    run_analysis(subject, name, settings, draw_nulls=False, progress=lambda done, total: shares.append(done / total))
    assert len(set(shares)) > 1 or name == "agreement"
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1


def test_progress_goes_only_to_the_listener() -> None:
    calls: list[tuple[int, int]] = []
    trace = small().trace("the keys to the cabinet")
    rs.stack(trace, draws=0)
    with listen(lambda done, total: calls.append((done, total))):
        rs.stack(trace, draws=0)
    rs.stack(trace, draws=0)
    assert calls == [(0, 3), (1, 3), (2, 3), (3, 3)]

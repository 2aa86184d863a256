"""Progress is a bar in a terminal and periodic lines elsewhere."""

import time

import pytest

import rheoscope as rs
from rheoscope.report import progress_bars as module
from rheoscope.report.analysis_runs import Subject, run_analysis
from rheoscope.report.progress_bars import load_model, progress, progress_bar
from tests.report.cases import small


def test_short_tasks_print_nothing_to_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("counting") as start_task:
        start_task(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress("counting") as start_task:
        start_task(1, 2)
    out, error = capsys.readouterr()
    assert not out
    assert "counting" in error


def test_brackets_in_task_names_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress("loading my[/red]model") as start_task:
        start_task(1, 2)
    assert "my[/red]model" in capsys.readouterr().err


def test_models_are_loaded_with_a_progress_bar(
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


def test_a_pipe_gets_periodic_progress_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINE_INTERVAL", 0.01)
    output = ""
    with progress_bar() as start_task:
        start_task("my[/red]analysis")(1, 4)
        patience = time.monotonic() + 60
        while "\n" not in output and time.monotonic() < patience:
            output += capsys.readouterr().err
    assert "rheoscope: my[/red]analysis 25 % (0 s)\n" in output


@pytest.mark.parametrize("name", ["distortion", "agreement", "transport", "fixed_point", "scores", "stack"])
def test_a_long_analysis_reports_its_progress(name: str) -> None:
    """Progress comes from a callback, or from the loop over layers."""
    model, updates = small(), []
    trace = model.trace("the keys to the cabinet are on the table in the old hall of the house")
    subject = Subject(model, trace.text, trace)
    settings = {"layers": [0], "iterations": 3} if name == "fixed_point" else {}
    run_analysis(
        subject, name, settings, draw_nulls=False, progress=lambda finished, total: updates.append(finished / total)
    )
    assert len(set(updates)) > 1 or name == "agreement"
    assert updates == sorted(updates)
    assert 0 <= updates[0] <= updates[-1] <= 1


def test_progress_reaches_only_the_listener() -> None:
    updates: list[tuple[int, int]] = []
    trace = small().trace("the keys to the cabinet")
    rs.stack(trace)
    with module_hearing(updates):
        rs.stack(trace)
    rs.stack(trace)
    assert updates == [(0, 3), (1, 3), (2, 3)]


def module_hearing(updates: list[tuple[int, int]]):  # type: ignore[no-untyped-def]
    from rheoscope.running.progress import listen

    return listen(lambda finished, total: updates.append((finished, total)))

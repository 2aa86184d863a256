"""A bar where a person looks; where stderr is no terminal, a line now and then."""

import time

import pytest

import rheoscope as rs
from rheoscope.report import progress_bars as module
from rheoscope.report.analysis_runs import Subject, run_analysis
from rheoscope.report.progress_bars import load_model, progress, progress_bar
from tests.report.cases import small


def test_a_pipe_sees_nothing_of_what_is_short(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_pipe_hears_now_and_then_what_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINE_INTERVAL", 0.01)
    said = ""
    with progress_bar() as tell:
        tell("my[/red]analysis")(1, 4)
        patience = time.monotonic() + 60
        while "\n" not in said and time.monotonic() < patience:
            said += capsys.readouterr().err
    assert "rheoscope: my[/red]analysis 25 % (0 s)\n" in said


@pytest.mark.parametrize("name", ["distortion", "agreement", "transport", "fixed_point", "scores", "stack"])
def test_one_long_analysis_tells_its_share(name: str) -> None:
    """By a callback of its own, or because its loop over layers ticks."""
    model, heard = small(), []
    trace = model.trace("the keys to the cabinet are on the table in the old hall of the house")
    subject = Subject(model, trace.text, trace)
    settings = {"layers": [0], "iterations": 3} if name == "fixed_point" else {}
    run_analysis(subject, name, settings, draw_nulls=False, progress=lambda done, total: heard.append(done / total))
    assert len(set(heard)) > 1 or name == "agreement"
    assert heard == sorted(heard)
    assert 0 <= heard[0] <= heard[-1] <= 1


def test_ticks_go_to_whoever_listens_and_no_further() -> None:
    heard: list[tuple[int, int]] = []
    trace = small().trace("the keys to the cabinet")
    rs.stack(trace)
    with module_hearing(heard):
        rs.stack(trace)
    rs.stack(trace)
    assert heard == [(0, 3), (1, 3), (2, 3)]


def module_hearing(heard: list[tuple[int, int]]):  # type: ignore[no-untyped-def]
    from rheoscope.running.progress import listen

    return listen(lambda done, total: heard.append((done, total)))

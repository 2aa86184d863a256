"""Long texts, slow machines and training, as somebody meets them on the first day."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rheoscope.commands import analyse
from rheoscope.commands.app import app
from rheoscope.learn import training_time
from rheoscope.models.train import Run
from rheoscope.models.training_state import last_checkpoint_step
from rheoscope.report import progress_bars as progress_module
from rheoscope.report.long_texts import split_into_windows
from rheoscope.shapes import RheoscopeError
from tests.report.cases import small

TEXT = "the keys to the cabinet are on the table in the old hall "


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts, and the small model in the place of the default one."""
    monkeypatch.chdir(tmp_path)
    for module in (progress_module, analyse):  # the second has it by name
        monkeypatch.setattr(module, "load_model", lambda *named, **more: small())
    (tmp_path / "book.txt").write_text(TEXT * 400)
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 100)
    with (tmp_path / "huge.txt").open("wb") as file:
        file.write(TEXT.encode() * 400)
        file.truncate(300_000_000)
    return tmp_path


def typed(*words: str) -> Any:
    done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_text_that_is_too_long_names_both_ways_out(here: Path) -> None:
    for words in (["flow"], ["covers"], ["analyse", "trajectory"]):
        with pytest.raises(RheoscopeError, match=r"the model reads at most 512; .*type --first 512, or --window 512"):
            typed(*words, "--file", "book.txt")
    with pytest.raises(RheoscopeError, match=r"reads at most 512; type --first 512$"):
        typed("reverse", "--file", "book.txt")


def test_300_megabytes_are_refused_by_their_size_or_read_no_further_than_needed(here: Path) -> None:
    with pytest.raises(
        RheoscopeError, match=r"huge.txt has 300 MB, more than any model reads at once; .*type --first 1000"
    ):
        typed("flow", "--file", "huge.txt")
    done = typed("analyse", "trajectory", "--file", "huge.txt", "--first", "12")
    assert "\n12 tokens: " in done.stdout


def test_a_long_text_is_reported_in_windows(here: Path) -> None:
    """The report has the seven questions over windows, and every number with its interval."""
    words = ["--file", "book.txt", "--first", "50", "--window", "25", "--fast", "--no-html", "--json", "a.json"]
    done = typed("flow", *words)
    assert "50 tokens in 2 windows of 25" in done.stdout
    assert "Seven questions about 2 windows" in done.stdout
    assert done.stdout.count("of 2 windows") == 7
    kept = json.loads((here / "a.json").read_text())
    assert {"agreement", "agreement_low", "agreement_high"} <= set(kept["agreement"]["data_vars"])


def test_one_analysis_of_windows_equals_over_texts(here: Path) -> None:
    done = typed("analyse", "trajectory", "--file", "book.txt", "--first", "60", "--window", "20", "--json", "a.json")
    assert "in 3 windows of 20" in done.stdout or "in 2 windows of 20" in done.stdout
    windows = split_into_windows(small(), TEXT * 400, 60, 20)
    assert json.loads((here / "a.json").read_text())["trajectory"]["attrs"]["texts"] == len(windows.texts)


# Training


@pytest.fixture
def hearing() -> Iterator[None]:
    """A test that runs in the background of a shell is born deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


SETTINGS = ["width=16", "depth=1", "heads=2", "batch=4", "context=16", "vocabulary=characters", "held_out=0.1"]


def train(*more: str, out: str = "run") -> Any:
    return typed("train", "tiny", "--data", "a.txt", "--out", out, "--device", "cpu", "--set", *SETTINGS, *more)


@pytest.mark.usefixtures("hearing")
def test_ctrl_c_keeps_the_step_and_a_finished_run_goes_further(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Run.step

    def interrupted(self: Any, objective: Any, at: int) -> Any:
        if at == 6:
            signal.raise_signal(signal.SIGINT)
        return step(self, objective, at)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", interrupted)
        stopped = train("--steps", "12")
    assert stopped.exit_code == 130
    assert "stopped, the checkpoint of step 7 is kept; type the same command to go on" in stopped.stderr
    assert "going on with run at step 7 of 12" in train("--steps", "12").stderr
    train("--steps", "12", out="whole")
    for name in ("last/model.safetensors", "last/optimiser.safetensors", "model.safetensors"):
        assert (here / "run" / name).read_bytes() == (here / "whole" / name).read_bytes()
    assert "run is finished at step 12" in (again := train("--steps", "12").stdout)
    assert "--steps 24 would go on" in again
    further = train("--steps", "15")
    assert "the rate goes on by the schedule of 15 steps" in further.stderr
    assert last_checkpoint_step(here / "run") == 15


def test_a_cpu_says_how_long_it_will_take(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "steps to go will take about" in train("--steps", "12").stderr
    assert "steps to go" not in train("--steps", "22").stderr  # the tenth of ten is the last
    monkeypatch.setattr("rheoscope.learn.train_report.measure_flop_rate", lambda: 1e3)
    said = train("--steps", "3", out="slow").stderr
    assert said.startswith("3 steps take ")
    assert " h " in said or "days" in said


def test_a_recipe_of_days_is_told_before_its_first_step() -> None:
    from rheoscope.models.recipes import gpt2, tiny

    said = training_time.long_run_warning(gpt2(), 0, flop_rate=1e11)
    assert "100,000 steps take" in said
    assert "days or more on this CPU" in said
    assert training_time.long_run_warning(tiny(), 0, flop_rate=1e10) == ""

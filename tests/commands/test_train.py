"""`rheoscope train`: Ctrl-C and resuming, estimates of the time, and directories of others."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rheoscope.learn import training_time
from rheoscope.models.train import Run as TrainingRun
from rheoscope.models.training_state import last_checkpoint_step
from tests.commands.cases import Outcome
from tests.commands.conftest import Run

SETTINGS = ["width=16", "depth=1", "heads=2", "batch=4", "context=16", "vocabulary=characters", "held_out=0.1"]


@pytest.fixture
def train(run: Run) -> Callable[..., Outcome]:
    """Train a small model on a text in the working directory."""
    Path("a.txt").write_text("the cat sat on the mat. " * 100)

    def run_train(*arguments: str, out: str = "run") -> Outcome:
        return run(
            "train", "tiny", "--data", "a.txt", "--out", out, "--device", "cpu", "--set", *SETTINGS, *arguments
        )  # fmt: skip

    return run_train


@pytest.fixture
def sigint_handler() -> Iterator[None]:
    """Python's handler of Ctrl-C, which a test in the background of a shell lacks."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_handler")
def test_ctrl_c_stores_the_step_and_a_finished_run_can_be_extended(
    train: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    original_step = TrainingRun.step

    def interrupted_step(self: Any, objective: Any, step: int) -> Any:
        if step == 6:
            signal.raise_signal(signal.SIGINT)
        return original_step(self, objective, step)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "step", interrupted_step)
        stopped = train("--steps", "12")
    assert stopped.status == 130
    assert "stopped" in stopped.err
    assert "step 7" in stopped.err
    assert "Traceback" not in stopped.err
    assert "step 7 of 12" in train("--steps", "12").err
    train("--steps", "12", out="uninterrupted")
    for name in ("last/model.safetensors", "last/optimiser.safetensors", "model.safetensors"):
        assert Path("run", name).read_bytes() == Path("uninterrupted", name).read_bytes()
    again = train("--steps", "12").out
    assert "run is finished at step 12" in again
    assert "--steps 24" in again
    assert "15 steps" in train("--steps", "15").err
    assert last_checkpoint_step(Path("run")) == 15


def test_a_cpu_run_estimates_its_time(train: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "steps to go will take about" in train("--steps", "12").err
    assert "steps to go" not in train("--steps", "22").err  # the tenth of ten steps is the last
    monkeypatch.setattr("rheoscope.learn.train_report.measure_flop_rate", lambda: 1e3)
    warning = train("--steps", "3", out="slow").err
    assert warning.startswith("3 steps take ")
    assert " h " in warning or "days" in warning


def test_a_recipe_that_takes_days_is_announced_before_its_first_step() -> None:
    from rheoscope.models.recipes import gpt2, tiny

    warning = training_time.long_run_warning(gpt2(), 0, flop_rate=1e11)
    assert "100,000 steps take" in warning
    assert "days or more on this CPU" in warning
    assert training_time.long_run_warning(tiny(), 0, flop_rate=1e10) == ""


# Directories of others


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "log.jsonl", "model.safetensors", "recipe.json"])
def test_training_leaves_a_foreign_directory_alone(name: str, refused: Callable[..., str]) -> None:
    Path("mine").mkdir()
    Path("mine", name).write_text("{}")
    Path("book.txt").write_text("to be or not to be. " * 99)
    message = refused("train", "tiny", "--data", "book.txt", "--out", "mine", "--device", "cpu")
    assert f"mine contains {name}, which no run of Rheoscope wrote" in message


@pytest.mark.parametrize("data", ["nothing.txt", "empty.txt", "short.txt"])
def test_refused_data_leave_no_directory(data: str, refused: Callable[..., str]) -> None:
    Path("empty.txt").write_text("")
    Path("short.txt").write_text("to be or not")
    assert (
        data in refused("train", "tiny", "--data", data, "--out", "new/run", "--device", "cpu") or data == "short.txt"
    )


def test_foreign_data_are_left_alone(refused: Callable[..., str]) -> None:
    Path("run/data").mkdir(parents=True)
    Path("run/data/train.bin").write_text("mine")
    Path("book.txt").write_text("to be or not to be. " * 99)
    message = refused("train", "tiny", "--data", "book.txt", "--out", "run", "--device", "cpu")
    assert "contains train.bin, which belongs to no corpus" in message

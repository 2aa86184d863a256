"""Ctrl-C during training: the step is kept and the run resumes exactly. Runs can be extended."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rheoscope.models.interrupts import stop_between_steps
from rheoscope.models.optimiser import learning_rate
from rheoscope.models.recipes import Recipe
from rheoscope.models.train import train
from rheoscope.models.training_state import last_checkpoint_step
from rheoscope.shapes import RheoscopeError
from tests.models.runs import prose, run, run_files, small


@pytest.fixture(autouse=True)
def default_sigint() -> Iterator[None]:
    """Restore the default handler, because tests in the background of a shell ignore Ctrl-C."""
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous_handler)


def train_until_interrupt(out: Path, recipe: Recipe, step: int, **options: Any) -> None:
    """Train with a Ctrl-C in the middle of a step."""
    with pytest.raises(KeyboardInterrupt):
        train(recipe, InterruptedTask(step), out, device="cpu", **options)


class InterruptedTask:
    """A task that raises SIGINT during the batch of one step."""

    def __init__(self, step: int) -> None:
        self.interrupted_step, self.task = step, prose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def batch(self, step: int, recipe: Recipe) -> Any:
        if step + 1 == self.interrupted_step:
            signal.raise_signal(signal.SIGINT)
        return self.task.batch(step, recipe)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("uninterrupted")
    run(out, small(evaluate_every=3))
    return out


@pytest.mark.parametrize("step", [1, 5, 6])
def test_ctrl_c_keeps_the_current_step(step: int, uninterrupted: Path, tmp_path: Path) -> None:
    train_until_interrupt(tmp_path / "run", small(evaluate_every=3), step)
    assert last_checkpoint_step(tmp_path / "run") == step
    run(tmp_path / "run", small(evaluate_every=3))
    assert run_files(tmp_path / "run") == run_files(uninterrupted)


def test_a_second_ctrl_c_stops_at_once() -> None:
    requests: list[str] = []
    with stop_between_steps(lambda: requests.append("once")) as stop_requested:
        signal.raise_signal(signal.SIGINT)
        assert stop_requested()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert requests == ["once"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_and_ignored_signals_change_nothing() -> None:
    def check_in_thread() -> None:
        with stop_between_steps(lambda: None) as stop_requested:
            assert not stop_requested()

    thread = threading.Thread(target=check_in_thread)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stop_between_steps(lambda: None) as stop_requested:
        signal.raise_signal(signal.SIGINT)
        assert not stop_requested()


# A longer run


def logged_messages(out: Path, recipe: Recipe) -> list[str]:
    messages: list[str] = []
    train(recipe, prose(), out, device="cpu", log=messages.append)
    return messages


def test_extending_a_finished_run_reports_the_change_of_the_rate(tmp_path: Path) -> None:
    run(tmp_path, small())
    old_rate, new_rate = (learning_rate(small(steps=steps), step) for steps, step in ((9, 8), (14, 9)))
    assert new_rate > old_rate
    assert logged_messages(tmp_path, small(steps=14)) == [
        f"resuming {tmp_path} at step 9 of 14",
        f"The run was planned for 9 steps and now has 14. Its learning rate changes from {old_rate:.2g} to {new_rate:.2g}, "
        "so it differs from a run of 14 steps.",
    ]
    assert last_checkpoint_step(tmp_path) == 14
    assert json.loads((tmp_path / "recipe.json").read_text())["extended"] == [{"at": 9, "from": 9, "to": 14}]
    with pytest.raises(RheoscopeError, match="is at step 14 of 14, got steps=9; type steps=15"):
        run(tmp_path, small())


def test_an_extended_run_resumes_exactly_after_a_kill(tmp_path: Path) -> None:
    for out in (tmp_path / "uninterrupted", tmp_path / "killed"):
        run(out, small(steps=5))
    run(tmp_path / "uninterrupted", small(steps=11))
    run(tmp_path / "killed", small(steps=11), stop_at=7)
    train_until_interrupt(tmp_path / "killed", small(steps=11), 9)
    assert logged_messages(tmp_path / "killed", small(steps=11)) == [f"resuming {tmp_path / 'killed'} at step 9 of 11"]
    assert run_files(tmp_path / "killed") == run_files(tmp_path / "uninterrupted")


def test_extension_equals_the_longer_run_if_the_schedules_agree(tmp_path: Path) -> None:
    """wsd keeps its rate until the last fifth."""
    recipe = small(schedule="wsd", evaluate_every=2)
    train_until_interrupt(tmp_path / "extended", recipe.with_changes(steps=10), 7)
    assert (
        "both schedules agree so far, so it ends like a run of 12 steps"
        in logged_messages(tmp_path / "extended", recipe.with_changes(steps=12))[1]
    )
    run(tmp_path / "uninterrupted", recipe.with_changes(steps=12))
    assert run_files(tmp_path / "extended") == run_files(tmp_path / "uninterrupted")

"""Ctrl-C while a model learns: the step is kept, and the run ends as if nothing had happened; a run can be made longer."""

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
from tests.models.runs import kept, prose, run, small


@pytest.fixture(autouse=True)
def hearing() -> Iterator[None]:
    """Tests that run in the background of a shell are born deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(out: Path, recipe: Recipe, at: int, **more: Any) -> None:
    """Ctrl-C in the middle of step `at`."""
    with pytest.raises(KeyboardInterrupt):
        train(recipe, Typed(at), out, device="cpu", **more)


class Typed:
    """A task during whose batch of one step somebody types Ctrl-C."""

    def __init__(self, at: int) -> None:
        self.at, self.task = at, prose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def batch(self, step: int, recipe: Recipe) -> Any:
        if step + 1 == self.at:
            signal.raise_signal(signal.SIGINT)
        return self.task.batch(step, recipe)


@pytest.mark.parametrize("at", [1, 5, 6])
def test_ctrl_c_keeps_the_step_it_was_at(at: int, tmp_path: Path) -> None:
    run(tmp_path / "whole", small(evaluate_every=3))
    interrupted(tmp_path / "run", small(evaluate_every=3), at)
    assert last_checkpoint_step(tmp_path / "run") == at
    run(tmp_path / "run", small(evaluate_every=3))
    assert kept(tmp_path / "run") == kept(tmp_path / "whole")


def test_a_second_one_stops_at_once() -> None:
    heard: list[str] = []
    with stop_between_steps(lambda: heard.append("once")) as asked:
        signal.raise_signal(signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert heard == ["once"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_nobody_hears_nothing_changes() -> None:
    def elsewhere() -> None:
        with stop_between_steps(lambda: None) as asked:
            assert not asked()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stop_between_steps(lambda: None) as asked:
        signal.raise_signal(signal.SIGINT)
        assert not asked()


# A longer run


def said_by(out: Path, recipe: Recipe) -> list[str]:
    said: list[str] = []
    train(recipe, prose(), out, device="cpu", log=said.append)
    return said


def test_a_finished_run_is_extended_and_says_what_becomes_of_the_rate(tmp_path: Path) -> None:
    run(tmp_path, small())
    was, will = (learning_rate(small(steps=steps), step) for steps, step in ((9, 8), (14, 9)))
    assert will > was
    assert said_by(tmp_path, small(steps=14)) == [
        f"going on with {tmp_path} at step 9 of 14",
        f"planned for 9 steps, now for 14: the rate goes on by the schedule of 14 steps, at {will:.2g} after {was:.2g}, "
        "and ends elsewhere than 14 steps from the start would",
    ]
    assert last_checkpoint_step(tmp_path) == 14
    assert json.loads((tmp_path / "recipe.json").read_text())["extended"] == [{"at": 9, "from": 9, "to": 14}]
    with pytest.raises(RheoscopeError, match="stands at step 14 of 14, got --steps 9; type more than 14"):
        run(tmp_path, small())


def test_an_extended_run_that_is_killed_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    for out in (tmp_path / "whole", tmp_path / "killed"):
        run(out, small(steps=5))
    run(tmp_path / "whole", small(steps=11))
    run(tmp_path / "killed", small(steps=11), stop_at=7)
    interrupted(tmp_path / "killed", small(steps=11), 9)
    assert said_by(tmp_path / "killed", small(steps=11)) == [f"going on with {tmp_path / 'killed'} at step 9 of 11"]
    assert kept(tmp_path / "killed") == kept(tmp_path / "whole")


def test_where_schedules_agree_so_far_it_is_the_longer_run(tmp_path: Path) -> None:
    """wsd stays at its rate until the last fifth."""
    recipe = small(schedule="wsd", evaluate_every=2)
    interrupted(tmp_path / "extended", recipe.with_changes(steps=10), 7)
    assert "ends as if it had been planned so" in said_by(tmp_path / "extended", recipe.with_changes(steps=12))[1]
    run(tmp_path / "whole", recipe.with_changes(steps=12))
    assert kept(tmp_path / "extended") == kept(tmp_path / "whole")

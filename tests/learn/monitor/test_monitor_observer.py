"""`rheoscope train --monitor`: it checks held-out texts, changes nothing, and the page shows it with the losses of the run."""

from pathlib import Path

import pytest

from rheoscope.learn.monitor.logs import read_readings
from rheoscope.learn.monitor.monitor_observer import MonitorObserver
from rheoscope.learn.run_state import training_state
from rheoscope.learn.train_report import call_all
from rheoscope.shapes import RheoscopeError
from tests.models.runs import prose, run, small, translation, translator

RECIPE = small(steps=4)


def test_a_run_is_checked_and_unchanged(tmp_path: Path) -> None:
    steps: list[int] = []
    observer = MonitorObserver.from_task(2, tmp_path / "checked", prose(), RECIPE)
    run(tmp_path / "checked", RECIPE, observe=call_all([observer, lambda step, model: steps.append(step)]))
    run(tmp_path / "plain", RECIPE)
    assert steps == [0, 1, 2, 3, 4]
    assert [reading.step for reading in read_readings(tmp_path / "checked")] == [2, 4]
    weights = [(tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("checked", "plain")]
    assert weights[0] == weights[1]
    state = training_state(tmp_path / "checked")
    assert len(state.blocks) == len(training_state(tmp_path / "plain").blocks) + 3
    assert call_all([]) is None


def test_an_encoder_decoder_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match="leave monitor out"):
        MonitorObserver.from_task(2, tmp_path, translation(), translator())

"""Where the monitor writes: a folder that can be read back and resumed, TensorBoard, Weights & Biases and functions."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.learn.monitor.alarms import Alarm
from rheoscope.learn.monitor.logs import (
    ALARMS,
    FINISHED,
    MONITOR_FOLDER,
    READINGS,
    FolderLog,
    open_logs,
    read_alarms,
    read_readings,
    scalars,
)
from rheoscope.learn.run_state import run_files, run_reader
from rheoscope.studio.training_runs import TrainingRuns
from tests.learn.monitor.cases import reading, small_gpt2, train
from tests.studio.cases import render_text, untranslated_templates

FIRST = reading(100, entropy=[[0.5, 0.25], [np.nan, 1.0]], residual=[0.1, 0.2])
SECOND = reading(200, entropy=[[0.4, 0.2], [np.nan, 0.9]], residual=[0.1, 0.3])
ALARM = Alarm(200, "logit_growth", 1, 0, 123.4, n_others=2)


class Recorder:
    """A stand-in for the writer of TensorBoard and for a run of Weights & Biases."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self.calls.append((name, *args, options))


def write_run(run: Path) -> FolderLog:
    log = FolderLog(run)
    log.write(FIRST, [])
    log.write(SECOND, [ALARM])
    return log


def test_a_folder_is_read_back(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert read_alarms(tmp_path) == [ALARM]
    for stored, written in zip(read_readings(tmp_path), (FIRST, SECOND), strict=True):
        assert stored.step == written.step
        for name in written.values:
            assert np.allclose(stored.values[name], written.values[name], equal_nan=True)


def test_a_resumed_run_replaces_what_it_repeats(tmp_path: Path) -> None:
    write_run(tmp_path).close()
    readings_file = tmp_path / MONITOR_FOLDER / READINGS
    readings_file.write_text(readings_file.read_text() + '{"step": 300, "val')  # a kill
    FolderLog(tmp_path).write(SECOND, [])
    assert [stored.step for stored in read_readings(tmp_path)] == [100, 200]
    assert read_alarms(tmp_path) == []
    assert sorted(file.stem for file in tmp_path.rglob("*.parquet")) == ["step-000100", "step-000200"]
    assert not (tmp_path / MONITOR_FOLDER / FINISHED).exists()


def test_parquet_has_one_row_per_layer_and_head(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_run(tmp_path)
    rows = parquet.read_table(tmp_path / MONITOR_FOLDER / "readings").to_pylist()
    assert len(rows) == 2 * 2 * 3
    assert rows[0] == {"step": 100, "layer": 0, "head": None, "entropy": None, "residual": pytest.approx(0.1)}
    assert rows[1] == {"step": 100, "layer": 0, "head": 0, "entropy": 0.5, "residual": None}
    assert rows[4]["entropy"] is None  # NaN: this layer has one head


def test_a_folder_without_pyarrow_has_no_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rheoscope.learn.monitor.logs.find_spec", lambda name: None)
    write_run(tmp_path)
    assert {file.name for file in tmp_path.rglob("*.*")} == {READINGS, ALARMS}


def test_tensorboard_receives_scalars_and_alarms() -> None:
    class Writer(Recorder):
        def add_scalar(self, *args: Any) -> None:
            self.calls.append(args)

    writer = Writer()
    (log,) = open_logs(writer)
    log.write(SECOND, [ALARM])
    assert ("monitor/entropy/L0.H1", 0.2, 200) in writer.calls
    assert ("monitor/residual/L1", 0.3, 200) in writer.calls
    assert writer.calls[-1] == ("add_text", "monitor/alarms", ALARM.line, 200, {})
    assert len(writer.calls) == len(scalars(SECOND)) + 1 == 6


def test_weights_and_biases_receives_the_same_with_the_next_values() -> None:
    class WandbRun:
        def __init__(self) -> None:
            self.logged: list[Any] = []

        def log(self, values: dict[str, Any], commit: bool) -> None:
            self.logged.append((values, commit))

    run = WandbRun()
    (log,) = open_logs(run)
    log.write(SECOND, [ALARM])
    assert run.logged == [({"monitor/step": 200} | scalars(SECOND) | {"monitor/alarms": ALARM.line}, False)]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(rs.RheoscopeError, match="needs the package wandb"):
        open_logs("wandb")
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(log=print))
    assert open_logs("wandb")[0].run.log is print  # type: ignore[attr-defined]


def test_several_logs_receive_every_reading(tmp_path: Path) -> None:
    steps: list[int] = []
    net = small_gpt2()
    monitor = rs.Monitor(net, every=2, log=[tmp_path, lambda reading, alarms: steps.append(reading.step)])
    train(net, monitor, steps=4)
    assert steps == [2, 4] == [stored.step for stored in read_readings(tmp_path)]
    dataset = monitor.dataset()
    assert dataset.entropy.dims == ("checkpoint", "layer", "head")
    assert [panel.title for panel in rs.plot(dataset).axes if hasattr(panel, "title")]
    stored = json.loads((tmp_path / MONITOR_FOLDER / READINGS).read_text().splitlines()[-1])
    assert stored["loss"] == pytest.approx(monitor.readings[-1].loss)


def test_the_learning_view_shows_the_run_and_its_alarms(tmp_path: Path) -> None:
    log = write_run(tmp_path / "run")
    runs = TrainingRuns(tmp_path)
    assert runs.list_json()["runs"] == ["run"]
    report = runs.run_json("run")
    assert report["live"]
    assert render_text(report["sentence"]) == "Step 200: 1 alarm."
    assert untranslated_templates(report) == set()
    alarms, drawing, rules = report["blocks"]
    assert [render_text(line) for line in alarms["lines"]] == [ALARM.line]
    assert len(rules["rows"]) == 5
    assert [render_text(panel["title"]) for panel in drawing["picture"]["panels"]] == ["Loss", "Entropy", "Residual"]
    log.close()
    assert not runs.run_json("run")["live"]


def test_a_run_without_alarms_says_so(tmp_path: Path) -> None:
    FolderLog(tmp_path).write(FIRST, [])
    reader = run_reader(tmp_path)
    assert reader is not None
    state = reader(tmp_path)
    assert state.sentence == "Step 100: no alarm in 1 check."
    assert state.blocks[0].lines == ["No alarm in 1 check."]  # type: ignore[union-attr]
    assert {file.name for file in run_files(tmp_path)} == {READINGS, ALARMS}

"""Where the monitor writes: a folder (JSON lines for the page, and Parquet), TensorBoard, Weights & Biases, or a function.

FOLDER/monitor/readings.jsonl            one line per check: step, loss, seconds and every quantity
               alarms.jsonl              one line per alarm
               readings/step-000100.parquet    the same numbers as a table: one row per layer and head
               finished                  empty, if the run has ended
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rheoscope.files import write_file
from rheoscope.learn.monitor.alarms import Alarm
from rheoscope.learn.monitor.quantities import QUANTITIES, Reading
from rheoscope.messages.advice import Advice
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

MONITOR_FOLDER, READINGS, ALARMS, TABLES, FINISHED = "monitor", "readings.jsonl", "alarms.jsonl", "readings", "finished"
"""The folder in a run's folder, its two files, the folder of its Parquet files, and the file that marks the end of the run."""


class Log(ABC):
    """A receiver of every reading, with the alarms that begin there."""

    @abstractmethod
    def write(self, reading: Reading, alarms: Sequence[Alarm]) -> None:
        """Store a reading and its new alarms."""

    def close(self) -> None:  # noqa: B027 (most logs have nothing to do)
        """The training has ended."""


@dataclass
class FolderLog(Log):
    """Readings and alarms as JSON lines, and as Parquet if pyarrow is installed. `rheoscope studio --runs` shows the folder."""

    run: Path
    is_open: bool = False

    @property
    def folder(self) -> Path:
        return self.run / MONITOR_FOLDER

    def write(self, reading: Reading, alarms: Sequence[Alarm]) -> None:
        if not self.is_open:
            self._drop_from(reading.step)
            self.is_open = True
        self._append(READINGS, [reading_json(reading)])
        self._append(ALARMS, [asdict(alarm) for alarm in alarms])
        if find_spec("pyarrow") is not None:
            file = self.folder / TABLES / f"step-{reading.step:06}.parquet"
            write_file(file, lambda path: write_parquet(reading, path))

    def close(self) -> None:
        if self.is_open:
            (self.folder / FINISHED).touch()
            self.is_open = False

    def _append(self, name: str, entries: list[dict[str, Any]]) -> None:
        with (self.folder / name).open("a") as file:
            file.write("".join(json.dumps(entry) + "\n" for entry in entries))

    def _drop_from(self, step: int) -> None:
        """Drop what a run wrote at this step or later before it was resumed, and a line that a kill cut short."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / FINISHED).unlink(missing_ok=True)
        for name in (READINGS, ALARMS):
            lines = [json.dumps(entry) + "\n" for entry in read_lines(self.folder / name) if entry["step"] < step]
            write_file(self.folder / name, partial(Path.write_text, data="".join(lines)))
        for table in (self.folder / TABLES).glob("step-*.parquet"):
            if int(table.stem.removeprefix("step-")) >= step:
                table.unlink()


@dataclass(frozen=True)
class TensorBoardLog(Log):
    """Scalars of every layer and head, and alarms as text, for a `SummaryWriter`."""

    writer: Any

    def write(self, reading: Reading, alarms: Sequence[Alarm]) -> None:
        for name, value in scalars(reading).items():
            self.writer.add_scalar(name, value, reading.step)
        for alarm in alarms:
            self.writer.add_text("monitor/alarms", render(alarm.line), reading.step)


@dataclass(frozen=True)
class WandbLog(Log):
    """The same scalars for Weights & Biases. They join the next values that the training logs."""

    run: Any

    def write(self, reading: Reading, alarms: Sequence[Alarm]) -> None:
        lines = {"monitor/alarms": "\n".join(render(alarm.line) for alarm in alarms)} if alarms else {}
        self.run.log({"monitor/step": reading.step} | scalars(reading) | lines, commit=False)


@dataclass(frozen=True)
class FunctionLog(Log):
    """A function of the reading and its new alarms."""

    function: Callable[[Reading, Sequence[Alarm]], object]

    def write(self, reading: Reading, alarms: Sequence[Alarm]) -> None:
        self.function(reading, alarms)


def open_logs(log: Any) -> tuple[Log, ...]:
    """The logs that `log` names: a folder, "wandb", a `SummaryWriter`, a run of Weights & Biases, a function, or several of these."""
    if log is None:
        return ()
    if isinstance(log, list | tuple):
        return tuple(item for part in log for item in open_logs(part))
    if log == "wandb":
        return (WandbLog(import_wandb()),)
    if isinstance(log, str | Path):
        return (FolderLog(Path(log)),)
    if hasattr(log, "add_scalar"):
        return (TensorBoardLog(log),)
    if hasattr(log, "log"):
        return (WandbLog(log),)
    if callable(log):
        return (FunctionLog(log),)
    raise RheoscopeError(
        Message(
            "log must be a folder, a TensorBoard writer or a function, got {received}", received=type(log).__name__
        ),
        Advice("rs.Monitor(model, log='run')"),
    )


def import_wandb() -> Any:
    """The package wandb. Raises if it is missing."""
    try:
        return import_module("wandb")
    except ImportError as error:
        raise RheoscopeError(
            Message("log='wandb' needs the package wandb"), Advice("pip install wandb", "pip install wandb")
        ) from error


def scalars(reading: Reading) -> dict[str, float]:
    """Every finite value with its name, such as `monitor/entropy/L0.H1`.

    >>> scalars(Reading(10, {"residual": np.array([0.5])}, {}))
    {'monitor/residual/L0': 0.5}
    """
    return {
        f"monitor/{name}/{'.'.join(label + str(i) for label, i in zip('LH', index, strict=False))}": float(value)
        for name, values in reading.values.items()
        if QUANTITIES[name].is_shown
        for index, value in np.ndenumerate(values)
        if math.isfinite(value)
    }


def reading_json(reading: Reading) -> dict[str, Any]:
    """A reading as JSON stores it. NaN becomes null."""
    values = {name: _nan_to_none(array.astype(float).round(6).tolist()) for name, array in reading.values.items()}
    loss = None if reading.loss is None or not math.isfinite(reading.loss) else reading.loss
    facts = {"step": reading.step, "loss": loss, "seconds": round(reading.seconds, 4)}
    return facts | {"values": values, "left_out": reading.left_out}


def _nan_to_none(value: Any) -> Any:
    if isinstance(value, list):
        return [_nan_to_none(item) for item in value]
    return value if math.isfinite(value) else None


def read_readings(run: Path) -> list[Reading]:
    """The readings in a run's folder, in order."""
    return [
        Reading(
            entry["step"],
            {name: np.array(values, dtype=float) for name, values in entry["values"].items()},
            entry["left_out"],
            entry["loss"],
            entry["seconds"],
        )
        for entry in read_lines(run / MONITOR_FOLDER / READINGS)
    ]


def read_alarms(run: Path) -> list[Alarm]:
    """The alarms in a run's folder, in order."""
    return [Alarm(**entry) for entry in read_lines(run / MONITOR_FOLDER / ALARMS)]


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The entries of a file of JSON lines. A line that a kill cut short is skipped."""
    entries = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries


def write_parquet(reading: Reading, path: Path) -> None:
    """A table with one row per layer and head. Quantities of a layer are in its row without a head."""
    import pyarrow as pa
    from pyarrow import parquet

    shown = {name: values for name, values in reading.values.items() if QUANTITIES[name].is_shown}
    places = sorted(
        {index for values in shown.values() for index in np.ndindex(values.shape)}, key=lambda i: (i[0], i[1:])
    )
    columns: dict[str, Any] = {
        "step": pa.array([reading.step] * len(places), pa.int64()),
        "layer": pa.array([index[0] for index in places], pa.int32()),
        "head": pa.array([index[1] if len(index) > 1 else None for index in places], pa.int32()),
    }
    for name, values in shown.items():
        in_row = {index: float(value) for index, value in np.ndenumerate(values) if math.isfinite(value)}
        columns[name] = pa.array([in_row.get(index) for index in places], pa.float32())
    parquet.write_table(pa.table(columns), path)

"""The state of a training run or a race from its folder, finished or not: a sentence, curves and tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rheoscope.learn.contrasts import AHEAD, BEHIND, UNDECIDED
from rheoscope.learn.curves import read_started_curves
from rheoscope.learn.entrants import BASELINE
from rheoscope.learn.geometry_over_training import learned
from rheoscope.learn.geometry_report import build_table
from rheoscope.learn.monitor.logs import ALARMS, FINISHED, MONITOR_FOLDER, READINGS, read_alarms, read_readings
from rheoscope.learn.monitor.monitor_pictures import monitor_blocks, monitor_sentence
from rheoscope.learn.race_files import RACE_FILE, list_packs, read_race_settings
from rheoscope.learn.race_page import geometry_picture, progress_picture, race_picture
from rheoscope.learn.race_result import best_rate_observations, median_speeds, race_result
from rheoscope.learn.race_tables import report_tables
from rheoscope.messages.message import Message, join
from rheoscope.models.train import read_log
from rheoscope.models.training_state import LOG, OBSERVATIONS, RECIPE, read_recipe
from rheoscope.picture.blocks import Block, Drawing
from rheoscope.picture.picture import Axis, Line, Panel, Picture
from rheoscope.report.draw_result import picture_of

LOSSES = {"loss": Message("held-out loss"), "train loss": Message("training loss")}
"""The losses in the log of a run, with their names."""


@dataclass(frozen=True)
class RunState:
    """How far a run is, one sentence about it, and what to show."""

    step: int
    steps: int
    sentence: str
    blocks: Sequence[Block]

    @property
    def is_finished(self) -> bool:
        return self.step >= self.steps


def run_reader(folder: Path) -> Callable[[Path], RunState] | None:
    """The function that reads the run in a folder: a race, a training run, or a run that was monitored. None if it holds none."""
    if (folder / RACE_FILE).is_file():
        return race_state
    if (folder / RECIPE).is_file():
        return training_state
    return monitored_state if (folder / MONITOR_FOLDER / READINGS).is_file() else None


def monitored_state(folder: Path) -> RunState:
    """A run of any trainer with `rs.Monitor(model, log=folder)`. How many steps it takes is not known."""
    readings, alarms = read_readings(folder), read_alarms(folder)
    if not readings:
        return RunState(0, 1, Message("The monitor has not measured yet."), [])
    step = readings[-1].step
    return RunState(
        step,
        step + int(not (folder / MONITOR_FOLDER / FINISHED).exists()),
        monitor_sentence(readings, alarms),
        monitor_blocks(folder),
    )


def training_state(folder: Path) -> RunState:
    """A training run: its losses, and the observed geometry on the same axis."""
    steps, log = int(read_recipe(folder / RECIPE)["steps"]), read_log(folder)
    step = int(log[-1]["step"]) if log else 0
    has_geometry = any((folder / OBSERVATIONS).glob("step-*.json"))
    geometry = learned(folder).assign_attrs(run=folder.name) if has_geometry else None
    panels = () if geometry is None else picture_of(geometry).panels
    caption = Message("Losses in nats per token, and quantities of one held-out text at chosen steps.")
    if geometry is None:
        caption = Message("Losses in nats per token. To observe geometry too, train with --look 0,100,300,1000.")
    picture = Picture(Message("Loss and geometry during training"), caption, (loss_panel(log), *panels))
    tables = [] if geometry is None else [build_table(geometry)]
    blocks = [Drawing(picture), *tables, *monitor_blocks(folder)]
    return RunState(step, steps, training_sentence(step, steps, log), blocks)


def training_sentence(step: int, steps: int, log: Sequence[dict[str, Any]]) -> Message:
    """How far a run is, and its last losses.

    >>> training_sentence(20, 60, [{"step": 20, "loss": 2.5, "train loss": 2.25}])
    'Step 20 of 60: held-out loss 2.500, training loss 2.250.'
    """
    if not log:
        return Message("The run has {steps:,} steps and no evaluation yet.", steps=steps)
    losses = [
        Message("{name} {loss:.3f}", name=title, loss=log[-1][name])
        for name, title in LOSSES.items()
        if log[-1].get(name) is not None
    ]
    return Message("Step {step:,} of {steps:,}: {losses}.", step=step, steps=steps, losses=join(", ", losses))


def loss_panel(log: Sequence[dict[str, Any]]) -> Panel:
    """The losses of a run at every evaluation."""
    steps = np.array([entry["step"] for entry in log], dtype=float)
    marks = tuple(
        Line(title, steps, np.array([_nan_if_none(entry.get(name)) for entry in log]), colour)
        for (name, title), colour in zip(LOSSES.items(), ("first", "second"), strict=True)
    )
    about = Message("the loss on held-out data and on the batches since the last evaluation, in nats per token")
    return Panel(
        Message("Loss"), about, marks, Axis(Message("training step"), low=0.0), Axis(Message("loss")), columns=2
    )


def _nan_if_none(value: float | None) -> float:
    return np.nan if value is None else float(value)


def race_state(folder: Path) -> RunState:
    """A race: every entrant so far, and the comparison as soon as all entrants have been evaluated."""
    settings, curves = read_race_settings(folder), read_started_curves(folder)
    packs, steps = list_packs(settings), int(settings["recipe"]["steps"])
    step = min((curve.steps[-1] for curve in curves), default=0) if len(curves) == len(packs) else 0
    blocks: list[Block] = [Drawing(progress_picture(curves))] if curves and step < steps else []
    if len(curves) < len(packs):
        started = Message(
            "{started} of {total} runs have been evaluated. The comparison starts when all have.",
            started=len(curves),
            total=len(packs),
        )
        return RunState(step, steps, started, blocks)
    result = race_result(folder)
    observations = best_rate_observations(folder)
    drawings = [race_picture(result), *([geometry_picture(observations)] if observations else [])]
    tables = report_tables(result, median_speeds(folder))
    counts = {verdict: int((result.verdict == verdict).sum()) for verdict in (AHEAD, BEHIND, UNDECIDED)}
    sentence = Message(
        "Entrants compared with {baseline} after {step:,} of {steps:,} steps: {ahead} ahead, {behind} behind, {unclear} unclear.",
        baseline=BASELINE,
        step=step,
        steps=steps,
        ahead=counts[AHEAD],
        behind=counts[BEHIND],
        unclear=counts[UNDECIDED],
    )
    return RunState(step, steps, sentence, [*blocks, *map(Drawing, drawings), *tables])


def run_files(folder: Path) -> list[Path]:
    """The files of a run that its state is read from."""
    patterns = [RACE_FILE, RECIPE, LOG, f"{OBSERVATIONS}/*.json", f"packs/*/{LOG}", f"packs/*/{OBSERVATIONS}/*.json"]
    patterns += [f"{MONITOR_FOLDER}/{name}" for name in (READINGS, ALARMS, FINISHED)]
    return [file for pattern in patterns for file in sorted(folder.glob(pattern))]

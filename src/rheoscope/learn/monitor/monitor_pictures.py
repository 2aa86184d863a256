"""The readings of a monitor as a Dataset, and as blocks of the page: curves of every quantity, and the alarms."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.learn.monitor.alarms import RULES, Alarm
from rheoscope.learn.monitor.logs import read_alarms, read_readings
from rheoscope.learn.monitor.quantities import QUANTITIES, Reading
from rheoscope.messages.message import Message, plural
from rheoscope.picture.blocks import Block, Cell, Drawing, Lines, Table, to_cells
from rheoscope.picture.field_panels import field_title
from rheoscope.picture.picture import Axis, Line, Mark, Panel, Picture

if TYPE_CHECKING:
    import xarray

PANEL_OF_RULE = {
    "logit_growth": "largest_logit",
    "entropy_collapse": "entropy",
    "rank_collapse": "token_cosine",
    "dead_head": "relative_displacement",
    "duplicated_head": "nearest_head_cosine",
}
"""The quantity in whose panel the alarms of a rule are marked."""


def as_dataset(readings: Sequence[Reading]) -> "xarray.Dataset":
    """The readings along their steps, with the axes checkpoint, layer and head."""
    import xarray as xr

    values = {}
    for name, quantity in QUANTITIES.items():
        if quantity.is_shown and any(name in reading.values for reading in readings):
            shape = next(reading.values[name].shape for reading in readings if name in reading.values)
            rows = [reading.values.get(name, np.full(shape, np.nan)) for reading in readings]
            dims = ("checkpoint", "layer", "head")[: 1 + len(shape)]
            values[name] = xr.Variable(dims, np.stack(rows), {"definition": quantity.definition})
    values["loss"] = xr.Variable("checkpoint", losses(readings), {"definition": Message("loss of the training step")})
    question = Message("What do the heads do while the model trains?")
    steps = [reading.step for reading in readings]
    return xr.Dataset(values, {"checkpoint": steps}, {"analysis": "monitored", "question": question})


def losses(readings: Sequence[Reading]) -> np.ndarray:
    """The loss of every reading; NaN where there is none."""
    return np.array([np.nan if reading.loss is None else reading.loss for reading in readings], dtype=float)


def monitor_blocks(folder: Path) -> list[Block]:
    """The alarms and the curves of a run that was monitored. Empty for any other run."""
    readings, alarms = read_readings(folder), read_alarms(folder)
    if not readings:
        return []
    return [alarm_block(alarms, readings), Drawing(monitor_picture(readings, alarms)), rule_table()]


def alarm_block(alarms: Sequence[Alarm], readings: Sequence[Reading]) -> Lines:
    """All alarms, the last one first."""
    none = plural("No alarm in {n} check.", "No alarm in {n} checks.", n=len(readings))
    return Lines(Message("Alarms"), [alarm.line for alarm in reversed(alarms)] or [none])


def rule_table() -> Table:
    """Every rule with its thresholds and what to try."""
    header = to_cells([Message("alarm"), Message("rule"), Message("what to try")])
    rows = [[Cell(rule.title), Cell(rule.statement), Cell(rule.advice)] for rule in RULES.values()]
    return Table(Message("Rules of the alarms"), header, rows, frozenset({0, 1, 2}))


def monitor_picture(readings: Sequence[Reading], alarms: Sequence[Alarm]) -> Picture:
    """One panel per quantity: the largest, the median and the smallest value of all heads or layers. Stars are alarms."""
    caption = Message(
        "The largest, the median and the smallest value over all heads (or layers) at every check. Stars are alarms."
    )
    panels = [
        quantity_panel(name, readings, [alarm for alarm in alarms if PANEL_OF_RULE[alarm.rule] == name])
        for name, quantity in QUANTITIES.items()
        if quantity.is_shown and any(name in reading.values for reading in readings)
    ]
    return Picture(
        Message("What the heads do while the model trains"), caption, (training_loss_panel(readings), *panels)
    )


def training_loss_panel(readings: Sequence[Reading]) -> Panel:
    about = Message("the loss of the training step at every check, in nats per token")
    marks = (Line(Message("training loss"), step_numbers(readings), losses(readings)),)
    return Panel(
        Message("Loss"), about, marks, Axis(Message("training step"), low=0.0), Axis(Message("loss")), columns=2
    )


def quantity_panel(name: str, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> Panel:
    """The curves of one quantity, with its alarms."""
    measured = [reading for reading in readings if name in reading.values]
    table = np.stack([reading.values[name].reshape(-1) for reading in measured])
    summaries: dict[Message, Callable[..., Any]] = {
        Message("largest"): np.nanmax,
        Message("median"): np.nanmedian,
        Message("smallest"): np.nanmin,
    }
    marks: list[Mark] = [
        Line(label, step_numbers(measured), summary(table, axis=1), colour)
        for (label, summary), colour in zip(summaries.items(), ("second", "first", "third"), strict=True)
    ]
    if alarms:
        steps, values = (np.array(x, dtype=float) for x in zip(*((a.step, a.value) for a in alarms), strict=True))
        marks.append(Line(Message("alarm"), steps, values, "fourth", "stars", tips=[alarm.line for alarm in alarms]))
    is_wide = name == "largest_logit" and bool((table > 0).all())
    y = Axis(field_title(name), log=is_wide)
    return Panel(
        field_title(name), QUANTITIES[name].definition, tuple(marks), Axis(Message("training step"), low=0.0), y
    )


def step_numbers(readings: Sequence[Reading]) -> np.ndarray:
    return np.array([reading.step for reading in readings], dtype=float)


def monitor_sentence(readings: Sequence[Reading], alarms: Sequence[Alarm]) -> Message:
    """How far a run is, and its last alarm.

    >>> monitor_sentence([Reading(100, {}, {}, 2.5)], [])
    'Step 100: loss 2.500, no alarm in 1 check.'
    """
    last = readings[-1]
    count = plural("no alarm in {n} check", "no alarm in {n} checks", n=len(readings))
    if alarms:
        count = plural("{n} alarm", "{n} alarms", n=len(alarms))
    if last.loss is None:
        return Message("Step {step:,}: {alarms}.", step=last.step, alarms=count)
    return Message("Step {step:,}: loss {loss:.3f}, {alarms}.", step=last.step, loss=last.loss, alarms=count)

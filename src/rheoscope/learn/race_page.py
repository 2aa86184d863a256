"""The page of a race: the tables, and loss curves with confidence bands."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rheoscope.learn.contrasts import AHEAD, BEHIND
from rheoscope.learn.curves import Curves, best_curves
from rheoscope.learn.entrants import entrant_description, penalty_sweeps
from rheoscope.learn.geometry_over_training import QUANTITIES
from rheoscope.learn.race_tables import VERDICT_LABELS, report_tables
from rheoscope.learn.target_tokens import interpolate_target_tokens, tokens_ratio
from rheoscope.messages.message import Message
from rheoscope.picture.field_panels import band_marks, field_title
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Mark, Panel, Picture, Shape
from rheoscope.report.page import Page
from rheoscope.statistics.intervals import MIN_UNITS, student_interval

if TYPE_CHECKING:
    import xarray


DIFFERENCE_LABEL = Message("loss − baseline's loss")
VERDICT_COLOURS = {AHEAD: "first", BEHIND: "second"}
LIMIT_ENTRANTS = {"asymmetry": "tied"}
"""The entrant that a penalty approaches as its strength grows."""
Observations = dict[str, list[dict[str, Any]]]
"""Observations of every entrant's first seed: step, values and nulls by name."""


def build_page(
    result: "xarray.Dataset", speeds: dict[str, float], name: str, observations: Observations | None = None
) -> Page:
    """The tables, the curves, the observed geometry and the provenance."""
    shown_tables = report_tables(result, speeds)
    page = Page(Message("Race: {name}", name=name), shown_tables[0].note)
    for block in shown_tables:
        page = page.with_table(block.heading, block.header, block.rows, block.text_columns, block.note)
    page = page.with_picture(race_picture(result))
    if observations:
        page = page.with_picture(geometry_picture(observations))
    descriptions = {entrant: entrant_description(entrant) for entrant in map(str, result.entrant.values)}
    return page.with_facts(Message("Entrants"), descriptions).with_facts(
        Message("Provenance"), {k: str(v) for k, v in result.attrs.items()}
    )


def race_picture(result: "xarray.Dataset") -> Picture:
    """Losses, differences from the baseline, the loss at every rate, and the effect of penalties by strength."""
    return Picture(
        Message("Race"),
        Message(
            "Means over the seeds that did not diverge. Bands are 95 % intervals of the mean (Student's t, from 4 seeds on). A negative "
            "difference is a lower loss than the baseline's."
        ),
        (
            _loss_panel(result),
            _final_difference_panel(result),
            _difference_panel(result),
            *_rate_panels(result),
            *_sweep_panels(result),
        ),
    )


def progress_picture(curves: Sequence[Curves]) -> Picture:
    """The loss of every entrant that has been evaluated, each up to its own last evaluation and at its best rate so far."""
    entrants = list(dict.fromkeys(curve.entrant for curve in curves))
    best = [best_curves([curve for curve in curves if curve.entrant == name]) for name in entrants]
    marks = [mark for index, curve in enumerate(best) for mark in _progress_marks(curve, index)]
    description = Message("nats per token at each entrant's best rate so far, without the untrained model")
    panel = _curve_panel(Message("Held-out loss so far"), description, marks, columns=3)
    caption = Message("Entrants may be at different steps. Bands are 95 % intervals of the mean over seeds.")
    return Picture(Message("Training"), caption, (panel,))


def _progress_marks(curve: Curves, index: int) -> list[Mark]:
    first_column = int(len(curve.tokens) > 2)
    tokens = np.array(curve.tokens[first_column:], dtype=float)
    return _mean_curve(tokens, curve.loss.numpy()[:, first_column:], curve.entrant, index)


def geometry_picture(observations: Observations) -> Picture:
    """Every quantity of `rheoscope train --look` during training, one line per entrant."""
    quantities_by_entrant = {
        name: [key for key in QUANTITIES if key in entrant_observations[0]["values"]]
        for name, entrant_observations in observations.items()
    }
    panels = []
    for quantity in QUANTITIES:
        marks = tuple(
            Line(
                name,
                np.array([observation["step"] for observation in entrant_observations], dtype=float),
                np.array([_nan_if_none(observation["values"].get(quantity)) for observation in entrant_observations]),
                _series_colour(index),
                "dashed" if index >= len(SERIES_COLOURS) else "solid",
            )
            for index, (name, entrant_observations) in enumerate(observations.items())
            if quantity in quantities_by_entrant[name]
        )
        if marks:
            panels.append(
                Panel(
                    field_title(quantity),
                    QUANTITIES[quantity].definition,
                    marks,
                    Axis(Message("step")),
                    Axis(field_title(quantity)),
                )
            )
    return Picture(
        Message("Geometry during training"),
        Message("The first seed of every entrant. Step 0 is untrained."),
        tuple(panels),
    )


def _nan_if_none(value: float | None) -> float:
    return np.nan if value is None else value


def _loss_panel(result: "xarray.Dataset") -> Panel:
    first_column = int(result.sizes["step"] > 2)  # the untrained loss would dominate the scale
    marks = [
        mark
        for index, name in enumerate(_entrant_names(result))
        for mark in _mean_curve(
            result.tokens.values[first_column:], result.loss.values[index][:, first_column:], name, index
        )
    ]
    description = Message("nats per token at each entrant's best rate, without the untrained model")
    return _curve_panel(Message("Held-out loss"), description, marks, columns=2)


def _curve_panel(title: Message, description: Message, marks: Sequence[Mark], columns: int) -> Panel:
    """Losses against tokens."""
    return Panel(title, description, tuple(marks), Axis(Message("tokens")), Axis(Message("loss")), columns=columns)


def _difference_panel(result: "xarray.Dataset") -> Panel:
    loss = result.loss.values
    marks = [
        mark
        for index, name in enumerate(_entrant_names(result))
        if index
        for mark in _mean_curve(result.tokens.values, loss[index] - loss[0], name, index)
    ]
    baseline_line = Line(Message("baseline"), result.tokens.values, np.zeros(result.sizes["step"]), "null", "dashed")
    return Panel(
        Message("Difference from the baseline"),
        Message("paired by seed"),
        (baseline_line, *marks),
        Axis(Message("tokens")),
        Axis(DIFFERENCE_LABEL),
        columns=2,
    )


def _final_difference_panel(result: "xarray.Dataset") -> Panel:
    """Final differences with their intervals, the lowest loss on top, coloured by verdict."""
    order = sorted(range(1, result.sizes["entrant"]), key=lambda index: -float(result.difference[index]))
    names = [_entrant_names(result)[index] for index in order]
    marks: list[Mark] = []
    for row, index in enumerate(order):
        entrant = result.isel(entrant=index)
        low, mean, high = (float(entrant[name]) for name in ("difference_low", "difference", "difference_high"))
        verdict = str(entrant.verdict.values)
        colour = VERDICT_COLOURS.get(verdict, "null")
        tip = Message(
            "{entrant}: {mean:+.4f} ({low:+.4f} to {high:+.4f}), {verdict}",
            entrant=names[row],
            mean=mean,
            low=low,
            high=high,
            verdict=VERDICT_LABELS[verdict],
        )
        edges = [row - 0.18, row - 0.18, row + 0.18, row + 0.18]
        if low == low:  # few seeds have no interval
            marks.append(Shape("", [low, high, high, low], edges, colour, 0.45, tip))
        marks.append(Line("", [mean], [row], colour, "dots"))
    baseline_line = Line(Message("baseline"), [0.0, 0.0], [-0.5, len(order) - 0.5], "null", "dashed")
    return Panel(
        Message("Final difference from the baseline"),
        Message(
            "Bars are 95 % intervals, from 4 seeds on. Grey entrants are unclear: p after Holm's correction is above 5 %."
        ),
        (baseline_line, *marks),
        Axis(DIFFERENCE_LABEL),
        Axis("", tuple(names)),
        height=max(0.6, (len(order) * 19 + 56) / 236),
    )


def _rate_panels(result: "xarray.Dataset") -> list[Panel]:
    """The loss at every rate, if an entrant ran at several. In a screened race only the screen has them."""
    if int(np.isfinite(result.loss_by_rate.values).sum(1).max()) < 2:
        return []
    rates = result.rate.values
    order = np.argsort(rates)
    marks = [
        Line(name, rates[order], result.loss_by_rate.values[index][order], _series_colour(index))
        for index, name in enumerate(_entrant_names(result))
    ]
    panel = Panel(
        Message("Learning rates"),
        Message("mean final loss at every rate of the grid"),
        tuple(marks),
        Axis(Message("rate"), log=True),
        Axis(Message("loss")),
    )
    return [panel]


def _sweep_panels(result: "xarray.Dataset") -> list[Panel]:
    """For every penalty at several strengths λ: the difference from the baseline and the tokens to the target."""
    names, panels = _entrant_names(result), []
    for penalty, points in penalty_sweeps(names).items():
        strengths = np.array([strength for strength, _ in points])
        panels += _penalty_panels(result, penalty, strengths, [names.index(name) for _, name in points])
    return panels


def _penalty_panels(result: "xarray.Dataset", penalty: str, strengths: np.ndarray, indices: list[int]) -> list[Panel]:
    rows = result.isel(entrant=indices)
    baseline_line = Line(Message("baseline"), strengths, np.zeros(len(indices)), "null", "dashed")
    limit_names = [name for name in _entrant_names(result) if name == LIMIT_ENTRANTS.get(penalty)]
    limit_lines = [
        Line(name, strengths, np.full(len(indices), float(result.difference.sel(entrant=name))), "second", "dashed")
        for name in limit_names
    ]
    ratio_baseline = Line(Message("baseline"), strengths, np.ones(len(indices)), "null", "dashed")
    difference_band = band_marks(
        strengths, rows.difference_low.values, rows.difference_high.values, "first", Message("95 % interval")
    )
    target, (ratios, low, high) = common_target_ratios(result, indices)
    ratio_band = band_marks(strengths, low, high, "first", Message("interval of the median"))
    axis = Axis(Message("λ of {penalty}", penalty=penalty), log=True)
    return [
        Panel(
            Message("Final loss by strength of {penalty}", penalty=penalty),
            Message("difference from the baseline"),
            (*difference_band, Line(penalty, strengths, rows.difference.values), *limit_lines, baseline_line),
            axis,
            Axis(DIFFERENCE_LABEL),
        ),
        Panel(
            Message("Tokens by strength of {penalty}", penalty=penalty),
            Message(
                "tokens to a loss of {target:.4f}, which all reach, relative to the baseline (median over seeds)",
                target=target,
            ),
            (*ratio_band, Line(penalty, strengths, ratios), ratio_baseline),
            axis,
            Axis(Message("ratio of tokens")),
        ),
    ]


def common_target_ratios(result: "xarray.Dataset", indices: Sequence[int]) -> tuple[float, np.ndarray]:
    """The loss that every seed of the given entrants reaches, and the tokens to it relative to the baseline.

    The second value has the rows median, low and high.
    """
    loss, tokens = torch.as_tensor(result.loss.values).double(), torch.as_tensor(result.tokens.values).double()
    target = float(loss[[0, *indices], :, -1].nan_to_num(-torch.inf).max())
    baseline_tokens = interpolate_target_tokens(target, tokens, loss[0])
    ratios = [
        tokens_ratio(interpolate_target_tokens(target, tokens, loss[index]), baseline_tokens, float(tokens[-1]))
        for index in indices
    ]
    return target, np.array([(ratio.median, ratio.low, ratio.high) for ratio in ratios]).T


def _mean_curve(x: np.ndarray, y: np.ndarray, name: str, index: int) -> list[Mark]:
    """The mean over the seeds that did not diverge, with its band; nothing if all diverged."""
    finite_curves = y[np.isfinite(y).all(1)]
    if not len(finite_curves):
        return []
    style = "dashed" if index >= len(SERIES_COLOURS) else "solid"
    mean_line = Line(name, x, finite_curves.mean(0), _series_colour(index), style)
    if len(finite_curves) < MIN_UNITS:
        return [mean_line]
    low, high = (end.numpy() for end in student_interval(torch.as_tensor(finite_curves).mT))
    interval_name = Message("{name}, 95 % interval", name=name)
    return [*band_marks(x, low, high, _series_colour(index), interval_name), mean_line]


def _entrant_names(result: "xarray.Dataset") -> list[str]:
    return [str(name) for name in result.entrant.values]


def _series_colour(index: int) -> str:
    return SERIES_COLOURS[index % len(SERIES_COLOURS)]

"""The page of a race: the table, and loss curves with confidence bands."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from rheoscope.learn.entrants import ENTRANTS, penalties
from rheoscope.report.page import Page
from rheoscope.report.picture import CLUSTERS, Axis, Line, Mark, Panel, Picture
from rheoscope.report.plot.fields import band
from rheoscope.space.chance import student_ends

if TYPE_CHECKING:
    import xarray


def page_of(found: "xarray.Dataset", speeds: dict[str, float], name: str) -> Page:
    """What the terminal shows, the curves, and where the numbers come from."""
    from rheoscope.learn.telling import speed_table, table

    page = Page(f"A race: {name}", table(found).note)
    for one in (table(found), speed_table(found, speeds)):
        page = page.table(one.heading, one.header, one.rows, one.words, one.note)
    page = page.drawing(picture(found))
    told = {
        entrant: ENTRANTS[entrant.partition("+")[0].partition(":")[0]].sentence
        for entrant in map(str, found.entrant.values)
    }
    return page.facts("Who raced", told).facts(
        "Where the numbers come from", {k: str(v) for k, v in found.attrs.items()}
    )


def picture(found: "xarray.Dataset") -> Picture:
    """Losses, differences from the baseline of the same seed, the loss at every rate of the grid, and along a dial where there is one."""
    return Picture(
        "The race",
        "Means over the seeds that did not diverge; bands are 95 % intervals of the mean by Student's law. A difference below 0 is ahead "
        "of the baseline.",
        (_losses(found), _differences(found), *([_rates(found)] if found.sizes["rate"] > 1 else []), *_dials(found)),
    )


def _losses(found: "xarray.Dataset") -> Panel:
    marks = [
        mark
        for at, name in enumerate(_names(found))
        for mark in _curve(found.tokens.values, found.loss.values[at], name, at)
    ]
    return Panel(
        "Held-out loss",
        "nats a token, at each entrant's best rate",
        tuple(marks),
        Axis("tokens"),
        Axis("loss"),
        columns=2,
    )


def _differences(found: "xarray.Dataset") -> Panel:
    loss = found.loss.values
    marks = [
        mark
        for at, name in enumerate(_names(found))
        if at
        for mark in _curve(found.tokens.values, loss[at] - loss[0], name, at)
    ]
    zero = Line("baseline", found.tokens.values, np.zeros(found.sizes["step"]), "null", "dashed")
    return Panel(
        "Difference from the baseline",
        "paired by seed",
        (zero, *marks),
        Axis("tokens"),
        Axis("loss − baseline's"),
        columns=2,
    )


def _rates(found: "xarray.Dataset") -> Panel:
    rates = found.rate.values
    order = np.argsort(rates)
    marks = [
        Line(name, rates[order], found.loss_by_rate.values[at][order], _colour(at))
        for at, name in enumerate(_names(found))
    ]
    return Panel(
        "Learning rates",
        "mean final loss at every rate of the grid",
        tuple(marks),
        Axis("rate", log=True),
        Axis("loss"),
    )


def _dials(found: "xarray.Dataset") -> list[Panel]:
    """For every penalty that entrants have at several strengths: how far from the baseline, and how soon at the target, against λ."""
    told = [(penalties(name), at) for at, name in enumerate(_names(found))]
    panels = []
    for penalty in dict.fromkeys(name for one, _ in told for name in one):
        along = sorted((one[penalty], at) for one, at in told if set(one) == {penalty} and one[penalty] > 0)
        if len(along) > 1:
            at = [place for _, place in along]
            panels += _dial(found, penalty, np.array([strength for strength, _ in along]), at)
    return panels


def _dial(found: "xarray.Dataset", penalty: str, strengths: np.ndarray, at: list[int]) -> list[Panel]:
    rows = found.isel(entrant=at)
    zero = Line("baseline", strengths, np.zeros(len(at)), "null", "dashed")
    once = Line("baseline", strengths, np.ones(len(at)), "null", "dashed")
    far = band(strengths, rows.difference_low.values, rows.difference_high.values, "first", "95 % interval")
    soon = band(
        strengths, rows.tokens_ratio_low.values, rows.tokens_ratio_high.values, "first", "interval of the median"
    )
    axis = Axis(f"λ of {penalty}", log=True)
    return [
        Panel(
            f"Final loss along the dial: {penalty}", "difference from the baseline; the stronger, the further to the right",
            (*far, Line(penalty, strengths, rows.difference.values), zero), axis, Axis("loss − baseline's"),
        ),
        Panel(
            f"Tokens to the target along the dial: {penalty}", "over the baseline's, median over seeds; nothing where it was never reached",
            (*soon, Line(penalty, strengths, np.where(np.isfinite(rows.tokens_ratio.values), rows.tokens_ratio.values, np.nan)), once),
            axis, Axis("times the tokens"),
        ),
    ]  # fmt: skip


def _curve(x: np.ndarray, y: np.ndarray, name: str, at: int) -> list[Mark]:
    """The mean over seeds in its band, of those that did not diverge; nothing where none is left."""
    there = y[np.isfinite(y).all(1)]
    if not len(there):
        return []
    low, high = (end.numpy() for end in student_ends(torch.as_tensor(there).mT))
    style = "dashed" if at >= len(CLUSTERS) else "solid"
    return [
        *band(x, low, high, _colour(at), f"{name}, 95 % interval"),
        Line(name, x, there.mean(0), _colour(at), style),
    ]


def _names(found: "xarray.Dataset") -> list[str]:
    return [str(name) for name in found.entrant.values]


def _colour(at: int) -> str:
    return CLUSTERS[at % len(CLUSTERS)]

"""The page of a race: the table, and loss curves with confidence bands."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rheoscope.learn.curves import AHEAD, BEHIND, first_at, median, ratio
from rheoscope.learn.entrants import ENTRANTS, dials
from rheoscope.picture.field_panels import band, in_words
from rheoscope.picture.picture import CLUSTERS, Axis, Line, Mark, Panel, Picture, Shape
from rheoscope.report.page import Page
from rheoscope.statistics.nulls import student_ends

if TYPE_CHECKING:
    import xarray


VERDICTS = {AHEAD: "first", BEHIND: "second"}
LIMITS = {"asymmetry": "tied"}
"""The entrant that a penalty of any strength leads to."""
Seen = dict[str, list[dict[str, Any]]]
"""Looks at the first seed of every entrant: step, values and nulls by name."""


def page_of(found: "xarray.Dataset", speeds: dict[str, float], name: str, seen: Seen | None = None) -> Page:
    """What the terminal shows, the curves, what was seen of the first seeds, and where the numbers come from."""
    from rheoscope.learn.race_report import tables

    shown = tables(found, speeds)
    page = Page(f"A race: {name}", shown[0].note)
    for one in shown:
        page = page.table(one.heading, one.header, one.rows, one.words, one.note)
    page = page.drawing(picture(found))
    if seen:
        page = page.drawing(geometry(seen))
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
        (_losses(found), _at_the_end(found), _differences(found), *_rates(found), *_dials(found)),
    )


def geometry(seen: Seen) -> Picture:
    """Every quantity of `rheoscope train --look` along training, a line an entrant."""
    from rheoscope.learn.geometry_over_training import SEEN

    found = {name: [one for one in SEEN if one in looks[0]["values"]] for name, looks in seen.items()}
    panels = []
    for quantity in SEEN:
        marks = tuple(
            Line(
                name,
                np.array([look["step"] for look in looks], dtype=float),
                np.array([_known(look["values"].get(quantity)) for look in looks]),
                _colour(at),
                "dashed" if at >= len(CLUSTERS) else "solid",
            )
            for at, (name, looks) in enumerate(seen.items())
            if quantity in found[name]
        )
        if marks:
            panels.append(Panel(in_words(quantity), SEEN[quantity].told, marks, Axis("step"), Axis(in_words(quantity))))
    return Picture("Geometry along training", "The first seed of every entrant; step 0 is untrained.", tuple(panels))


def _known(value: float | None) -> float:
    return np.nan if value is None else value


def _losses(found: "xarray.Dataset") -> Panel:
    begins = int(found.sizes["step"] > 2)  # untrained, all lose the same, and so much that nothing else can be seen
    marks = [
        mark
        for at, name in enumerate(_names(found))
        for mark in _curve(found.tokens.values[begins:], found.loss.values[at][:, begins:], name, at)
    ]
    return Panel(
        "Held-out loss",
        "nats a token, at each entrant's best rate, from the first measurement after the start on",
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


def _at_the_end(found: "xarray.Dataset") -> Panel:
    """Differences with their intervals, the best on top; the colour is the verdict."""
    order = sorted(range(1, found.sizes["entrant"]), key=lambda at: -float(found.difference[at]))
    names = [_names(found)[at] for at in order]
    marks: list[Mark] = []
    for place, at in enumerate(order):
        one = found.isel(entrant=at)
        low, mean, high = (float(one[name]) for name in ("difference_low", "difference", "difference_high"))
        colour = VERDICTS.get(str(one.verdict.values), "null")
        tip = f"{names[place]}: {mean:+.4f} ({low:+.4f} to {high:+.4f}), {one.verdict.values}"
        edges = [place - 0.18, place - 0.18, place + 0.18, place + 0.18]
        marks += [
            Shape("", [low, high, high, low], edges, colour, 0.45, tip),
            Line("", [mean], [place], colour, "dots"),
        ]
    zero = Line("baseline", [0.0, 0.0], [-0.5, len(order) - 0.5], "null", "dashed")
    return Panel(
        "Who is ahead", "final loss less the baseline's with its 95 % interval; grey cannot be told",
        (zero, *marks), Axis("loss − baseline's"), Axis("", tuple(names)), height=max(0.6, (len(order) * 19 + 56) / 236),
    )  # fmt: skip


def _rates(found: "xarray.Dataset") -> list[Panel]:
    """Only where somebody raced at several: of a screened race it is the screen that has them."""
    if int(np.isfinite(found.loss_by_rate.values).sum(1).max()) < 2:
        return []
    rates = found.rate.values
    order = np.argsort(rates)
    marks = [
        Line(name, rates[order], found.loss_by_rate.values[at][order], _colour(at))
        for at, name in enumerate(_names(found))
    ]
    panel = Panel(
        "Learning rates",
        "mean final loss at every rate of the grid",
        tuple(marks),
        Axis("rate", log=True),
        Axis("loss"),
    )
    return [panel]


def _dials(found: "xarray.Dataset") -> list[Panel]:
    """For every penalty that entrants have at several strengths: how far from the baseline, and how soon at the target, against λ."""
    names, panels = _names(found), []
    for penalty, along in dials(names).items():
        strengths = np.array([strength for strength, _ in along])
        panels += _dial(found, penalty, strengths, [names.index(name) for _, name in along])
    return panels


def _dial(found: "xarray.Dataset", penalty: str, strengths: np.ndarray, at: list[int]) -> list[Panel]:
    rows = found.isel(entrant=at)
    zero = Line("baseline", strengths, np.zeros(len(at)), "null", "dashed")
    tied = [name for name in _names(found) if name == LIMITS.get(penalty)]
    limit = [
        Line(name, strengths, np.full(len(at), float(found.difference.sel(entrant=name))), "second", "dashed")
        for name in tied
    ]
    once = Line("baseline", strengths, np.ones(len(at)), "null", "dashed")
    far = band(strengths, rows.difference_low.values, rows.difference_high.values, "first", "95 % interval")
    target, (middle, least, most) = soon(found, at)
    soonest = band(strengths, least, most, "first", "interval of the median")
    axis = Axis(f"λ of {penalty}", log=True)
    return [
        Panel(
            f"Final loss along the dial: {penalty}", "difference from the baseline; the stronger, the further to the right",
            (*far, Line(penalty, strengths, rows.difference.values), *limit, zero), axis, Axis("loss − baseline's"),
        ),
        Panel(
            f"Tokens along the dial: {penalty}", f"to a loss of {target:.4f}, which all reach, over the baseline's, median over seeds",
            (*soonest, Line(penalty, strengths, middle), once),
            axis, Axis("times the tokens"),
        ),
    ]  # fmt: skip


def soon(found: "xarray.Dataset", at: Sequence[int]) -> tuple[float, np.ndarray]:
    """The loss that every seed of some entrants reaches, and how many times the baseline's tokens each takes to it: median, low, high."""
    loss, tokens = torch.as_tensor(found.loss.values).double(), torch.as_tensor(found.tokens.values).double()
    target = float(loss[[0, *at], :, -1].nan_to_num(-torch.inf).max())
    base = first_at(target, tokens, loss[0])
    return target, np.array([median(ratio(first_at(target, tokens, loss[one]), base)) for one in at]).T


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

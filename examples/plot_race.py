"""What races show, as figures: differences, curves, the dial, tokens, FLOPs and time to a target, geometry along training.

    python examples/plot_race.py small.json large.json dial.json … [--out figures]

Each is a file of `rheoscope race report DIR --logs FILE`, or the folder of a race. A figure is drawn where a race has what it shows.
"""

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rheoscope.learn.curves import AHEAD, BEHIND
from rheoscope.learn.entrants import BASELINE, parse_penalties, penalty_sweeps
from rheoscope.learn.race_result import best_rate_observations, median_speeds, race_result
from rheoscope.report.style import ACCENT, INK, MUTED, figure_style, new_figure
from rheoscope.statistics.nulls import student_interval

GREEN, BLUE = "#2a8f5b", "#27508f"
VERDICTS = {AHEAD: (BLUE, "<"), BEHIND: (ACCENT, ">")}
"""Colour and shape."""
HUES = (
    BLUE,
    ACCENT,
    GREEN,
    "#8f5bc0",
    "#c08a1e",
    "#1e9bb0",
    "#b0508a",
    "#7a6a4f",
    "#5aa9e6",
    "#4d7c0f",
    "#d98880",
    "#5f6b7a",
)
BESIDE, FORESTS = 3, 4
"""Races side by side, as curves and as differences."""
SHOWN = 7
"""Curves that one panel can hold: the ends and the middle of the field."""
AT_THE_END = {"asymmetry": ("symmetry", "positive_share", "itself"), "residual": ("residual",)}
"""What became of what a dial turns: is M its transpose, is it a distance's, do tokens look at themselves; how far do layers move them?"""
GEOMETRY = ("symmetry", "positive_share", "agreement", "effective_rank", "toward_next", "induction")


def named(found: Any) -> list[str]:
    return [str(name) for name in found.entrant.values]


def free(found: Any) -> list[str]:
    """Entrants that are no point of a dial, and not the baseline."""
    return [name for name in named(found) if name != BASELINE and not parse_penalties(name)]


def title(name: str, found: Any) -> str:
    return f"{name}, {found.attrs['seeds']} seeds"


def rows_and_columns(panels: int, beside: int) -> tuple[int, int]:
    """Of a figure with so many panels, at most so many side by side."""
    return -(-panels // beside), min(beside, panels)


def reached_by_all(found: Any) -> float:
    """The loss at which every seed of every entrant arrives, so that nobody is left out of a comparison of how soon."""
    return float(np.nanmax(found.loss.values[:, :, -1]))


# Differences


def forest(races: dict[str, Any]) -> Any:
    """A panel a race: entrants in the order of the first race, differences with their intervals, coloured by the verdict."""
    first = next(iter(races.values()))
    ranked = sorted(free(first), key=lambda name: float(first.difference.sel(entrant=name)))
    names = ranked + [name for one in races.values() for name in free(one) if name not in ranked]
    names = list(dict.fromkeys(names))
    deep, wide = rows_and_columns(len(races), FORESTS)
    figure = new_figure(1.7 + 2.0 * wide, deep * max(1.8, 0.6 + 0.24 * len(names)))
    every = figure.subplots(deep, wide, sharey=True, squeeze=False).flatten()
    for axes in every[len(races) :]:
        axes.set_visible(False)
    for axes, (name, found) in zip(every, races.items(), strict=False):
        axes.axvline(0, color=MUTED, lw=0.8)
        for at, entrant in enumerate(names):
            if entrant in found.entrant.values:
                one = found.sel(entrant=entrant)
                colour, shape = VERDICTS.get(str(one.verdict.values), (MUTED, "o"))
                axes.plot(
                    [float(one.difference_low), float(one.difference_high)], [at, at], color=colour, lw=2.5, alpha=0.5
                )
                axes.plot(float(one.difference), at, shape, color=colour, ms=4.5)
        axes.set_title(title(name, found), loc="left", fontsize=9)
        axes.set_xlabel("loss − untied's, nats")
        axes.grid(axis="y", color="#eef1f6", lw=0.8)
        axes.tick_params(axis="y", length=0)
    every[0].set_yticks(range(len(names)), names)
    every[0].invert_yaxis()
    figure.suptitle("◂ ahead   ● unclear   ▸ behind, at 5 % after Holm's correction", fontsize=8, color=MUTED)
    return figure


# Curves


def hues(races: dict[str, Any]) -> dict[str, str]:
    """One colour an entrant, whatever the panel, and no colour twice in a panel."""
    chosen: dict[str, str] = {}
    for found in races.values():
        names = apart(found)
        for name in (name for name in names if name not in chosen):
            here = {chosen[other] for other in names if other in chosen}
            chosen[name] = min((hue for hue in HUES if hue not in here), key=list(chosen.values()).count)
    return chosen | {BASELINE: INK}


def apart(found: Any) -> list[str]:
    """The entrants at the ends of the field and some between, best first."""
    names = sorted(free(found), key=lambda name: float(found.difference.sel(entrant=name)))
    picked = np.unique(np.linspace(0, len(names) - 1, min(SHOWN, len(names))).round().astype(int))
    return [names[at] for at in picked]


def spread(wanted: list[float], gap: float) -> list[float]:
    """Heights near those that are wanted, no two nearer than a gap: places for words."""
    order, placed = np.argsort(wanted), np.array(wanted, dtype=float)
    for before, at in pairwise(order):
        placed[at] = max(placed[at], placed[before] + gap)
    return list(placed - (placed - np.array(wanted)).mean())


def curves(races: dict[str, Any]) -> Any:
    """Above, the baseline's loss; below, how far others are from it, paired by seed, with 95 % bands."""
    deep, wide = rows_and_columns(len(races), BESIDE)
    figure, colours = new_figure(0.6 + 3.4 * wide, 4.6 * deep), hues(races)
    every = figure.subplots(2 * deep, wide, squeeze=False, height_ratios=(1, 2) * deep)
    for axes in every.flat:
        axes.set_visible(False)
    for number, (name, found) in enumerate(races.items()):
        millions, loss = found.tokens.values / 1e6, found.loss.values
        row, column = divmod(number, wide)
        above, below = every[2 * row, column], every[2 * row + 1, column]
        for axes in (above, below):
            axes.set_visible(True)
            axes.set_xlim(0, millions[-1])
        above.plot(millions[1:], np.nanmean(loss[0], 0)[1:], color=INK, lw=1.6)
        above.set_title(title(name, found), loc="left", fontsize=9)
        below.axhline(0, color=INK, lw=1.2)
        names, ends = apart(found), []
        for entrant in names:
            colour = colours[entrant]
            d = loss[list(found.entrant.values).index(entrant)] - loss[0]
            d = d[np.isfinite(d).all(1)]
            low, high = (end.numpy() for end in student_interval(torch.as_tensor(d).mT))
            below.fill_between(millions, low, high, color=colour, alpha=0.15, lw=0)
            below.plot(millions, d.mean(0), color=colour, lw=1.5)
            ends.append(float(d.mean(0)[-1]))
        bottom, top = below.get_ylim()
        for entrant, y in zip(names, spread(ends, 0.065 * (top - bottom)), strict=True):
            below.annotate(
                entrant,
                (millions[-1], y),
                (4, 0),
                textcoords="offset points",
                color=colours[entrant],
                fontsize=7.5,
                va="center",
            )
        below.set_xlabel("tokens a seed, millions")
        if column == 0:
            above.set_ylabel("untied, nats")
            below.set_ylabel("loss − untied's, nats")
    return figure


# The dial


def dial(file: Path, found: Any, penalty: str, along: list[tuple[float, str]]) -> Any:
    """Final loss, tokens to a loss that all reach, and what became of what it turns, against λ; 0 at the left, tied at the right."""
    soon, seen = race_result(file, reached_by_all(found)), best_rate_observations(file)
    strengths, names = np.array([x for x, _ in along]), [name for _, name in along]
    limit = ["tied"] * (penalty == "asymmetry" and "tied" in found.entrant.values)
    ends = np.array([strengths[0] / 10, *strengths, *[strengths[-1] * 10] * len(limit)])
    looked = all(name in seen for name in (BASELINE, *names, *limit))
    figure = new_figure(11.2 if looked else 7.6, 3.1)
    every = list(figure.subplots(1, 3 if looked else 2))
    for axes, one, label, base, (value, low, high) in zip(
        every, (found, soon), ("loss − untied's, nats", "times the tokens of untied"), (0.0, 1.0),
        (("difference", "difference_low", "difference_high"), ("tokens_ratio", "tokens_ratio_low", "tokens_ratio_high")), strict=False,
    ):  # fmt: skip
        rows = one.sel(entrant=[*names, *limit])
        y, below, above = (np.array([base, *rows[field].values]) for field in (value, low, high))
        axes.axhline(base, color=MUTED, lw=0.8)
        inner = len(names) + 1
        axes.fill_between(ends[:inner], below[:inner], above[:inner], color=BLUE, alpha=0.15, lw=0)
        axes.plot(ends[:inner], y[:inner], "o-", color=BLUE, ms=4.5, lw=1.5)
        axes.errorbar(
            ends[inner:], y[inner:], [y[inner:] - below[inner:], above[inner:] - y[inner:]], fmt="s", color=ACCENT, ms=5
        )
        axes.set_ylabel(label)
    for quantity, colour in zip(AT_THE_END[penalty], (BLUE, GREEN, ACCENT), strict=False) if looked else ():
        heights = [seen[name][-1]["values"][quantity] for name in (BASELINE, *names, *limit)]
        every[2].plot(ends, heights, "o-", color=colour, ms=4.5, lw=1.5, label=quantity.replace("_", " "))
        every[2].legend(frameon=False, fontsize=7.5)
    for axes in every:
        axes.set_xscale("log")
        axes.set_xticks(ends, ["0", *(f"{x:g}" for x in strengths), *limit])
        axes.minorticks_off()
        axes.set_xlabel(f"λ of {penalty}")
    said = (
        "final loss",
        f"tokens to a loss of {soon.attrs['target']:.3f}, which all reach",
        "the first seed at the end",
    )
    for axes, words in zip(every, said, strict=False):
        axes.set_title(words, loc="left", fontsize=9)
    return figure


# Tokens, FLOPs and time


def targets(file: Path, found: Any) -> Any:
    """Tokens, FLOPs and time to a loss that all reach, apart, over the baseline's."""
    soon, speeds = race_result(file, reached_by_all(found)), median_speeds(file)
    names = sorted(free(soon), key=lambda name: float(soon.tokens_ratio.sel(entrant=name)))
    rows = soon.sel(entrant=names)
    slower = np.array([speeds.get(BASELINE, np.nan) / speeds.get(name, np.nan) for name in names])
    dear = rows.flops_ratio.values / rows.tokens_ratio.values
    columns = {"tokens": np.ones(len(names)), "FLOPs": dear, "time on this machine": slower}
    columns = {what: factor for what, factor in columns.items() if np.isfinite(factor).any()}
    figure = new_figure(2.2 + 2.0 * len(columns), max(2.0, 0.9 + 0.24 * len(names)))
    every = figure.subplots(1, len(columns), sharey=True, sharex=True)
    for axes, (what, factor) in zip(every, columns.items(), strict=True):
        middle, low, high = (rows[f"tokens_ratio{end}"].values * factor for end in ("", "_low", "_high"))
        axes.axvline(1, color=MUTED, lw=0.8)
        axes.hlines(range(len(names)), low, high, color=BLUE, lw=2.5, alpha=0.35)
        axes.plot(middle, range(len(names)), "o", color=BLUE, ms=4.5)
        axes.set_title(what, loc="left", fontsize=9)
        axes.set_xlabel("times untied's")
        axes.grid(axis="y", color="#eef1f6", lw=0.8)
        axes.tick_params(axis="y", length=0)
    every[0].set_yticks(range(len(names)), names)
    every[0].invert_yaxis()
    said = f"to a loss of {soon.attrs['target']:.3f}, which every seed of all reaches; median and its interval"
    figure.suptitle(said, fontsize=8, color=MUTED)
    return figure


# Geometry


def geometry(file: Path, found: Any) -> Any:
    """What was seen of the first seed of some entrants along training; dashed, what chance gives in the baseline."""
    seen = best_rate_observations(file)
    names, colours = [name for name in (BASELINE, *apart(found)) if name in seen], hues({"": found})
    figure = new_figure(8.6, 4.6)
    for axes, quantity in zip(figure.subplots(2, 3, sharex=True).flat, GEOMETRY, strict=True):
        for entrant in names:
            told = [one for one in seen[entrant] if quantity in one["values"]]
            heights = [np.nan if one["values"][quantity] is None else one["values"][quantity] for one in told]
            axes.plot(
                [one["step"] for one in told], heights, "o-", ms=2.5, lw=1.3, color=colours[entrant], label=entrant
            )
        nulls = [(one["step"], one["nulls"].get(quantity)) for one in seen[names[0]]]
        if all(null is not None for _, null in nulls):
            axes.plot(*zip(*nulls, strict=True), color=MUTED, ls="--", lw=1)
        axes.set_title(quantity.replace("_", " "), loc="left", fontsize=9)
    for axes in figure.axes[3:]:
        axes.set_xlabel("step")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False, fontsize=7.5)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("races", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    files = {path.stem: path for path in options.races}
    found = {name: race_result(path) for name, path in files.items()}
    drawn = {}
    with figure_style():
        plain = {name: one for name, one in found.items() if not penalty_sweeps(named(one)) and free(one)}
        if plain:
            drawn["race-differences"] = forest(plain)
            drawn["race-curves"] = curves(plain)
        for name, one in found.items():
            for penalty, along in penalty_sweeps(named(one)).items():
                drawn[f"race-{name}" if name == penalty else f"race-{name}-{penalty}"] = dial(
                    files[name], one, penalty, along
                )
            if name in plain:
                drawn[f"race-{name}-target"] = targets(files[name], one)
            if name in plain and best_rate_observations(files[name]):
                drawn[f"race-{name}-geometry"] = geometry(files[name], one)
        for name, figure in drawn.items():
            figure.savefig(options.out / f"{name}.png", dpi=130)
    print(f"wrote {', '.join(drawn)} in {options.out}")


if __name__ == "__main__":
    main()

"""Figures of races: final differences, curves, rate curves, penalty sweeps, cost to reach a target, and geometry during training.

    python examples/plot_race.py small.json large.json dial.json … [--out figures]

Each argument is a file of `rheoscope race report DIR --logs FILE`, or the folder of a race. Figures without data are skipped.
"""

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rheoscope.learn.contrasts import AHEAD, BEHIND
from rheoscope.learn.entrants import BASELINE, entrant_config, parse_penalties, penalty_sweeps
from rheoscope.learn.race_result import best_rate_observations, median_speeds, race_result
from rheoscope.learn.rate_curves import MIN_RATES
from rheoscope.models.config import Config
from rheoscope.report.style import ACCENT, INK, MUTED, figure_style, new_figure
from rheoscope.statistics.intervals import student_interval

GREEN, BLUE = "#2a8f5b", "#27508f"
VERDICTS = {AHEAD: (BLUE, "<"), BEHIND: (ACCENT, ">")}
"""Verdict → colour and marker."""
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
CURVES_PER_ROW, FORESTS_PER_ROW = 3, 4
"""Races per row, in the figure of curves and in the figure of differences."""
MAX_CURVES = 7
"""Curves per panel: the best, the worst and some between."""
SWEPT_QUANTITIES = {"asymmetry": ("symmetry", "positive_share", "itself"), "residual": ("residual",)}
"""Penalty → the quantities that are plotted against its strength, at the end of training."""
GEOMETRY = ("symmetry", "positive_share", "agreement", "effective_rank", "toward_next", "induction")


def entrant_names(result: Any) -> list[str]:
    return [str(name) for name in result.entrant.values]


def plain_entrants(result: Any) -> list[str]:
    """The entrants except the baseline and those of a penalty sweep."""
    return [name for name in entrant_names(result) if name != BASELINE and not parse_penalties(name)]


def title(name: str, result: Any) -> str:
    return f"{name}, {result.attrs['seeds']} seeds"


def rows_and_columns(panels: int, per_row: int) -> tuple[int, int]:
    """Rows and columns of a figure with so many panels and a largest number per row."""
    return -(-panels // per_row), min(per_row, panels)


def reached_by_all(result: Any) -> float:
    """The lowest loss that every seed of every entrant reaches, so that all can be compared."""
    return float(np.nanmax(result.loss.values[:, :, -1]))


# Differences


def forest(races: dict[str, Any]) -> Any:
    """One panel per race: differences with intervals, coloured by verdict, with entrants in the order of the first race."""
    first = next(iter(races.values()))
    ranked = sorted(plain_entrants(first), key=lambda name: float(first.difference.sel(entrant=name)))
    names = ranked + [name for race in races.values() for name in plain_entrants(race) if name not in ranked]
    names = list(dict.fromkeys(names))
    n_rows, n_columns = rows_and_columns(len(races), FORESTS_PER_ROW)
    figure = new_figure(
        0.6 + 0.075 * max(map(len, names)) + 2.0 * n_columns, n_rows * max(1.8, 0.6 + 0.24 * len(names))
    )
    panels = figure.subplots(n_rows, n_columns, sharey=True, squeeze=False).flatten()
    for axes in panels[len(races) :]:
        axes.set_visible(False)
    for axes, (name, result) in zip(panels, races.items(), strict=False):
        axes.axvline(0, color=MUTED, lw=0.8)
        for index, entrant in enumerate(names):
            if entrant in result.entrant.values:
                race = result.sel(entrant=entrant)
                colour, shape = VERDICTS.get(str(race.verdict.values), (MUTED, "o"))
                axes.plot(
                    [float(race.difference_low), float(race.difference_high)],
                    [index, index],
                    color=colour,
                    lw=2.5,
                    alpha=0.5,
                )
                axes.plot(float(race.difference), index, shape, color=colour, ms=4.5)
        axes.set_title(title(name, result), loc="left", fontsize=9)
        axes.set_xlabel("loss minus untied's, nats")
        axes.grid(axis="y", color="#eef1f6", lw=0.8)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    figure.suptitle("◂ ahead   ● unclear   ▸ behind, at 5 % after Holm's correction", fontsize=8, color=MUTED)
    return figure


# Curves


def hues(races: dict[str, Any]) -> dict[str, str]:
    """One colour per entrant in all panels, and no colour twice in a panel."""
    chosen: dict[str, str] = {}
    for result in races.values():
        names = spread_entrants(result)
        for name in (name for name in names if name not in chosen):
            used = {chosen[other] for other in names if other in chosen}
            chosen[name] = min((hue for hue in HUES if hue not in used), key=list(chosen.values()).count)
    return chosen | {BASELINE: INK}


def spread_entrants(result: Any) -> list[str]:
    """The best and worst entrants and some between, best first."""
    names = sorted(plain_entrants(result), key=lambda name: float(result.difference.sel(entrant=name)))
    picked = np.unique(np.linspace(0, len(names) - 1, min(MAX_CURVES, len(names))).round().astype(int))
    return [names[index] for index in picked]


def spread(wanted: list[float], gap: float) -> list[float]:
    """Heights of labels close to `wanted`, with at least `gap` between any two."""
    order, placed = np.argsort(wanted), np.array(wanted, dtype=float)
    for previous, index in pairwise(order):
        placed[index] = max(placed[index], placed[previous] + gap)
    return list(placed - (placed - np.array(wanted)).mean())


def curves(races: dict[str, Any]) -> Any:
    """Above: the loss of the baseline. Below: differences of the other entrants, paired by seed, with 95 % bands."""
    n_rows, n_columns = rows_and_columns(len(races), CURVES_PER_ROW)
    figure, colours = new_figure(0.6 + 3.4 * n_columns, 4.6 * n_rows), hues(races)
    panels = figure.subplots(2 * n_rows, n_columns, squeeze=False, height_ratios=(1, 2) * n_rows)
    for axes in panels.flat:
        axes.set_visible(False)
    for number, (name, result) in enumerate(races.items()):
        millions, loss = result.tokens.values / 1e6, result.loss.values
        row, column = divmod(number, n_columns)
        above, below = panels[2 * row, column], panels[2 * row + 1, column]
        for axes in (above, below):
            axes.set_visible(True)
            axes.set_xlim(0, millions[-1])
        above.plot(millions[1:], np.nanmean(loss[0], 0)[1:], color=INK, lw=1.6)
        above.set_title(title(name, result), loc="left", fontsize=9)
        below.axhline(0, color=INK, lw=1.2)
        names, ends = spread_entrants(result), []
        for entrant in names:
            colour = colours[entrant]
            d = loss[list(result.entrant.values).index(entrant)] - loss[0]
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
        below.set_xlabel("tokens per seed, millions")
        if column == 0:
            above.set_ylabel("untied, nats")
            below.set_ylabel("loss minus untied's, nats")
    return figure


# Penalty sweeps


def penalty_sweep(file: Path, result: Any, penalty: str, sweep: list[tuple[float, str]]) -> Any:
    """Final loss, tokens to a loss that all reach, and the penalised quantity, by strength λ. 0 is left, tied is right."""
    to_target, observations = race_result(file, reached_by_all(result)), best_rate_observations(file)
    strengths, names = np.array([x for x, _ in sweep]), [name for _, name in sweep]
    limit = ["tied"] * (penalty == "asymmetry" and "tied" in result.entrant.values)
    ends = np.array([strengths[0] / 10, *strengths, *[strengths[-1] * 10] * len(limit)])
    is_observed = all(name in observations for name in (BASELINE, *names, *limit))
    figure = new_figure(11.2 if is_observed else 7.6, 3.1)
    panels = list(figure.subplots(1, 3 if is_observed else 2))
    for axes, race, label, base, (value, low, high) in zip(
        panels, (result, to_target), ("loss minus untied's, nats", "tokens, relative to untied"), (0.0, 1.0),
        (("difference", "difference_low", "difference_high"), ("tokens_ratio", "tokens_ratio_low", "tokens_ratio_high")), strict=False,
    ):  # fmt: skip
        rows = race.sel(entrant=[*names, *limit])
        y, below, above = (np.array([base, *rows[field].values]) for field in (value, low, high))
        axes.axhline(base, color=MUTED, lw=0.8)
        inner = len(names) + 1
        axes.fill_between(ends[:inner], below[:inner], above[:inner], color=BLUE, alpha=0.15, lw=0)
        axes.plot(ends[:inner], y[:inner], "o-", color=BLUE, ms=4.5, lw=1.5)
        axes.errorbar(
            ends[inner:], y[inner:], [y[inner:] - below[inner:], above[inner:] - y[inner:]], fmt="s", color=ACCENT, ms=5
        )
        axes.set_ylabel(label)
    for quantity, colour in zip(SWEPT_QUANTITIES[penalty], (BLUE, GREEN, ACCENT), strict=False) if is_observed else ():
        heights = [observations[name][-1]["values"][quantity] for name in (BASELINE, *names, *limit)]
        panels[2].plot(ends, heights, "o-", color=colour, ms=4.5, lw=1.5, label=quantity.replace("_", " "))
        panels[2].legend(frameon=False, fontsize=7.5)
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xticks(ends, ["0", *(f"{x:g}" for x in strengths), *limit])
        axes.minorticks_off()
        axes.set_xlabel(f"λ of {penalty}")
    titles = (
        "final loss",
        f"tokens to a loss of {to_target.attrs['target']:.3f}, which all reach",
        "first seed, end of training",
    )
    for axes, panel_title in zip(panels, titles, strict=False):
        axes.set_title(panel_title, loc="left", fontsize=9)
    return figure


# Rates


def projections(names: list[str]) -> dict[str, list[str]]:
    """The entrants of each projection, the baseline's first."""
    config, groups = Config(vocabulary=64, width=12, depth=1, heads=1), {}
    for name in names:
        groups.setdefault(entrant_config(name, config).projection, []).append(name)
    return groups


def rates(result: Any) -> Any:
    """Final loss against the learning rate, one panel per projection. The baseline is in every panel."""
    groups = projections(plain_entrants(result))
    n_rows, n_columns = rows_and_columns(len(groups), CURVES_PER_ROW - 1)
    figure = new_figure(4.2 * n_columns, 2.9 * n_rows)
    panels = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    for axes, (projection, names) in zip(panels, groups.items(), strict=False):
        for name, colour in zip([BASELINE, *names], [INK, *HUES], strict=False):
            losses = result.loss_by_rate.sel(entrant=name).dropna("rate")
            axes.plot(
                losses.rate,
                losses,
                "o-",
                ms=3,
                lw=1.3,
                color=colour,
                zorder=2 + (name == BASELINE),
                label=name.removeprefix(f"projection={projection},"),
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(result.rate.values, [f"{rate:g}" for rate in result.rate.values])
        axes.minorticks_off()
        axes.set_title(f"projection {projection.replace('_', ' ')}", loc="left", fontsize=9)
        axes.set_xlabel("learning rate")
        axes.set_ylabel("held-out loss, nats")
        axes.set_ylim(top=float(result.loss_by_rate.max()) + 0.3)
        axes.legend(frameon=False, fontsize=7)
    return figure


# Tokens, FLOPs and time


def targets(file: Path, result: Any) -> Any:
    """Tokens, FLOPs and time to a loss that all reach, each divided by the baseline's."""
    to_target, speeds = race_result(file, reached_by_all(result)), median_speeds(file)
    names = sorted(plain_entrants(to_target), key=lambda name: float(to_target.tokens_ratio.sel(entrant=name)))
    rows = to_target.sel(entrant=names)
    slower = np.array([speeds.get(BASELINE, np.nan) / speeds.get(name, np.nan) for name in names])
    flops_per_token = rows.flops_ratio.values / rows.tokens_ratio.values
    columns = {"tokens": np.ones(len(names)), "FLOPs": flops_per_token, "time on this machine": slower}
    columns = {quantity: factor for quantity, factor in columns.items() if np.isfinite(factor).any()}
    figure = new_figure(2.2 + 2.0 * len(columns), max(2.0, 0.9 + 0.24 * len(names)))
    panels = figure.subplots(1, len(columns), sharey=True, sharex=True)
    for axes, (quantity, factor) in zip(panels, columns.items(), strict=True):
        middle, low, high = (rows[f"tokens_ratio{end}"].values * factor for end in ("", "_low", "_high"))
        axes.axvline(1, color=MUTED, lw=0.8)
        axes.hlines(range(len(names)), low, high, color=BLUE, lw=2.5, alpha=0.35)
        axes.plot(middle, range(len(names)), "o", color=BLUE, ms=4.5)
        axes.set_title(quantity, loc="left", fontsize=9)
        axes.set_xlabel("relative to untied")
        axes.grid(axis="y", color="#eef1f6", lw=0.8)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    titles = f"to a loss of {to_target.attrs['target']:.3f}, which every seed reaches (median and its interval)"
    figure.suptitle(titles, fontsize=8, color=MUTED)
    return figure


# Geometry


def geometry(file: Path, result: Any) -> Any:
    """Geometry of the first seed of some entrants during training. The null of the baseline is dashed."""
    observations = best_rate_observations(file)
    names, colours = [name for name in (BASELINE, *spread_entrants(result)) if name in observations], hues({"": result})
    figure = new_figure(8.6, 4.6)
    for axes, quantity in zip(figure.subplots(2, 3, sharex=True).flat, GEOMETRY, strict=True):
        for entrant in names:
            measured = [entry for entry in observations[entrant] if quantity in entry["values"]]
            heights = [np.nan if entry["values"][quantity] is None else entry["values"][quantity] for entry in measured]
            axes.plot(
                [entry["step"] for entry in measured],
                heights,
                "o-",
                ms=2.5,
                lw=1.3,
                color=colours[entrant],
                label=entrant,
            )
        nulls = [(entry["step"], entry["nulls"].get(quantity)) for entry in observations[names[0]]]
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
    result = {name: race_result(path) for name, path in files.items()}
    figures = {}
    with figure_style():
        plain = {
            name: race
            for name, race in result.items()
            if not penalty_sweeps(entrant_names(race)) and plain_entrants(race)
        }
        if plain:
            figures["race-differences"] = forest(plain)
            figures["race-curves"] = curves(plain)
        for name, race in result.items():
            for penalty, sweep in penalty_sweeps(entrant_names(race)).items():
                figures[f"race-{name}" if name == penalty else f"race-{name}-{penalty}"] = penalty_sweep(
                    files[name], race, penalty, sweep
                )
            if name in plain:
                figures[f"race-{name}-target"] = targets(files[name], race)
            if name in plain and int(race.loss_by_rate.notnull().sum("rate").max()) >= MIN_RATES:
                figures[f"race-{name}-rates"] = rates(race)
            if name in plain and best_rate_observations(files[name]):
                figures[f"race-{name}-geometry"] = geometry(files[name], race)
        for name, figure in figures.items():
            figure.savefig(options.out / f"{name}.png", dpi=130)
    print(f"wrote {', '.join(figures)} in {options.out}")


if __name__ == "__main__":
    main()

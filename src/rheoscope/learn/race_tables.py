"""The tables of a race: losses, differences, verdicts and training speeds per entrant."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.learn.contrasts import AHEAD, BEHIND, SIGNIFICANCE_LEVEL, UNDECIDED
from rheoscope.learn.entrants import BASELINE
from rheoscope.learn.race_result import FIELDS, SAME_RATE_FIELDS
from rheoscope.learn.rate_curves import BASIN_DEPTH
from rheoscope.messages.message import Message, join, plural
from rheoscope.messages.numbers import format_fixed, format_number
from rheoscope.picture.blocks import Cell, Table, to_cells
from rheoscope.statistics.intervals import MIN_UNITS

if TYPE_CHECKING:
    import xarray

VERDICT_STYLES = {AHEAD: "green", BEHIND: "red"}
VERDICT_LABELS = {AHEAD: Message("ahead"), BEHIND: Message("behind"), UNDECIDED: Message("unclear")}
REGIME_LABEL = Message("tokens/parameter")
COLUMNS = (
    (Message("entrant"), ""),
    (Message("rate"), "best_rate"),
    (Message("loss"), "final_loss"),
    (Message("difference"), "difference"),
    (Message("95 % interval"), "difference_low"),
    (Message("p"), "p_holm"),
    (Message("verdict"), "verdict"),
    (Message("tokens"), "tokens_ratio"),
    (Message("FLOPs"), "flops_ratio"),
    (REGIME_LABEL, "tokens_per_parameter"),
    (Message("reached"), "reached"),
    (Message("diverged"), "diverged"),
)
"""The headings of the table of entrants, each with the field that defines it."""


def report_tables(result: "xarray.Dataset", speeds: dict[str, float]) -> list[Table]:
    """The table of entrants, the losses at every rate if there are several, and speeds if they were measured."""
    has_curves = bool((result.loss_by_rate.notnull().sum("rate") > 1).any())
    return [
        entrant_table(result),
        *([rate_table(result)] if has_curves else []),
        *([speed_table(result, speeds)] if speeds else []),
    ]


def entrant_table(result: "xarray.Dataset") -> Table:
    """One row per entrant: its loss, the difference from the baseline, the verdict and the tokens to the target."""
    header = [Cell(label, FIELDS[field].definition if field else "") for label, field in COLUMNS]
    rows = [_entrant_cells(result, index) for index in range(result.sizes["entrant"])]
    return Table(_table_heading(result), header, rows, frozenset({0, 6}), note=table_note(result))


def _table_heading(result: "xarray.Dataset") -> Message:
    steps, planned, seeds = (result.attrs[name] for name in ("steps", "steps_planned", "seeds"))
    if steps == planned:
        return plural(
            "Held-out loss after {steps:,} steps, {n} seed",
            "Held-out loss after {steps:,} steps, {n} seeds",
            n=seeds,
            steps=steps,
        )
    return plural(
        "Held-out loss after {steps:,} of {planned:,} steps (unfinished), {n} seed",
        "Held-out loss after {steps:,} of {planned:,} steps (unfinished), {n} seeds",
        n=seeds,
        steps=steps,
        planned=planned,
    )


def table_note(result: "xarray.Dataset") -> Message:
    """How the numbers of the table were computed, and which differences may be due to the learning rate."""
    rate_by_entrant = {
        str(name): float(rate) for name, rate in zip(result.entrant.values, result.best_rate.values, strict=True)
    }
    at_grid_end = [name for name, rate in rate_by_entrant.items() if rate in _grid_ends(result, name)]
    at_other_rate = [name for name in rate_by_entrant if _may_be_due_to_rate(result.sel(entrant=name))]
    compared = [name for name in at_other_rate if str(result.sel(entrant=name).verdict_at_baseline_rate.values)]
    not_compared = [name for name in at_other_rate if name not in compared]
    sentences: list[str] = [
        Message("Differences are paired by seed."),
        *_rate_choice(result),
        plural(
            "p is corrected for {n} contrast with the baseline (Holm).",
            "p is corrected for {n} contrasts with the baseline (Holm).",
            n=result.attrs["contrasts"],
        ),
        Message(
            "Tokens and FLOPs are those needed for a loss of {target:.4f}, relative to the baseline (median over seeds).",
            target=result.attrs["target"],
        ),
        Message("Unclear means that these seeds do not separate an entrant from the baseline."),
        *_detectable_note(result),
    ]
    if at_grid_end:
        sentences.append(
            Message(
                "Best at an end of the grid, so a wider grid may help: {entrants}.", entrants=", ".join(at_grid_end)
            )
        )
    if compared:
        sentences.append(
            Message(
                "Different only at its own rate, so the rate may explain the difference: {entrants}.",
                entrants=", ".join(compared),
            )
        )
    if not_compared:
        sentences.append(
            Message(
                "Not trained at the baseline's rate with these seeds: {entrants}.", entrants=", ".join(not_compared)
            )
        )
    return join(" ", sentences)


def _may_be_due_to_rate(row: "xarray.Dataset") -> bool:
    """Whether an entrant is ahead or behind at its own rate, and not shown to be so at the baseline's."""
    verdict = str(row.verdict.values)
    return verdict in (AHEAD, BEHIND) and str(row.verdict_at_baseline_rate.values) != verdict


def _detectable_note(result: "xarray.Dataset") -> list[Message]:
    """The difference that a race of this size would find; nothing if no entrant has an interval."""
    detectable = result.detectable.values[result.difference_low.notnull().values]
    if not len(detectable):
        return []
    return [
        Message(
            "A true difference of {detectable:.3f} nats would be found in 90 % of such races (median over entrants).",
            detectable=float(np.median(detectable)),
        )
    ]


def _grid_ends(result: "xarray.Dataset", entrant: str) -> set[float]:
    """The lowest and the highest of at least three rates at which an entrant ran or was screened."""
    losses = result.loss_by_rate.sel(entrant=entrant)
    rates = result.rate.values[losses.notnull().values] if losses.notnull().sum() > 1 else result.rate.values
    return {float(rates.min()), float(rates.max())} if len(rates) > 2 else set()


def _rate_choice(result: "xarray.Dataset") -> list[Message]:
    """How rates were chosen; nothing if there is only one."""
    n_rates, attributes = result.sizes["rate"], result.attrs
    if n_rates < 2:
        return []
    if attributes["rates_chosen_on"] == attributes["judged_on"]:
        return [
            Message("Each entrant runs at the best of {rates} rates, chosen on the same seeds.", rates=n_rates),
        ]
    return [
        Message(
            "Each entrant runs at the best of {rates} rates, chosen on seeds {chosen} and judged on seeds {judged}.",
            rates=n_rates,
            chosen=attributes["rates_chosen_on"],
            judged=attributes["judged_on"],
        )
    ]


def _entrant_cells(result: "xarray.Dataset", index: int) -> list[Cell]:
    values = {
        str(name): variable.values[index]
        for name, variable in result.data_vars.items()
        if variable.dims == ("entrant",)
    }
    is_baseline, verdict = index == 0, str(values["verdict"])
    low, high = values["difference_low"], values["difference_high"]
    interval = (
        Message("needs {n} seeds", n=MIN_UNITS)
        if low != low
        else Message("{low} to {high}", low=format_fixed(low, 4, True), high=format_fixed(high, 4, True))
    )
    return [
        Cell(str(result.entrant.values[index]), style="bold"),
        Cell(f"{values['best_rate']:g}"),
        Cell(format_fixed(values["final_loss"], 4), small_text=f"±{format_fixed(values['final_sd'], 4)}"),
        Cell("" if is_baseline else format_fixed(values["difference"], 4, True)),
        Cell("" if is_baseline else interval),
        Cell("" if is_baseline else format_p_value(values["p_holm"])),
        Cell(Message("baseline") if is_baseline else VERDICT_LABELS[verdict], style=VERDICT_STYLES.get(verdict, "")),
        Cell(_format_ratio(values["tokens_ratio"]), small_text=_ratio_interval(values)),
        Cell(_format_ratio(values["flops_ratio"])),
        _regime_cell(result, str(result.entrant.values[index])),
        Cell(Message("{n} of {total}", n=int(values["reached"]), total=result.sizes["judged"])),
        Cell(str(values["diverged"] or "")),
    ]


def _same_rate_text(result: "xarray.Dataset", index: int) -> Message | str:
    """The difference at the baseline's rate with its interval; empty for the baseline and without runs at that rate."""
    values = [float(result[name].values[index]) for name in SAME_RATE_FIELDS]
    difference, low, high = (format_fixed(value, 4, True) for value in values[:3])
    if values[0] != values[0]:
        return ""
    if values[1] != values[1]:
        return difference
    if values[3] != values[3]:
        return Message("{difference} ({low} to {high})", difference=difference, low=low, high=high)
    return Message(
        "{difference} ({low} to {high}), p {p}",
        difference=difference,
        low=low,
        high=high,
        p=format_p_value(values[3]),
    )


def rate_table(result: "xarray.Dataset") -> Table:
    """The loss of every entrant at every rate; the basin is the range of rates within .02 nats of the best one."""
    rates = [float(rate) for rate in result.rate.values]
    header = [
        *to_cells([Message("entrant"), *(f"{rate:g}" for rate in rates)]),
        Cell(Message("basin"), FIELDS["basin_low"].definition),
        Cell(Message("at the baseline's rate"), FIELDS["difference_at_baseline_rate"].definition),
        _regime_header(),
    ]
    rows = []
    for index, name in enumerate(map(str, result.entrant.values)):
        names = ("loss_by_rate", "best_rate", "basin_low", "basin_high")
        losses, best_rate, low, high = (result[key].values[index] for key in names)
        cells = [
            Cell("" if loss != loss else format_fixed(loss, 4), style="bold" if rate == best_rate else "")
            for rate, loss in zip(rates, losses, strict=True)
        ]
        basin_text = Message("{low} to {high}", low=f"{low:.2g}", high=f"{high:.2g}") if low < high else f"{low:g}"
        basin_cell = Cell(basin_text, small_text=f"{high / low:.1f} ×" if low < high else "")
        same_rate_cell = Cell(_same_rate_text(result, index))
        rows.append([Cell(name, style="bold"), *cells, basin_cell, same_rate_cell, _regime_cell(result, name)])
    note = Message(
        "Mean over seeds {seeds}, each run at full length. The basin holds the rates within {depth:g} nats of the best, "
        "with losses interpolated between the rates of the grid.",
        seeds=result.attrs["rates_chosen_on"],
        depth=BASIN_DEPTH,
    )
    return Table(Message("Held-out loss at every learning rate"), header, rows, note=note)


def format_p_value(p: float) -> str:
    """A short p value, with more digits where two would hide on which side of 5 % it lies.

    >>> [format_p_value(p) for p in (0.3, 0.0509, 0.0496, 0.002, float("nan"))]
    ['.30', '.0509', '.0496', '0.002', 'none']
    """
    if p < 0.01:
        return f"{p:.1g}"
    return f"{p:.3g}".removeprefix("0") if round(p, 2) == SIGNIFICANCE_LEVEL else format_number(p)


def _format_ratio(ratio: float) -> str:
    """A ratio; "never" if half of the seeds did not reach the target, empty if the baseline started at it."""
    return Message("never") if ratio == float("inf") else "" if ratio != ratio else f"{format_fixed(ratio, 2)} ×"


def _ratio_interval(values: Mapping[str, float]) -> Message | str:
    """The interval of the token ratio; empty for the baseline and for too few seeds."""
    low, high = values["tokens_ratio_low"], values["tokens_ratio_high"]
    if low != low or high != high:
        return ""
    if high == float("inf"):
        return Message("from {low}", low=format_fixed(low, 2))
    return Message("{low} to {high}", low=format_fixed(low, 2), high=format_fixed(high, 2))


def speed_table(result: "xarray.Dataset", speeds: dict[str, float]) -> Table:
    """Tokens per second of every entrant on this machine, and its time to the target relative to the baseline."""
    baseline_speed = speeds.get(BASELINE, float("nan"))
    tokens_ratio = dict(zip(map(str, result.entrant.values), map(float, result.tokens_ratio.values), strict=True))
    rows = [
        [
            Cell(name, style="bold"),
            Cell(f"{speed:,.0f}"),
            Cell(_format_ratio(baseline_speed / speed)),
            Cell(_format_ratio(tokens_ratio[name] * baseline_speed / speed)),
            _regime_cell(result, name),
        ]
        for name, speed in speeds.items()
    ]
    labels = [Message("entrant"), Message("tokens/s, all seeds"), Message("time per step"), Message("time to target")]
    header = [*to_cells(labels), _regime_header()]
    note = Message("Measured on this machine while entrants trained in alternation. Speeds are not part of the result.")
    return Table(Message("Training speed on this machine"), header, rows, note=note)


def _regime_header() -> Cell:
    return Cell(REGIME_LABEL, FIELDS["tokens_per_parameter"].definition)


def _regime_cell(result: "xarray.Dataset", entrant: str) -> Cell:
    """The tokens per parameter of an entrant, which every table states."""
    return Cell(format_fixed(float(result.tokens_per_parameter.sel(entrant=entrant)), 2))

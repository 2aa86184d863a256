"""What a change of M or F costs, in the terminal: the edit beside its controls and ablations."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.covers.against import Against
from rheoscope.covers.surgery import surgery
from rheoscope.report.dataset import save_json
from rheoscope.report.page import Page
from rheoscope.report.plot.surgery import heads_of as changed
from rheoscope.report.plot.surgery import picture_surgery
from rheoscope.report.progress import progress
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model

if TYPE_CHECKING:
    import xarray
    from rich.table import Table

CHANGES = {
    "edit": "the replacement",
    "size": "a random change of the same size",
    "cloud": "a random change as large on this text",
    "spectrum": "the replacement turned at random",
    "mean": "heads silenced: their mean",
    "uniform": "heads silenced: even attention",
}


def heads_of(typed: str | None) -> list[tuple[int, int]] | int | None:
    """Heads as they are typed: some, a layer, or all.

    >>> heads_of("5.1,3.2"), heads_of("L5.H1"), heads_of("4"), heads_of("all")
    ([(5, 1), (3, 2)], [(5, 1)], 4, None)
    """
    if typed is None or typed == "all":
        return None
    if typed.removeprefix("L").isdecimal():
        return int(typed.removeprefix("L"))
    found = [re.fullmatch(r"L?(\d+)\.H?(\d+)", one.strip()) for one in typed.split(",")]
    if not all(found):
        raise RheoscopeError(
            f"heads are typed as layer.head, got {typed!r}; type --heads 5.1,3.2 or --heads 5 for a layer"
        )
    return [(int(one[1]), int(one[2])) for one in found if one]


def cost_table(dataset: "xarray.Dataset") -> "Table":
    """A row a change: nats per token, and the interval."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("change", "cost", "95 % interval"):
        table.add_column(column, justify="left" if column == "change" else "right", no_wrap=True)
    for name in map(str, dataset.change.values):
        row = dataset.sel(change=name)
        table.add_row(CHANGES[name], f"{float(row.cost):+.4f}", _interval(row))
    return table


def _interval(row: "xarray.Dataset") -> str:
    low, high = float(row.cost_low), float(row.cost_high)
    return f"{low:+.4f} … {high:+.4f}" if low == low else "too little text"


def sentences(dataset: "xarray.Dataset") -> list[str]:
    """What the numbers say: the cost, whether it differs from chance of the same size, and how much of the heads' worth it is."""
    before = float((dataset.loss_before * dataset.tokens).sum() / dataset.tokens.sum())
    cost = dataset.cost.to_series().to_dict()
    said = [
        f"The loss is {before:.3f} nats per token; with {dataset.attrs['replaces']} in {changed(dataset)} it changes by "
        f"{cost['edit']:+.4f} (over {int(dataset.tokens.sum())} tokens)."
    ]
    for name in ("size", "cloud"):
        if name in cost:
            said.append(f"{CHANGES[name].capitalize()} costs {cost[name]:+.4f}: {_compared(dataset, name)}.")
    if cost.get("mean", 0.0) > 0:
        said.append(
            f"Silencing these heads costs {cost['mean']:+.4f}; the replacement costs {cost['edit'] / cost['mean']:.0%} of that."
        )
    return said


def _compared(dataset: "xarray.Dataset", name: str) -> str:
    row = dataset.sel(change=name)
    excess, low, high = (float(row[name]) for name in ("excess", "excess_low", "excess_high"))
    if low != low:
        return "so little text does not say whether the replacement differs from that; type a longer one"
    told = f"the replacement costs {excess:+.4f} against it ({low:+.4f} … {high:+.4f})"
    return f"{told}, which this text does not tell from 0" if low <= 0 <= high else told


def surgery_page(model: Model, dataset: "xarray.Dataset") -> Page:
    """The sentences, the picture and the table of costs."""
    lead = (
        f"{model.view.facts['model']}: what another M (QK circuit) or F (OV circuit) costs, in nats per token over "
        f"{int(dataset.tokens.sum())} tokens, {dataset.sizes['text']} piece{'s' * (dataset.sizes['text'] > 1)} of text."
    )
    rows = [
        [CHANGES[name], f"{float(dataset.cost.sel(change=name)):+.4f}", _interval(dataset.sel(change=name))]
        for name in map(str, dataset.change.values)
    ]
    page = Page(f"Surgery: {dataset.attrs['replaces']} in {changed(dataset)}", lead)
    page = page.lines("What the numbers say", sentences(dataset)).drawing(picture_surgery(dataset))
    page = page.table("Every change", ["change", "cost", "95 % interval"], rows)
    facts = {name: str(value) for name, value in dataset.attrs.items() if name not in ("text", "analysis")}
    return page.facts("Where the numbers come from", facts)


def show(
    model: Model,
    text: str,
    heads: str | None,
    M: str | None,
    F: str | None,
    draws: int,
    json_file: Path | None,
    html: Path | None = None,
) -> None:
    """What `rheoscope surgery` does: run the model under every change, a table, and the file asked for."""
    from rich.console import Console

    console, chosen = Console(highlight=False), heads_of(heads)
    with progress("surgery") as tell:
        dataset = surgery(model, text, chosen, M, F, Against(draws=draws), tell)
    console.print(
        f"{model.view.facts['model']} · nats per token, {dataset.sizes['text']} pieces of text",
        style="dim",
        markup=False,
    )
    console.print(cost_table(dataset))
    for line in sentences(dataset):
        console.print(f"• {line}", markup=False)
    if json_file is not None:
        console.print(save_json({"surgery": dataset}, json_file), soft_wrap=True)
    if html is not None:
        console.print(surgery_page(model, dataset).save(html), soft_wrap=True)

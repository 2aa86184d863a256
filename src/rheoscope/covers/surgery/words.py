"""What a change of M or F costs: the edit beside its controls and ablations, in a table and in words."""

from typing import TYPE_CHECKING

from rheoscope.messages.numbers import fixed, plural
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.space.results import Answers

if TYPE_CHECKING:
    import xarray

CHANGES = {
    "edit": "the replacement",
    "size": "a random change of the same size",
    "cloud": "a random change as large on this text",
    "spectrum": "the replacement turned at random",
    "mean": "heads silenced: their mean",
    "uniform": "heads silenced: even attention",
}


def blocks(answers: Answers) -> list[Block]:
    """The table of costs, and what the numbers say; of heads changed one by one, the dearest of them."""
    if "surgery" not in answers.found:
        return []
    dataset = answers.found["surgery"]
    if "each_cost" in dataset:
        return [each_table(dataset)]
    return [cost_table(dataset), Lines("What the numbers say", sentences(dataset))]


def cost_table(dataset: "xarray.Dataset") -> Table:
    """A row a change: nats per token, and the interval."""
    header = [Cell("change"), Cell("cost", str(dataset.cost.attrs["definition"])), Cell("95 % interval")]
    rows = []
    for name in map(str, dataset.change.values):
        row = dataset.sel(change=name)
        rows.append([Cell(CHANGES[name]), Cell(signed(float(row.cost))), Cell(_interval(row))])
    return Table(f"What it costs: {dataset.attrs['replaces']} in {heads_named(dataset)}, nats per token", header, rows)


def _interval(row: "xarray.Dataset") -> str:
    low, high = float(row.cost_low), float(row.cost_high)
    return f"{signed(low)} … {signed(high)}" if low == low else "too little text"


def signed(nats: float) -> str:
    return fixed(nats, 4, sign=True)


def moved(nats: float) -> str:
    """What the loss does, in words."""
    size = fixed(abs(nats), 4)
    return "stays as it is" if not float(size) else f"{'rises' if nats > 0 else 'falls'} by {size}"


def heads_named(dataset: "xarray.Dataset") -> str:
    """Which heads were changed, in words."""
    return "every head" if dataset.attrs["heads"] == "all" else str(dataset.attrs["heads"])


def each_table(dataset: "xarray.Dataset", most: int = 12) -> Table:
    """The heads that cost most when changed alone, beside random changes of the same size in them."""
    changes = list(map(str, dataset.change.values))
    cost = (
        dataset.each_cost.stack(at=("layer", "head"))
        .dropna("at")
        .sortby(dataset.each_cost.sel(change="edit").stack(at=("layer", "head")).dropna("at"), ascending=False)
    )
    header = [Cell("head"), *(Cell(CHANGES[name], str(dataset.each_cost.attrs["definition"])) for name in changes)]
    rows = [
        [
            Cell(f"L{int(layer)}.H{int(head)}"),
            *(Cell(signed(float(cost.sel(change=name).isel(at=at)))) for name in changes),
        ]
        for at, (layer, head) in enumerate(cost.at.values[:most])
    ]
    return Table(f"What {dataset.attrs['replaces']} costs in each head alone, nats per token", header, rows)


def sentences(dataset: "xarray.Dataset") -> list[str]:
    """The cost, whether it differs from chance of the same size, and how much of the heads' worth it is."""
    before = float((dataset.loss_before * dataset.tokens).sum() / dataset.tokens.sum())
    cost = dataset.cost.to_series().to_dict()
    lines = [
        f"The loss is {before:.3f} nats per token; with {dataset.attrs['replaces']} in {heads_named(dataset)} it "
        f"{moved(cost['edit'])} (over {plural(int(dataset.tokens.sum()), 'token')})."
    ]
    for name in ("size", "cloud"):
        if name in cost:
            lines.append(f"{CHANGES[name].capitalize()} costs {signed(cost[name])}: {_compared(dataset, name)}.")
    return [*lines, worth(cost["edit"], cost["mean"])] if "mean" in cost else lines


def worth(edit: float, silenced: float) -> str:
    """What the replacement costs beside what the heads are worth; neither has a share of nothing."""
    if silenced <= 0:
        return f"Silencing these heads costs nothing here: the loss {moved(silenced)}."
    share = f"the replacement costs {edit / silenced:.0%} of that" if edit > 0 else "the replacement costs nothing"
    return f"Silencing these heads costs {signed(silenced)}; {share}."


def _compared(dataset: "xarray.Dataset", name: str) -> str:
    row = dataset.sel(change=name)
    excess, low, high = (float(row[name]) for name in ("excess", "excess_low", "excess_high"))
    if low != low:
        return "so little text does not say whether the replacement differs from that; type a longer one"
    more = "more" if excess >= 0 else "less"
    against = f"the replacement costs {fixed(abs(excess), 4)} {more} (difference {signed(low)} … {signed(high)})"
    return f"{against}, which this text does not tell from 0" if low <= 0 <= high else against

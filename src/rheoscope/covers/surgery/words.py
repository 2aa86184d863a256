"""What a change of M or F costs: the edit beside its controls and ablations, in a table and in words."""

from typing import TYPE_CHECKING

from rheoscope.messages.numbers import format_fixed, pluralise
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray

CHANGE_NAMES = {
    "edit": "the replacement",
    "size": "a random change of the same size",
    "cloud": "a random change as large on this text",
    "spectrum": "the replacement turned at random",
    "mean": "heads silenced: their mean",
    "uniform": "heads silenced: even attention",
}


def blocks(results: Results) -> list[Block]:
    """The table of costs, and what the numbers say; of heads changed one by one, the dearest of them."""
    if "surgery" not in results.datasets:
        return []
    dataset = results.datasets["surgery"]
    if "head_cost" in dataset:
        return [head_cost_table(dataset)]
    return [cost_table(dataset), Lines("What the numbers say", cost_sentences(dataset))]


def cost_table(dataset: "xarray.Dataset") -> Table:
    """A row a change: nats per token, and the interval."""
    header = [Cell("change"), Cell("cost", str(dataset.cost.attrs["definition"])), Cell("95 % interval")]
    rows = []
    for name in map(str, dataset.change.values):
        row = dataset.sel(change=name)
        rows.append([Cell(CHANGE_NAMES[name]), Cell(format_nats(float(row.cost))), Cell(_interval_text(row))])
    return Table(f"What it costs: {dataset.attrs['replaces']} in {heads_text(dataset)}, nats per token", header, rows)


def _interval_text(row: "xarray.Dataset") -> str:
    low, high = float(row.cost_low), float(row.cost_high)
    return f"{format_nats(low)} … {format_nats(high)}" if low == low else "too little text"


def format_nats(nats: float) -> str:
    return format_fixed(nats, 4, sign=True)


def loss_change_text(nats: float) -> str:
    """What the loss does, in words."""
    size_text = format_fixed(abs(nats), 4)
    return "stays as it is" if not float(size_text) else f"{'rises' if nats > 0 else 'falls'} by {size_text}"


def heads_text(dataset: "xarray.Dataset") -> str:
    """Which heads were changed, in words."""
    return "every head" if dataset.attrs["heads"] == "all" else str(dataset.attrs["heads"])


def head_cost_table(dataset: "xarray.Dataset", max_heads: int = 12) -> Table:
    """The heads that cost most when changed alone, beside random changes of the same size in them."""
    changes = list(map(str, dataset.change.values))
    cost = (
        dataset.head_cost.stack(at=("layer", "head"))
        .dropna("at")
        .sortby(dataset.head_cost.sel(change="edit").stack(at=("layer", "head")).dropna("at"), ascending=False)
    )
    header = [Cell("head"), *(Cell(CHANGE_NAMES[name], str(dataset.head_cost.attrs["definition"])) for name in changes)]
    rows = [
        [
            Cell(f"L{int(layer)}.H{int(head)}"),
            *(Cell(format_nats(float(cost.sel(change=name).isel(at=index)))) for name in changes),
        ]
        for index, (layer, head) in enumerate(cost.at.values[:max_heads])
    ]
    return Table(f"What {dataset.attrs['replaces']} costs in each head alone, nats per token", header, rows)


def cost_sentences(dataset: "xarray.Dataset") -> list[str]:
    """The cost, whether it differs from chance of the same size, and how much of the heads' worth it is."""
    loss_before = float((dataset.loss_before * dataset.tokens).sum() / dataset.tokens.sum())
    cost = dataset.cost.to_series().to_dict()
    lines = [
        f"The loss is {loss_before:.3f} nats per token; with {dataset.attrs['replaces']} in {heads_text(dataset)} it "
        f"{loss_change_text(cost['edit'])} (over {pluralise(int(dataset.tokens.sum()), 'token')})."
    ]
    for name in ("size", "cloud"):
        if name in cost:
            lines.append(
                f"{CHANGE_NAMES[name].capitalize()} costs {format_nats(cost[name])}: {_excess_text(dataset, name)}."
            )
    return [*lines, ablation_sentence(cost["edit"], cost["mean"])] if "mean" in cost else lines


def ablation_sentence(edit_cost: float, ablation_cost: float) -> str:
    """What the replacement costs beside what the heads are worth; neither has a share of nothing."""
    if ablation_cost <= 0:
        return f"Silencing these heads costs nothing here: the loss {loss_change_text(ablation_cost)}."
    comparison = (
        f"the replacement costs {edit_cost / ablation_cost:.0%} of that"
        if edit_cost > 0
        else "the replacement costs nothing"
    )
    return f"Silencing these heads costs {format_nats(ablation_cost)}; {comparison}."


def _excess_text(dataset: "xarray.Dataset", name: str) -> str:
    row = dataset.sel(change=name)
    excess, low, high = (float(row[name]) for name in ("excess", "excess_low", "excess_high"))
    if low != low:
        return "so little text does not say whether the replacement differs from that; type a longer one"
    direction = "more" if excess >= 0 else "less"
    difference = f"the replacement costs {format_fixed(abs(excess), 4)} {direction} (difference {format_nats(low)} … {format_nats(high)})"
    return f"{difference}, which this text does not tell from 0" if low <= 0 <= high else difference

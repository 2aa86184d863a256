"""Text about surgery: the cost of a replacement of M or F, compared with random changes and ablations."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message, join, plural
from rheoscope.messages.numbers import format_fixed
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.space.results import Results
from rheoscope.space.words import OwnReport, ReportSection, Words

if TYPE_CHECKING:
    import xarray

CHANGE_NAMES = {
    "edit": Message("the replacement"),
    "size": Message("a random change of the same norm"),
    "cloud": Message("a random change with the same effect on this text"),
    "spectrum": Message("the replacement, randomly rotated"),
    "mean": Message("heads ablated to their mean output"),
    "uniform": Message("heads ablated to uniform attention"),
}
RANDOM_CHANGE_COSTS = {
    "size": Message("A random change of the same norm costs {cost}."),
    "cloud": Message("A random change with the same effect on this text costs {cost}."),
}


def blocks(results: Results) -> list[Block]:
    """The table of costs and a summary. If each head was changed alone: the heads that cost most."""
    if not results.has("surgery"):
        return []
    dataset = results.datasets["surgery"]
    if "head_cost" in dataset:
        return [head_cost_table(dataset)]
    return [cost_table(dataset), Lines(Message("Comparison with random changes and ablation"), cost_sentences(dataset))]


def cost_table(dataset: "xarray.Dataset") -> Table:
    """One row per change: its cost and the confidence interval."""
    header = [
        Cell(Message("change")),
        Cell(Message("cost"), str(dataset.cost.attrs["definition"])),
        Cell(Message("95 % interval")),
    ]
    rows = []
    for name in map(str, dataset.change.values):
        row = dataset.sel(change=name)
        rows.append([Cell(CHANGE_NAMES[name]), Cell(format_nats(float(row.cost))), Cell(_interval_text(row))])
    heading = Message(
        "Cost of {replacement} in {heads}, nats per token",
        replacement=dataset.attrs["replaces"],
        heads=heads_text(dataset),
    )
    return Table(heading, header, rows)


def _interval_text(row: "xarray.Dataset") -> str:
    low, high = float(row.cost_low), float(row.cost_high)
    if low != low:
        return row.attrs["intervals"]
    return Message("{low} to {high}", low=format_nats(low), high=format_nats(high))


def format_nats(nats: float) -> str:
    return format_fixed(nats, 4, sign=True)


def heads_text(dataset: "xarray.Dataset") -> str:
    """The heads that were changed."""
    return Message("every head") if dataset.attrs["heads"] == "all" else str(dataset.attrs["heads"])


def head_cost_table(dataset: "xarray.Dataset", max_heads: int = 12) -> Table:
    """The heads that cost most when changed alone, compared with random changes of the same norm."""
    changes = list(map(str, dataset.change.values))
    cost = (
        dataset.head_cost.stack(at=("layer", "head"))
        .dropna("at")
        .sortby(dataset.head_cost.sel(change="edit").stack(at=("layer", "head")).dropna("at"), ascending=False)
    )
    definition = str(dataset.head_cost.attrs["definition"])
    header = [Cell(Message("head")), *(Cell(CHANGE_NAMES[name], definition) for name in changes)]
    rows = [
        [
            Cell(f"L{int(layer)}.H{int(head)}"),
            *(Cell(format_nats(float(cost.sel(change=name).isel(at=index)))) for name in changes),
        ]
        for index, (layer, head) in enumerate(cost.at.values[:max_heads])
    ]
    heading = Message("Cost of {replacement} in each head alone, nats per token", replacement=dataset.attrs["replaces"])
    return Table(heading, header, rows)


def cost_sentences(dataset: "xarray.Dataset") -> list[Message]:
    """The cost, its difference from random changes of the same size, and its share of the cost of ablation."""
    cost = dataset.cost.to_series().to_dict()
    random_changes = [
        join(
            " ",
            [
                Message(RANDOM_CHANGE_COSTS[name].template, cost=format_nats(cost[name])),
                _excess_sentence(dataset, name),
            ],
        )
        for name in RANDOM_CHANGE_COSTS
        if name in cost
    ]
    ablations = [ablation_sentence(cost["edit"], cost["mean"])] if "mean" in cost else []
    return [loss_sentence(dataset, cost["edit"]), *random_changes, *ablations]


def loss_sentence(dataset: "xarray.Dataset", cost: float) -> Message:
    """The loss before the change, and by how much it rises or falls."""
    before = Message(
        "The loss is {loss:.3f} nats per token (over {tokens}).",
        loss=float((dataset.loss_before * dataset.tokens).sum() / dataset.tokens.sum()),
        tokens=plural("{n} token", "{n:,} tokens", n=int(dataset.tokens.sum())),
    )
    change = format_fixed(abs(cost), 4)
    settings = {"replacement": dataset.attrs["replaces"], "heads": heads_text(dataset)}
    if not float(change):
        after = Message("With {replacement} in {heads} it does not change.", **settings)
    elif cost > 0:
        after = Message("With {replacement} in {heads} it rises by {change}.", change=change, **settings)
    else:
        after = Message("With {replacement} in {heads} it falls by {change}.", change=change, **settings)
    return join(" ", [before, after])


def ablation_sentence(edit_cost: float, ablation_cost: float) -> Message:
    """The cost of the replacement as a share of the cost of ablation, if both are positive."""
    if ablation_cost > 0:
        ablated = Message("Ablating these heads costs {cost}.", cost=format_nats(ablation_cost))
        if edit_cost <= 0:
            return join(" ", [ablated, Message("The replacement costs nothing.")])
        share = Message("The replacement costs {share:.0f} % of that.", share=100 * edit_cost / ablation_cost)
        return join(" ", [ablated, share])
    change = format_fixed(abs(ablation_cost), 4)
    if not float(change):
        return Message("Ablating these heads costs nothing here: the loss does not change.")
    return Message("Ablating these heads costs nothing here: the loss falls by {change}.", change=change)


def _excess_sentence(dataset: "xarray.Dataset", name: str) -> Message:
    row = dataset.sel(change=name)
    excess, low, high = (float(row[field]) for field in ("excess", "excess_low", "excess_high"))
    if low != low:
        return Message("This text is too short to compare the replacement with it; use a longer one.")
    interval = {"low": format_nats(low), "high": format_nats(high)}
    if low <= 0 <= high:
        return Message(
            "The replacement does not differ from it significantly ({difference}; 95 % CI {low} to {high}).",
            difference=format_nats(excess),
            **interval,
        )
    difference = format_fixed(abs(excess), 4)
    if excess >= 0:
        return Message(
            "The replacement costs {difference} more (95 % CI {low} to {high}).", difference=difference, **interval
        )
    return Message(
        "The replacement costs {difference} less (95 % CI {low} to {high}).", difference=difference, **interval
    )


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """What the replacement costs, compared with an ablation."""
    cost = {str(name): format_fixed(float(dataset.cost.sel(change=name)), 2, True) for name in ("edit", "mean")}
    return Message(
        "The replacement changes the loss by {edit} nats per token; ablating the same heads changes it by {mean}.",
        **cost,
    )


WORDS = Words(
    sentence=main_sentence,
    sections=(ReportSection("surgery", 0, blocks),),
    report=OwnReport(
        "surgery",
        Message("Surgery: {text}"),
        next_step=Message("what it costs to make every head symmetric"),
        next_options="--M symmetric",
        can_describe=lambda results: results.view.predicts_next_token,
    ),
)

"""What a model costs, as a table and as JSON."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rheoscope.attention.cost import TransformerCost
from rheoscope.messages.numbers import plural
from rheoscope.picture.blocks import Cell, Lines, Table
from rheoscope.report.console import console
from rheoscope.report.json_file import write_json
from rheoscope.report.terminal import Terminal
from rheoscope.space.model import Model
from rheoscope.space.model_cost import cached_bytes, model_cost, weights_bytes

PARTS = {
    "projections": "queries, keys, values and outputs: 2 · parameters · tokens",
    "attention": "scores and averages between pairs of tokens, under each layer's own mask",
    "ffn": "MLPs: 2 · parameters · tokens",
    "unembedding": "from the last points to the vocabulary",
}


def counted(model: Model, tokens: int) -> dict[str, Any]:
    """Every number of the table and of the lines."""
    view, cost = model.view, model_cost(model.view, tokens)
    held = {"key_value_bytes": cached_bytes(view, tokens), "weights_bytes": weights_bytes(view, tokens)}
    sums = {"forward": cost.forward, "training": cost.training}
    return {"model": str(view.facts["model"]), "tokens": tokens} | asdict(cost) | sums | held


def table(cost: TransformerCost, tokens: int) -> Table:
    """A row a part: FLOPs of one forward, of a training step, and the share."""
    rows = [(name, getattr(cost, name), said) for name, said in PARTS.items()]
    rows.append(("together", cost.forward, "a backward pass costs two forwards"))
    told = [
        [Cell(name, said), Cell(si(flops)), Cell(si(3 * flops)), Cell(f"{flops / cost.forward:.1%}")]
        for name, flops, said in rows
    ]
    header = [Cell("part"), Cell("forward FLOPs"), Cell("training FLOPs"), Cell("share")]
    return Table(f"One sequence of {plural(tokens, 'token')}", header, told, ends=frozenset({len(PARTS) - 1}))


def lines(numbers: dict[str, Any]) -> Lines:
    """Crossover lengths, parameters and bytes."""
    causal = "without a mask; twice that if causal"
    return Lines(
        "Where attention outweighs the rest, and what is held",
        [
            f"attention between tokens costs more than all else of a layer beyond {numbers['crossover']:,.0f} tokens ({causal})",
            f"and more than its own projections beyond {numbers['crossover_projections']:,.0f} tokens ({causal})",
            f"{si(numbers['parameters'])} parameters in matrices",
            f"{si(numbers['key_value_bytes'])}B of keys and values; {si(numbers['weights_bytes'])}B of weights, if they were held",
        ],
    )


def si(number: float) -> str:
    """A number with three digits and a letter for its thousands.

    >>> si(8589934592), si(512)
    ('8.59 G', '512 ')
    """
    for letter in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 1000 or letter == "P":
            break
        number /= 1000
    return f"{number:.3g} {letter}"


def show(model: Model, tokens: int, json_file: Path | None) -> None:
    """What `rheoscope costs` does: count, table, file."""
    numbers, terminal, said = counted(model, tokens), Terminal(console(), []), []
    if json_file is not None:
        said.append(write_json(numbers, json_file))
    terminal.show(table(model_cost(model.view, tokens), tokens))
    terminal.show(lines(numbers))
    terminal.files(said)

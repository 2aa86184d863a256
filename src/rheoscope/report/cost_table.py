"""The cost of a model in FLOPs and bytes, as a table and as JSON."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rheoscope.attention.cost import TransformerCost
from rheoscope.messages.message import Message, plural
from rheoscope.picture.blocks import Cell, Lines, Table
from rheoscope.report.console import console
from rheoscope.report.json_file import write_json
from rheoscope.report.terminal import Terminal
from rheoscope.space.model import Model
from rheoscope.space.model_cost import attention_map_bytes, kv_cache_bytes, model_cost

PART_DEFINITIONS = {
    "projections": Message("queries, keys, values and outputs: 2 · parameters · tokens"),
    "attention": Message("scores and weighted sums over pairs of tokens, under the mask of each layer"),
    "ffn": Message("MLPs: 2 · parameters · tokens"),
    "unembedding": Message("from the last points to the vocabulary"),
}


def cost_numbers(model: Model, n_tokens: int) -> dict[str, Any]:
    """All numbers of the table and of the lines."""
    view, cost = model.view, model_cost(model.view, n_tokens)
    memory = {"key_value_bytes": kv_cache_bytes(view, n_tokens), "weights_bytes": attention_map_bytes(view, n_tokens)}
    totals = {"forward": cost.forward, "training": cost.training}
    return {"model": str(view.facts["model"]), "tokens": n_tokens} | asdict(cost) | totals | memory


def cost_table(cost: TransformerCost, n_tokens: int) -> Table:
    """One row per part: FLOPs of a forward pass, of a training step, and the share."""
    rows = [(name, getattr(cost, name), definition) for name, definition in PART_DEFINITIONS.items()]
    rows.append((Message("total"), cost.forward, Message("a backward pass costs as much as two forward passes")))
    cell_rows = [
        [
            Cell(name, definition),
            Cell(format_si(flops)),
            Cell(format_si(3 * flops)),
            Cell(f"{100 * flops / cost.forward:.1f} %"),
        ]
        for name, flops, definition in rows
    ]
    header = [
        Cell(Message("part")),
        Cell(Message("forward FLOPs")),
        Cell(Message("training FLOPs")),
        Cell(Message("share")),
    ]
    return Table(
        plural("One sequence of {n} token", "One sequence of {n:,} tokens", n=n_tokens),
        header,
        cell_rows,
        group_ends=frozenset({len(PART_DEFINITIONS) - 1}),
    )


def cost_lines(numbers: dict[str, Any]) -> Lines:
    """Crossover lengths, parameters and bytes."""
    return Lines(
        Message("Crossover lengths and memory"),
        [
            Message(
                "Attention costs more than the rest of a layer beyond {n:,.0f} tokens (no mask; twice that if causal).",
                n=numbers["crossover"],
            ),
            Message(
                "Attention costs more than its own projections beyond {n:,.0f} tokens (no mask; twice that if causal).",
                n=numbers["crossover_projections"],
            ),
            Message("The matrices have {n} parameters.", n=format_si(numbers["parameters"])),
            Message("The keys and values take {n}B.", n=format_si(numbers["key_value_bytes"])),
            Message(
                "The attention weights would take {n}B if they were stored.", n=format_si(numbers["weights_bytes"])
            ),
        ],
    )


def format_si(number: float) -> str:
    """A number with three digits and an SI prefix.

    >>> format_si(8589934592), format_si(512)
    ('8.59 G', '512 ')
    """
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 1000 or prefix == "P":
            break
        number /= 1000
    return f"{number:.3g} {prefix}"


def show_costs(model: Model, n_tokens: int, json_file: Path | None) -> None:
    """Run `rheoscope costs`: count, print the table, write the file."""
    numbers, terminal, messages = cost_numbers(model, n_tokens), Terminal(console(), []), []
    if json_file is not None:
        messages.append(write_json(numbers, json_file))
    terminal.print_block(cost_table(model_cost(model.view, n_tokens), n_tokens))
    terminal.print_block(cost_lines(numbers))
    terminal.print_files(messages)

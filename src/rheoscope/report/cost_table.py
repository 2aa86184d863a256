"""What a model costs, as a table and as JSON."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rheoscope.attention.cost import TransformerCost
from rheoscope.messages.numbers import pluralise
from rheoscope.picture.blocks import Cell, Lines, Table
from rheoscope.report.console import console
from rheoscope.report.json_file import write_json
from rheoscope.report.terminal import Terminal
from rheoscope.space.model import Model
from rheoscope.space.model_cost import attention_map_bytes, kv_cache_bytes, model_cost

PART_DEFINITIONS = {
    "projections": "queries, keys, values and outputs: 2 · parameters · tokens",
    "attention": "scores and averages between pairs of tokens, under each layer's own mask",
    "ffn": "MLPs: 2 · parameters · tokens",
    "unembedding": "from the last points to the vocabulary",
}


def cost_numbers(model: Model, n_tokens: int) -> dict[str, Any]:
    """Every number of the table and of the lines."""
    view, cost = model.view, model_cost(model.view, n_tokens)
    memory = {"key_value_bytes": kv_cache_bytes(view, n_tokens), "weights_bytes": attention_map_bytes(view, n_tokens)}
    totals = {"forward": cost.forward, "training": cost.training}
    return {"model": str(view.facts["model"]), "tokens": n_tokens} | asdict(cost) | totals | memory


def cost_table(cost: TransformerCost, n_tokens: int) -> Table:
    """A row a part: FLOPs of one forward, of a training step, and the share."""
    rows = [(name, getattr(cost, name), definition) for name, definition in PART_DEFINITIONS.items()]
    rows.append(("together", cost.forward, "a backward pass costs two forwards"))
    cell_rows = [
        [
            Cell(name, definition),
            Cell(format_si(flops)),
            Cell(format_si(3 * flops)),
            Cell(f"{flops / cost.forward:.1%}"),
        ]
        for name, flops, definition in rows
    ]
    header = [Cell("part"), Cell("forward FLOPs"), Cell("training FLOPs"), Cell("share")]
    return Table(
        f"One sequence of {pluralise(n_tokens, 'token')}",
        header,
        cell_rows,
        group_ends=frozenset({len(PART_DEFINITIONS) - 1}),
    )


def cost_lines(numbers: dict[str, Any]) -> Lines:
    """Crossover lengths, parameters and bytes."""
    mask_note = "without a mask; twice that if causal"
    return Lines(
        "Where attention outweighs the rest, and what is held",
        [
            f"attention between tokens costs more than all else of a layer beyond {numbers['crossover']:,.0f} tokens ({mask_note})",
            f"and more than its own projections beyond {numbers['crossover_projections']:,.0f} tokens ({mask_note})",
            f"{format_si(numbers['parameters'])} parameters in matrices",
            f"{format_si(numbers['key_value_bytes'])}B of keys and values; "
            f"{format_si(numbers['weights_bytes'])}B of weights, if they were held",
        ],
    )


def format_si(number: float) -> str:
    """A number with three digits and a letter for its thousands.

    >>> format_si(8589934592), format_si(512)
    ('8.59 G', '512 ')
    """
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 1000 or prefix == "P":
            break
        number /= 1000
    return f"{number:.3g} {prefix}"


def show_costs(model: Model, n_tokens: int, json_file: Path | None) -> None:
    """What `rheoscope costs` does: count, table, file."""
    numbers, terminal, messages = cost_numbers(model, n_tokens), Terminal(console(), []), []
    if json_file is not None:
        messages.append(write_json(numbers, json_file))
    terminal.print_block(cost_table(model_cost(model.view, n_tokens), n_tokens))
    terminal.print_block(cost_lines(numbers))
    terminal.print_files(messages)

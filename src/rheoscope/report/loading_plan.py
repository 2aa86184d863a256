"""The plan of a large model as a table and as JSON: `rheoscope describe --plan`."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.messages.message import Message, plural
from rheoscope.picture.blocks import Cell, Lines, Table
from rheoscope.report.console import console
from rheoscope.report.cost_table import format_si
from rheoscope.report.json_file import write_json
from rheoscope.report.terminal import Terminal

if TYPE_CHECKING:
    from rheoscope.pretrained.loading_plan import LoadingPlan

SHOWN_TABLE_BYTES = 2**20
"""Smaller weights outside the layers are shown in one row."""


def show_plan(source: str, tokens: int, dtype: str | None, device: str | None, json_file: Path | None) -> None:
    """Run `rheoscope describe --plan`: plan, print the table, write the file."""
    from rheoscope.pretrained.loading_plan import plan_loading

    plan = plan_loading(source, tokens, dtype, device)
    terminal = Terminal(console(), [])
    messages = [] if json_file is None else [write_json(plan_numbers(plan), json_file)]
    terminal.print_block(plan_table(plan))
    terminal.print_block(plan_lines(plan))
    terminal.print_files(messages)


def plan_numbers(plan: "LoadingPlan") -> dict[str, Any]:
    """All numbers of the plan."""
    derived = ("total_bytes", "peak_resident", "peak_streamed", "read_seconds", "fits")
    return asdict(plan) | {name: getattr(plan, name) for name in derived}


def plan_table(plan: "LoadingPlan") -> Table:
    """One row for each kind of block and each large table: how many there are, and their bytes."""
    small = [n_bytes for n_bytes in plan.table_bytes.values() if n_bytes < SHOWN_TABLE_BYTES]
    rows: list[tuple[str, int, int]] = [
        (Message("layer"), count, n_bytes) for n_bytes, count in Counter(plan.block_bytes).items()
    ]
    rows += [(name, 1, n_bytes) for name, n_bytes in plan.table_bytes.items() if n_bytes >= SHOWN_TABLE_BYTES]
    rows += [(Message("other weights"), len(small), sum(small) // len(small))] if small else []
    return Table(
        Message("{model} ({model_type}) in {dtype}", model=plan.model, model_type=plan.model_type, dtype=plan.dtype),
        [Cell(Message("block")), Cell(Message("count")), Cell(Message("bytes of each")), Cell(Message("bytes"))],
        [
            [Cell(name), Cell(str(count)), Cell(f"{format_si(n_bytes)}B"), Cell(f"{format_si(count * n_bytes)}B")]
            for name, count, n_bytes in rows
        ],
    )


def plan_lines(plan: "LoadingPlan") -> Lines:
    """Totals, memory, reading time and FLOPs."""
    lines = [
        Message(
            "The model has {parameters} parameters: {total}B in memory, {file}B in its files.",
            parameters=format_si(plan.parameters),
            total=format_si(plan.total_bytes),
            file=format_si(plan.file_bytes),
        ),
        Message("In memory it needs up to {peak}B.", peak=format_si(plan.peak_resident)),
        Message("Streamed (--stream) it needs up to {peak}B.", peak=format_si(plan.peak_streamed)),
    ]
    if plan.free_bytes is not None:
        lines.append(Message("{device} has {free}B free.", device=plan.device, free=format_si(plan.free_bytes)))
    lines += [
        Message(
            "Reading it once takes {seconds:,.1f} s at {speed}B/s, measured on {path}.",
            seconds=plan.read_seconds,
            speed=format_si(plan.read_speed),
            path=plan.speed_path,
        ),
        plural(
            "A trace of {n} token costs {flops}FLOPs; its points take {points}B.",
            "A trace of {n:,} tokens costs {flops}FLOPs; its points take {points}B.",
            n=plan.tokens,
            flops=format_si(plan.flops),
            points=format_si(plan.points_bytes),
        ),
    ]
    return Lines(Message("Memory and time"), lines)

"""The speed of mechanisms on this machine as a terminal table, as Markdown and as JSON."""

import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rheoscope.attention.speed import (
    CPU_SETTING,
    GPU_SETTING,
    BenchmarkRow,
    BenchmarkSetting,
    SpeedRatio,
    run_benchmark,
)
from rheoscope.files import check_outputs
from rheoscope.messages.advice import use
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.picture.blocks import Cell, Table, to_cells
from rheoscope.report.console import console
from rheoscope.report.json_file import write_json
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError

HEADER = [
    Message("mechanism"),
    Message("tokens"),
    Message("forward"),
    Message("with backward"),
    Message("error"),
    Message("gradient error"),
    Message("memory"),
    Message("first call"),
    Message("runs as"),
]
DEFAULT_LENGTHS = {"cpu": (1024,), "cuda": (8192, 2048, 32768)}
"""The sequence lengths of a device, the most important first."""


def device_setting(device: str | None) -> BenchmarkSetting:
    """The setting of a device. The default is the GPU if there is one.

    >>> device_setting("cpu").dtype
    torch.float32
    """
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = {"cpu": CPU_SETTING, "cuda": GPU_SETTING}
    if (device or default_device) not in settings or (device == "cuda" and default_device == "cpu"):
        raise RheoscopeError(
            Message("expected cpu, or cuda with a working GPU, got {device!r}", device=device), use(device="cpu")
        )
    return settings[device or default_device]


def sort_by_mechanism(rows: Sequence[BenchmarkRow]) -> list[BenchmarkRow]:
    """The rows by mechanism, short sequences first."""
    names = list(dict.fromkeys(row.name for row in rows))
    return sorted(rows, key=lambda row: (names.index(row.name), row.tokens))


def row_texts(row: BenchmarkRow) -> list[str]:
    """One row as texts, for the terminal and for Markdown."""
    memory = "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.0f} MiB"
    first_call = "" if row.first_call is None else f"{row.first_call:.1f} s"
    errors = [f"{x:.2f} ×" if x is not None else "" for x in (row.error, row.gradient_error)]
    lowering_text = f"{row.lowering}; {row.note}" if row.note else row.lowering
    return [
        row.name,
        str(row.tokens),
        _format_ratio(row.forward),
        _format_ratio(row.both),
        *errors,
        memory,
        first_call,
        lowering_text,
    ]


def _format_ratio(ratio: SpeedRatio | None) -> str:
    if ratio is None:
        return ""
    digits = 2 if ratio.value >= 0.1 else 4
    return f"{ratio.value:.{digits}f} ± {ratio.noise:.{digits}f}" if ratio.rounds > 1 else f"{ratio.value:.{digits}f}"


def table_title(setting: BenchmarkSetting) -> Message:
    device_name = (
        torch.cuda.get_device_name()
        if setting.device == "cuda"
        else Message("{n} CPU threads", n=torch.get_num_threads())
    )
    return Message(
        "Speed relative to torch's fused dot-product attention: {device}, {dtype}, {heads} heads of width {width}",
        device=device_name,
        dtype=str(setting.dtype).removeprefix("torch."),
        heads=setting.heads,
        width=setting.width,
    )


def speed_table(rows: Sequence[BenchmarkRow], setting: BenchmarkSetting) -> Table:
    note = Message(
        "Speed and error are relative to torch (error against float64). Memory excludes the inputs. The batch is one sequence, "
        "or 16 thousand tokens on a GPU. Attention is causal where masks are allowed."
    )
    cell_rows = [[Cell(text) for text in row_texts(row)] for row in sort_by_mechanism(rows)]
    return Table(table_title(setting), to_cells(HEADER), cell_rows, frozenset({0, len(HEADER) - 1}), note=note)


def markdown_table(rows: Sequence[BenchmarkRow]) -> str:
    """The table in Markdown.

    >>> print(markdown_table([BenchmarkRow("metric", 8, "sdpa", "it folds", SpeedRatio(0.5, 0.01, 3))]).splitlines()[-1])
    | metric | 8 | 0.50 ± 0.01 |  |  |  |  |  | sdpa |
    """
    lines: list[list[str]] = [[*HEADER], ["---"] * len(HEADER), *map(row_texts, sort_by_mechanism(rows))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def speed_to_json(rows: Sequence[BenchmarkRow], setting: BenchmarkSetting) -> dict[str, Any]:
    """All numbers and the machine."""
    machine = {"torch": torch.__version__, "machine": platform.machine(), "threads": torch.get_num_threads()}
    if setting.device == "cuda":
        machine |= {"gpu": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version()}
    return {
        "machine": machine,
        "setting": asdict(setting) | {"dtype": str(setting.dtype)},
        "rows": [asdict(row) for row in rows],
    }


def run_speed_bench(lengths: Sequence[int] | None, json_file: Path | None, device: str | None) -> None:
    """Run `rheoscope bench attention`: measure, print the table, write the file."""
    if json_file is not None:
        check_outputs([json_file])
    setting, rows = device_setting(device), []
    with console(stderr=True).status(render(Message("measuring"))) as status:
        for row in run_benchmark(setting, lengths or DEFAULT_LENGTHS[setting.device]):
            rows.append(row)
            status.update(render(Message("measured {name} at {n} tokens", name=row.name, n=row.tokens)))
    terminal = Terminal(console(), [])
    terminal.print_block(speed_table(rows, setting))
    if json_file is not None:
        terminal.print_files([write_json(speed_to_json(rows, setting), json_file)])

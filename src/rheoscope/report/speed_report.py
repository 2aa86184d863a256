"""How fast mechanisms run here, as a terminal table, as Markdown and as JSON: what `rheoscope bench attention` prints."""

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
from rheoscope.picture.blocks import Cell, Table, to_cells
from rheoscope.report.console import console
from rheoscope.report.json_file import write_json
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError

HEADER = ["mechanism", "tokens", "forward", "and backward", "error", "of gradients", "memory", "first call", "runs as"]
DEFAULT_LENGTHS = {"cpu": (1024,), "cuda": (8192, 2048, 32768)}
"""The lengths of a device, the one that matters most first, should time run out."""


def device_setting(device: str | None) -> BenchmarkSetting:
    """The setting of a device; the GPU where there is one and nothing is said.

    >>> device_setting("cpu").dtype
    torch.float32
    """
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = {"cpu": CPU_SETTING, "cuda": GPU_SETTING}
    if (device or default_device) not in settings or (device == "cuda" and default_device == "cpu"):
        raise RheoscopeError(
            f"mechanisms are measured on cpu or on a GPU that works, got {device!r}; type --device cpu"
        )
    return settings[device or default_device]


def sort_by_mechanism(rows: Sequence[BenchmarkRow]) -> list[BenchmarkRow]:
    """The rows of each mechanism together, short texts first."""
    names = list(dict.fromkeys(row.name for row in rows))
    return sorted(rows, key=lambda row: (names.index(row.name), row.tokens))


def row_texts(row: BenchmarkRow) -> list[str]:
    """One row in words, as the terminal and Markdown have it."""
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


def table_title(setting: BenchmarkSetting) -> str:
    device_name = torch.cuda.get_device_name() if setting.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    dtype_name = str(setting.dtype).removeprefix("torch.")
    return f"Speed beside torch's fused dot products: {device_name}, {dtype_name}, {setting.heads} heads of width {setting.width}"


def speed_table(rows: Sequence[BenchmarkRow], setting: BenchmarkSetting) -> Table:
    note = (
        "Speed 1 is torch's own; error 1 is torch's own, against float64; memory above the tokens. A text at a time, or on a "
        "GPU as many as make 16 thousand tokens; causal where masks are allowed."
    )
    cell_rows = [[Cell(text) for text in row_texts(row)] for row in sort_by_mechanism(rows)]
    return Table(table_title(setting), to_cells(HEADER), cell_rows, frozenset({0, len(HEADER) - 1}), note=note)


def markdown_table(rows: Sequence[BenchmarkRow]) -> str:
    """The same as a Markdown table.

    >>> print(markdown_table([BenchmarkRow("metric", 8, "sdpa", "it folds", SpeedRatio(0.5, 0.01, 3))]).splitlines()[-1])
    | metric | 8 | 0.50 ± 0.01 |  |  |  |  |  | sdpa |
    """
    lines = [HEADER, ["---"] * len(HEADER), *map(row_texts, sort_by_mechanism(rows))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def speed_to_json(rows: Sequence[BenchmarkRow], setting: BenchmarkSetting) -> dict[str, Any]:
    """Every number, with the machine it was measured on."""
    machine = {"torch": torch.__version__, "machine": platform.machine(), "threads": torch.get_num_threads()}
    if setting.device == "cuda":
        machine |= {"gpu": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version()}
    return {
        "machine": machine,
        "setting": asdict(setting) | {"dtype": str(setting.dtype)},
        "rows": [asdict(row) for row in rows],
    }


def run_speed_bench(lengths: Sequence[int] | None, json_file: Path | None, device: str | None) -> None:
    """What `rheoscope bench attention` does: measure, table, file."""
    if json_file is not None:
        check_outputs([json_file])
    setting, rows = device_setting(device), []
    with console(stderr=True).status("measuring") as status:
        for row in run_benchmark(setting, lengths or DEFAULT_LENGTHS[setting.device]):
            rows.append(row)
            status.update(f"measured {row.name} at {row.tokens} tokens")
    terminal = Terminal(console(), [])
    terminal.print_block(speed_table(rows, setting))
    if json_file is not None:
        terminal.print_files([write_json(speed_to_json(rows, setting), json_file)])

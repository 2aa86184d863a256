"""How fast mechanisms run here, as a terminal table, as Markdown and as JSON: what `rheoscope bench attention` prints."""

import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rheoscope.attention.speed import CPU, GPU, Measured, Ratio, Setting, measure
from rheoscope.files import check_outputs
from rheoscope.picture.blocks import Cell, Table, cells
from rheoscope.report.console import console
from rheoscope.report.json_file import write_json
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError

HEADER = ["mechanism", "tokens", "forward", "and backward", "error", "of gradients", "memory", "first call", "runs as"]
LENGTHS = {"cpu": (1024,), "cuda": (8192, 2048, 32768)}
"""The lengths of a device, the one that matters most first, should time run out."""


def setting_for(device: str | None) -> Setting:
    """The setting of a device; the GPU where there is one and nothing is said.

    >>> setting_for("cpu").dtype
    torch.float32
    """
    found = "cuda" if torch.cuda.is_available() else "cpu"
    settings = {"cpu": CPU, "cuda": GPU}
    if (device or found) not in settings or (device == "cuda" and found == "cpu"):
        raise RheoscopeError(
            f"mechanisms are measured on cpu or on a GPU that works, got {device!r}; type --device cpu"
        )
    return settings[device or found]


def by_mechanism(rows: Sequence[Measured]) -> list[Measured]:
    """The rows of each mechanism together, short texts first."""
    names = list(dict.fromkeys(row.name for row in rows))
    return sorted(rows, key=lambda row: (names.index(row.name), row.tokens))


def row_of(row: Measured) -> list[str]:
    """One row in words, as the terminal and Markdown have it."""
    memory = "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.0f} MiB"
    first = "" if row.first_call is None else f"{row.first_call:.1f} s"
    off = [f"{x:.2f} ×" if x is not None else "" for x in (row.error, row.gradient_error)]
    runs = f"{row.lowering}; {row.note}" if row.note else row.lowering
    return [row.name, str(row.tokens), _ratio(row.forward), _ratio(row.both), *off, memory, first, runs]


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    digits = 2 if ratio.value >= 0.1 else 4
    return f"{ratio.value:.{digits}f} ± {ratio.noise:.{digits}f}" if ratio.rounds > 1 else f"{ratio.value:.{digits}f}"


def title(setting: Setting) -> str:
    where = torch.cuda.get_device_name() if setting.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    kind = str(setting.dtype).removeprefix("torch.")
    return f"Speed beside torch's fused dot products: {where}, {kind}, {setting.heads} heads of width {setting.width}"


def table(rows: Sequence[Measured], setting: Setting) -> Table:
    note = (
        "Speed 1 is torch's own; error 1 is torch's own, against float64; memory above the tokens. A text at a time, or on a "
        "GPU as many as make 16 thousand tokens; causal where masks are allowed."
    )
    told = [[Cell(text) for text in row_of(row)] for row in by_mechanism(rows)]
    return Table(title(setting), cells(HEADER), told, frozenset({0, len(HEADER) - 1}), note=note)


def markdown(rows: Sequence[Measured]) -> str:
    """The same as a Markdown table.

    >>> print(markdown([Measured("metric", 8, "sdpa", "it folds", Ratio(0.5, 0.01, 3))]).splitlines()[-1])
    | metric | 8 | 0.50 ± 0.01 |  |  |  |  |  | sdpa |
    """
    lines = [HEADER, ["---"] * len(HEADER), *map(row_of, by_mechanism(rows))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_json(rows: Sequence[Measured], setting: Setting) -> dict[str, Any]:
    """Every number, with the machine it was measured on."""
    machine = {"torch": torch.__version__, "machine": platform.machine(), "threads": torch.get_num_threads()}
    if setting.device == "cuda":
        machine |= {"gpu": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version()}
    return {
        "machine": machine,
        "setting": asdict(setting) | {"dtype": str(setting.dtype)},
        "rows": [asdict(r) for r in rows],
    }


def show(lengths: Sequence[int] | None, json_file: Path | None, device: str | None) -> None:
    """What `rheoscope bench attention` does: measure, table, file."""
    if json_file is not None:
        check_outputs([json_file])
    setting, rows = setting_for(device), []
    with console(stderr=True).status("measuring") as status:
        for row in measure(setting, lengths or LENGTHS[setting.device]):
            rows.append(row)
            status.update(f"measured {row.name} at {row.tokens} tokens")
    terminal = Terminal(console(), [])
    terminal.show(table(rows, setting))
    if json_file is not None:
        terminal.files([write_json(as_json(rows, setting), json_file)])

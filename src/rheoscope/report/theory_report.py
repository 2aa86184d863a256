"""The theory bench in the terminal: every measured number with its theoretical value, and a figure per experiment."""

from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.files import check_outputs
from rheoscope.messages.message import Message, Verbatim
from rheoscope.picture.blocks import Cell, Table, to_cells
from rheoscope.report.console import console
from rheoscope.report.json_file import save_json
from rheoscope.report.page import figure_png, save_bytes
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError
from rheoscope.theory.experiments import EXPERIMENTS, dynamics

if TYPE_CHECKING:
    import xarray

TOLERANCE = 0.02
"""The largest relative difference at which a number counts as reproduced."""


def experiment_table() -> Table:
    """All experiments with their result and their source.

    >>> len(experiment_table().rows) == len(EXPERIMENTS)
    True
    """
    rows = [[Cell(row.name, style="bold"), Cell(row.phrase), Cell(row.source)] for row in EXPERIMENTS.values()]
    return Table(
        Message("The theory bench"),
        to_cells([Message("experiment"), Message("result"), Message("source")]),
        rows,
        frozenset({0, 1, 2}),
    )


def number_table(dataset: "xarray.Dataset") -> Table:
    """One row per number: the measurement, the theoretical value and their relative difference."""
    rows = []
    for index, quantity in enumerate(dataset.quantity.values):
        gap, reason = float(dataset.gap[index]), str(dataset.why.values[index])
        gap_cell = Cell(f"{100 * gap:.2f} %", style="green" if gap <= TOLERANCE else "red")
        numbers = _format_number(float(dataset.number[index])), _format_number(float(dataset.expected[index]))
        rows.append([Cell(str(index + 1)), Cell(str(quantity)), *map(Cell, numbers), gap_cell, Cell(reason)])
    header = to_cells(
        ["", Message("quantity"), Message("number"), Message("expected"), Message("difference"), Message("reason")]
    )
    heading = Message(
        "{experiment}: {result} · {source}",
        experiment=Verbatim(dataset.attrs["experiment"]),
        result=dataset.attrs["shows"],
        source=Verbatim(dataset.attrs["source"]),
    )
    return Table(heading, header, rows, frozenset({1, 5}))


def _format_number(value: float) -> str:
    """A number with four significant digits; rounding errors become 0.

    >>> _format_number(2.71349), _format_number(-1e-17), _format_number(466.694)
    ('2.713', '0', '466.7')
    """
    return "0" if abs(value) < 1e-9 else f"{value:.4g}"


def contrast_lines(dataset: "xarray.Dataset") -> list[Message]:
    """The same quantity under other rules, one line each."""
    if "contrast" not in dataset:
        return []
    return [
        Message("for comparison, {rule}: {value:.4g}", rule=str(rule), value=float(value))
        for rule, value in zip(dataset.rule.values, dataset.contrast, strict=True)
    ]


def show_experiment_list() -> None:
    """Run `rheoscope dynamics --list`."""
    terminal = Terminal(console(), [])
    terminal.print_block(experiment_table())
    terminal.print_line(
        Message("rheoscope dynamics NAME… or --all; --out DIR writes the figures, --json FILE the numbers"), "dim"
    )


def run_experiments(names: list[str], seed: int, out: Path | None, json_file: Path | None) -> None:
    """Run `rheoscope dynamics`: tables, figures and JSON. Raises if a difference is too large."""
    from rheoscope.report.pictures.dynamics import figure

    figure_paths = [] if out is None else [out / f"dynamics-{name}.png" for name in dict.fromkeys(names)]
    check_outputs(figure_paths if json_file is None else [*figure_paths, json_file])
    terminal, datasets = Terminal(console(), []), {}
    for name in names:
        with console(stderr=True).status(name):
            dataset = datasets[name] = dynamics(name, seed)
            messages = [] if out is None else [save_bytes(figure_png(figure(dataset)), out / f"dynamics-{name}.png")]
        terminal.print_block(number_table(dataset))
        for line in contrast_lines(dataset):
            terminal.print_line(line, "dim")
        terminal.print_files(messages)
    if json_file is not None:
        terminal.print_files([save_json(datasets, json_file)])
    failed_names = [name for name, dataset in datasets.items() if not bool((dataset.gap <= TOLERANCE).all())]
    if failed_names:
        raise RheoscopeError(
            Message(
                "a number differs by more than 2 % from theory in {names} (see the tables above)",
                names=", ".join(failed_names),
            )
        )

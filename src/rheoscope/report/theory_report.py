"""The theory bench in the terminal: every number beside the one that theory gives, and the figure of each experiment."""

from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.files import check_outputs
from rheoscope.picture.blocks import Cell, Table, cells
from rheoscope.report.console import console
from rheoscope.report.json_file import save_json
from rheoscope.report.page import png, save
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError
from rheoscope.theory.experiments import BENCH, dynamics

if TYPE_CHECKING:
    import xarray

TOLERANCE = 0.02
"""The largest gap at which a number counts as reproduced."""


def bench_table() -> Table:
    """Every experiment with its phrase and its source.

    >>> len(bench_table().rows) == len(BENCH)
    True
    """
    rows = [[Cell(row.name, style="bold"), Cell(row.phrase), Cell(row.source)] for row in BENCH.values()]
    return Table("The theory bench", cells(["experiment", "what it shows", "source"]), rows, frozenset({0, 1, 2}))


def number_table(told: "xarray.Dataset") -> Table:
    """A row a number: what was measured, what theory gives, how far apart."""
    rows = []
    for at, quantity in enumerate(told.quantity.values):
        gap, why = float(told.gap[at]), str(told.why.values[at])
        far = Cell(f"{100 * gap:.2f} %", style="green" if gap <= TOLERANCE else "red")
        numbers = _short(float(told.number[at])), _short(float(told.expected[at]))
        rows.append([Cell(str(at + 1)), Cell(str(quantity)), *map(Cell, numbers), far, Cell(why)])
    header = cells(["", "quantity", "number", "expected", "gap", "why"])
    heading = f"{told.attrs['experiment']}: {told.attrs['shows']} · {told.attrs['source']}"
    return Table(heading, header, rows, frozenset({1, 5}))


def _short(value: float) -> str:
    """Four digits that count; 0 for what rounding leaves of nothing.

    >>> _short(2.71349), _short(-1e-17), _short(466.694)
    ('2.713', '0', '466.7')
    """
    return "0" if abs(value) < 1e-9 else f"{value:.4g}"


def contrasts(told: "xarray.Dataset") -> list[str]:
    """The same under another rule, a line each."""
    if "contrast" not in told:
        return []
    return [
        f"beside it: {rule} {float(value):.4g}" for rule, value in zip(told.rule.values, told.contrast, strict=True)
    ]


def show_bench() -> None:
    """What `rheoscope dynamics --list` does."""
    terminal = Terminal(console(), [])
    terminal.show(bench_table())
    terminal.line(
        "rheoscope dynamics NAME… | --all; --out DIR draws each figure, --json FILE keeps every number", "dim"
    )


def show(names: list[str], seed: int, out: Path | None, json_file: Path | None) -> None:
    """What `rheoscope dynamics` does: the numbers of every experiment, its figure, its JSON; fails where a gap is too large."""
    from rheoscope.report.pictures.dynamics import figure

    drawn = [] if out is None else [out / f"dynamics-{name}.png" for name in dict.fromkeys(names)]
    check_outputs(drawn if json_file is None else [*drawn, json_file])
    terminal, found = Terminal(console(), []), {}
    for name in names:
        with console(stderr=True).status(name):
            told = found[name] = dynamics(name, seed)
            said = [] if out is None else [save(png(figure(told)), out / f"dynamics-{name}.png")]
        terminal.show(number_table(told))
        for line in contrasts(told):
            terminal.line(line, "dim")
        terminal.files(said)
    if json_file is not None:
        terminal.files([save_json(found, json_file)])
    far = [name for name, told in found.items() if not bool((told.gap <= TOLERANCE).all())]
    if far:
        raise RheoscopeError(
            f"a number is more than 2 % from the expected one in {', '.join(far)}; the table above names it"
        )

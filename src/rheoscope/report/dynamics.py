"""The theory bench in the terminal: every number beside the one that theory gives, and the figure of each experiment."""

from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.files import check_outputs
from rheoscope.flow.dynamics.bench import BENCH, dynamics
from rheoscope.report.json_file import save_json
from rheoscope.report.page import png, save
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray
    from rich.table import Table

TOLERANCE = 0.02
"""The largest gap at which a number counts as reproduced."""


def bench_table() -> "Table":
    """Every experiment with its phrase and its source.

    >>> bench_table().row_count == len(BENCH)
    True
    """
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("experiment", "what it shows", "source"):
        table.add_column(column, no_wrap=column == "experiment", overflow="fold")
    for row in BENCH.values():
        table.add_row(f"[bold]{row.name}[/]", row.phrase, row.source)
    return table


def number_table(told: "xarray.Dataset") -> "Table":
    """A row a number: what was measured, what theory gives, how far apart."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("quantity", "number", "expected", "gap", "why"):
        table.add_column(column, justify="left" if column in ("quantity", "why") else "right", overflow="fold")
    for at, quantity in enumerate(told.quantity.values):
        gap = float(told.gap[at])
        colour = "green" if gap <= TOLERANCE else "red"
        table.add_row(
            escape(str(quantity)),
            _short(float(told.number[at])),
            _short(float(told.expected[at])),
            f"[{colour}]{100 * gap:.2f} %[/]",
            escape(str(told.why.values[at])),
        )
    return table


def _short(value: float) -> str:
    """Four digits that count; 0 for what rounding leaves of nothing.

    >>> _short(2.71349), _short(-1e-17), _short(466.694)
    ('2.713', '0', '466.7')
    """
    return "0" if abs(value) < 1e-9 else f"{value:.4g}"


def contrasts(told: "xarray.Dataset") -> str:
    """The same under another rule, a line each."""
    if "contrast" not in told:
        return ""
    return "\n".join(
        f"beside it: {rule} {float(value):.4g}" for rule, value in zip(told.rule.values, told.contrast, strict=True)
    )


def show_bench() -> None:
    """What `rheoscope dynamics --list` does."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(bench_table())
    console.print(
        "[dim]rheoscope dynamics NAME… | --all; --out DIR draws each figure, --json FILE keeps every number[/]"
    )


def show(names: list[str], seed: int, out: Path | None, json_file: Path | None) -> None:
    """What `rheoscope dynamics` does: the numbers of every experiment, its figure, its JSON; fails where a gap is too large."""
    from rich.console import Console

    from rheoscope.report.plot.dynamics import figure

    drawn = [] if out is None else [out / f"dynamics-{name}.png" for name in dict.fromkeys(names)]
    check_outputs(drawn if json_file is None else [*drawn, json_file])
    console, found = Console(highlight=False), {}
    for name in names:
        with Console(stderr=True).status(name):
            told = found[name] = dynamics(name, seed)
            said = None if out is None else save(png(figure(told)), out / f"dynamics-{name}.png")
        console.print(f"[bold]{name}[/] [dim]{told.attrs['shows']} · {told.attrs['source']}[/]")
        console.print(number_table(told))
        console.print(
            "\n".join(line for line in (contrasts(told), said) if line), markup=False, style="dim", soft_wrap=True
        )
    if json_file is not None:
        console.print(save_json(found, json_file), soft_wrap=True)
    far = [name for name, told in found.items() if not bool((told.gap <= TOLERANCE).all())]
    if far:
        raise RheoscopeError(
            f"a number is more than 2 % from the expected one in {', '.join(far)}; the table above names it"
        )

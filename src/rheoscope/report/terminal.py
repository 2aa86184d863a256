"""Answers in the terminal: every block is printed as soon as what it needs is known."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from rheoscope.report.answers import Answers
from rheoscope.report.jobs import Told
from rheoscope.report.tell import text
from rheoscope.report.telling import Block, Cell, Lines, Table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

WIDE = 110
"""Columns of a terminal that has room for nulls; the page and --json have them always."""


class Terminal:
    """Prints blocks in their order, each once; `hear` is told whenever something more is known."""

    def __init__(self, console: "Console", tells: Sequence[Told], explain: bool = False) -> None:
        self.console, self.explain = console, explain
        self.waiting = [one for one in tells if not one.aside]

    def hear(self, answers: Answers) -> None:
        """Everything that can be told now, as long as nothing before it waits."""
        while self.waiting and answers.asked(*self.waiting[0].needs):
            for block in self.waiting.pop(0).blocks(answers):
                self.show(block)

    def begin(self, answers: Answers) -> None:
        """The model and the text."""
        self.console.print(text.model_line(answers), style="dim", markup=False)
        if answers.trace is not None:
            self.console.print(f"{len(answers.trace)} tokens: {' '.join(text.tokens(answers).words)}", markup=False)
            self.console.print(f"massive tokens left out: {text.massive(answers)}", style="dim", markup=False)

    def end(self, answers: Answers) -> None:
        """What had no answer."""
        for block in text.left_out(answers):
            self.show(block)

    def show(self, block: Block) -> None:
        """One block; pictures, tokens and facts are for pages."""
        match block:
            case Table():
                self.console.print(f"\n{block.heading}", markup=False)
                wide = self.console.width >= WIDE
                for part in fitting(block, self.console.width, wide):
                    self.console.print(rich_table(part, wide))
                for line in (block.small if wide else "", block.note):
                    if line:
                        self.console.print(line, style="dim", markup=False)
                if self.explain:
                    self.console.print(explained(block))
            case Lines():
                self.console.print(f"\n{block.heading}", markup=False)
                for line in block.lines:
                    self.console.print(f"• {line}", markup=False)
            case _:
                pass


def rich_table(block: Table, wide: bool = True) -> "RichTable":
    """Columns of text to the left, numbers to the right, each as wide as it is; only a last column of text may be cut."""
    from rich.table import Table as RichTable

    table = RichTable(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    widths = column_widths(block, wide)
    for at, cell in enumerate(block.header):
        last = at == len(block.header) - 1 and at in block.words
        side: Literal["left", "right"] = "left" if at in block.words else "right"
        least = 0 if last else widths[at]
        table.add_column(cell.text, justify=side, no_wrap=True, overflow="ellipsis", min_width=least)
    for at, row in enumerate(block.rows):
        table.add_row(*(_cell(cell, wide) for cell in row), end_section=at in block.ends)
    return table


def column_widths(block: Table, wide: bool) -> list[int]:
    """How wide every column is when nothing is cut."""
    columns = zip(block.header, *block.rows, strict=True)
    return [max(_cell(cell, wide and at > 0).cell_len for at, cell in enumerate(column)) for column in columns]


def fitting(block: Table, width: int, wide: bool) -> list[Table]:
    """The same table in as many as it takes to fit, the first column in each of them."""
    widths, parts, used = [one + 2 for one in column_widths(block, wide)], [[0]], 0
    for at in range(1, len(widths)):
        words_last = at == len(widths) - 1 and at in block.words
        if len(parts[-1]) > 1 and widths[0] + used + (16 if words_last else widths[at]) > width + 2:
            parts.append([0])
            used = 0
        parts[-1].append(at)
        used += widths[at]
    return [_columns(block, some) for some in parts]


def _columns(block: Table, some: list[int]) -> Table:
    words = frozenset(new for new, old in enumerate(some) if old in block.words)
    rows = [[row[at] for at in some] for row in block.rows]
    return replace(block, header=[block.header[at] for at in some], rows=rows, words=words)


def _cell(cell: Cell, wide: bool) -> "Text":
    from rich.text import Text

    return Text.assemble(cell.text, (f" {cell.small:>4}", "dim")) if cell.small and wide else Text(cell.text)


def explained(block: Table) -> "RenderableType":
    """What every column means."""
    from rich.text import Text

    defined = [cell for cell in block.header if cell.title]
    return Text("\n").join(Text.assemble((cell.text, "bold"), f": {cell.title}") for cell in defined)

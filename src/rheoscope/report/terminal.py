"""Answers in the terminal: every block is printed as soon as what it needs is known."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rheoscope.messages.numbers import plural
from rheoscope.picture.blocks import Block, Cell, Lines, Questions, Table
from rheoscope.picture.token_labels import printable
from rheoscope.report import text_blocks
from rheoscope.report.report_plans import Told
from rheoscope.space.results import Answers

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

WIDE = 110
"""Columns of a terminal that has room for nulls; the page and --json have them always."""
WORDS = 20
"""What a column of words is given at least; longer ones are folded. Numbers are never cut."""
BETWEEN = 2
COLOURS = {"yes": "green", "no": "red", "cannot tell": "yellow"}


class Terminal:
    """Prints blocks in their order, each once; `hear` is told whenever something more is known."""

    def __init__(self, console: "Console", tells: Sequence[Told], explain: bool = False) -> None:
        self.console, self.explain, self.unexplained = console, explain, False
        self.waiting = [one for one in tells if not one.aside]

    def hear(self, answers: Answers) -> None:
        """Everything that can be told now, as long as nothing before it waits."""
        while self.waiting and answers.asked(*self.waiting[0].needs):
            for block in self.waiting.pop(0).blocks(answers):
                self.show(block)

    def begin(self, answers: Answers) -> None:
        """The model and the text."""
        self.line(text_blocks.model_line(answers), "dim")
        if answers.trace is not None:
            self.line(f"{plural(len(answers.trace), 'token')}: {' '.join(text_blocks.tokens(answers).words)}")
            self.line(f"massive tokens left out: {text_blocks.massive(answers)}", "dim")

    def end(self, answers: Answers) -> None:
        """What had no answer."""
        for block in text_blocks.left_out(answers):
            self.show(block)

    def show(self, block: Block) -> None:
        """One block; pictures, tokens and facts are for pages."""
        match block:
            case Questions():
                self.questions(block)
            case Table():
                self.heading(block.heading)
                self.table(block)
            case Lines():
                self.heading(block.heading)
                for line in block.lines:
                    self.line(f"• {line}")
            case _:
                pass

    def questions(self, block: Questions) -> None:
        """The word that answers, the question, and below it why."""
        from rich.padding import Padding
        from rich.text import Text

        if block.heading:
            self.heading(block.heading)
        for one in block.answered:
            colour = COLOURS.get(one.answer.split(" · ")[0], "")
            self.console.print(Text.assemble((printable(one.answer), f"bold {colour}"), f"  {one.question}"))
            self.console.print(Padding(Text.assemble(printable(one.line), (f"  → {one.deeper}", "dim")), (0, 0, 0, 2)))
        if block.note:
            self.line(block.note, "dim")

    def table(self, block: Table) -> None:
        """What fits beside each other, the rest below; then what is small, and what columns mean."""
        width, wide = self.console.width, self.console.width >= WIDE
        groups = fitting(block, width, wide)
        if max(needed(block, columns, wide) for columns in groups) > width:
            self.stacked(block)
        else:
            for columns in groups:
                self.console.print(rich_table(block, columns, wide))
        for line in (block.small if wide else "", block.note):
            if line:
                self.line(line, "dim")
        if self.explain:
            self.console.print(explained(block))
        elif any(cell.title for cell in block.header):
            self.unexplained = True

    def stacked(self, block: Table) -> None:
        """What is too broad for a table, row after row: its name, and below it every entry behind its heading."""
        for row in block.rows:
            self.line(row[0].text, "bold")
            for head, cell in zip(block.header[1:], row[1:], strict=True):
                self.line(f"  {head.text}: {cell.text}")

    def heading(self, said: str) -> None:
        self.console.print()
        self.line(said, "bold")

    def files(self, said: Sequence[str]) -> None:
        """How columns are explained where nobody asked, and what was written, each name on one line, so that it can be copied."""
        if self.unexplained:
            self.line("--explain defines every column", "dim")
        for line in said:
            self.console.print(printable(line), soft_wrap=True, markup=False, emoji=False)

    def line(self, said: str, style: str = "") -> None:
        """A line as it is: a text can neither colour it nor move the cursor."""
        self.console.print(printable(said), style=style, markup=False, emoji=False)


def fitting(block: Table, width: int, wide: bool = True) -> list[list[int]]:
    """The columns of a table, by number, in groups that fit on a line; the first column names the rows of each.

    >>> row = [Cell("L0"), Cell(".25"), Cell(".50")]
    >>> fitting(Table("", [Cell("layer"), Cell("moved"), Cell("straight")], [row]), 16)
    [[0, 1], [0, 2]]
    """
    groups = [[0]]
    for at in range(1, len(block.header)):
        if len(groups[-1]) > 1 and needed(block, [*groups[-1], at], wide) > width:
            groups.append([0])
        groups[-1].append(at)
    return groups


def needed(block: Table, columns: Sequence[int], wide: bool) -> int:
    """What columns need beside each other."""
    return sum(least_width(block, at, wide) for at in columns) + BETWEEN * (len(columns) - 1)


def least_width(block: Table, at: int, wide: bool) -> int:
    """What a column needs: its widest cell, as a terminal counts (a Chinese letter is two), or as little as words can be folded to."""
    widest = max(_cell(row[at], wide).cell_len for row in [block.header, *block.rows])
    return min(widest, WORDS) if at in block.words and at > 0 else widest


def rich_table(block: Table, columns: Sequence[int], wide: bool = True) -> "RichTable":
    """Some columns of a table: words to the left, numbers to the right; what is small only where there is room."""
    from rich.table import Table as RichTable

    table = RichTable(box=None, header_style="dim", pad_edge=False, padding=(0, BETWEEN, 0, 0))
    for at in columns:
        folds = at in block.words and at > 0
        justify: Literal["left", "right"] = "left" if at in block.words else "right"
        table.add_column(_cell(block.header[at], wide=False), justify=justify, no_wrap=not folds, overflow="fold",
                         min_width=0 if folds else least_width(block, at, wide))  # fmt: skip
    for at, row in enumerate(block.rows):
        table.add_row(*(_cell(row[column], wide) for column in columns), end_section=at in block.ends)
    return table


def _cell(cell: Cell, wide: bool) -> "Text":
    from rich.text import Text

    said, small = printable(cell.text), printable(cell.small)
    return Text.assemble((said, cell.style), (f" {small:>4}", "dim")) if small and wide else Text(said, cell.style)


def explained(block: Table) -> "RenderableType":
    """What every column means."""
    from rich.text import Text

    defined = [cell for cell in block.header if cell.title]
    return Text("\n").join(
        Text.assemble((printable(cell.text), "bold"), f": {printable(cell.title)}") for cell in defined
    )

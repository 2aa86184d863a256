"""Reports in the terminal: every section is printed as soon as the analyses that it needs have run."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message, join
from rheoscope.picture.blocks import Block, Cell, Commands, Lines, Story, Table
from rheoscope.picture.token_labels import printable
from rheoscope.report import text_blocks
from rheoscope.report.report_plan import Section
from rheoscope.space.results import Results

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

WIDE_COLUMNS = 110
"""The width from which on tables show nulls. The page and --json always have them."""
MIN_TEXT_WIDTH = 20
"""The smallest width of a text column. Longer text is folded, numbers are never cut."""
COLUMN_GAP = 2
TITLE_WIDTH = 14
"""Columns of the titles of a story."""
UNBREAKABLE_SPACE, PLACEHOLDER = re.compile(r"(?<=\d) (?=%)| (?=×\d)"), "\ue000"
"""Spaces at which no line breaks, and what stands for them while lines are wrapped."""


class Terminal:
    """Prints sections in their order, each once. `print_ready` is called whenever there are new results."""

    def __init__(self, console: "Console", sections: Sequence[Section], explain: bool = False) -> None:
        self.console, self.explain, self.has_unexplained = console, explain, False
        self.pending_sections: list[Section] = []
        self.add_sections(sections)

    def add_sections(self, sections: Sequence[Section]) -> None:
        """Sections to print below the others."""
        self.pending_sections += [section for section in sections if not section.page_only]

    def print_ready(self, results: Results) -> None:
        """Print the next sections, up to the first one that still waits for an analysis."""
        while self.pending_sections and results.has_run(*self.pending_sections[0].needs):
            for block in self.pending_sections.pop(0).blocks(results):
                self.print_block(block)

    def print_header(self, results: Results) -> None:
        """The model and the text."""
        self.print_line(text_blocks.model_line(results), "dim")
        for block in text_blocks.source_blocks(results):
            tokens = join(" ", block.token_texts)
            self.print_line(Message("source of {n} tokens: {tokens}", n=len(block.token_texts), tokens=tokens))
        if results.trace is not None:
            tokens = join(" ", text_blocks.token_block(results).token_texts)
            count = text_blocks.token_count(results)
            self.print_line(Message("{count}: {tokens}", count=count, tokens=tokens))
            massive = text_blocks.massive_tokens_text(results)
            self.print_line(Message("massive tokens left out: {tokens}", tokens=massive), "dim")

    def print_skipped(self, results: Results) -> None:
        """Print the skipped analyses and why."""
        for block in text_blocks.skipped_blocks(results):
            self.print_block(block)

    def print_block(self, block: Block) -> None:
        """Print one block. Pictures, tokens and facts appear on pages only."""
        match block:
            case Story():
                self.print_story(block)
            case Table():
                self.print_heading(block.heading)
                self.print_table(block)
            case Lines():
                self.print_heading(block.heading)
                for line in block.lines:
                    self.print_line(Message("• {line}", line=line))
            case Commands():
                self.print_commands(block)
            case _:
                pass

    def print_commands(self, block: Commands) -> None:
        """Print each command below its purpose, which is a comment, so that all lines can be pasted into a shell together.

        The purpose has a line of its own because interactive zsh reads a comment after a command as arguments.
        """
        self.print_heading(block.heading)
        self.print_line(block.line)
        lines = [line for command, purpose in block.purposes.items() for line in (f"# {shown(purpose)}", command)]
        for line in [block.setup, *lines] if block.setup else lines:
            self.console.print(line, soft_wrap=True, markup=False, emoji=False, highlight=False)

    def print_story(self, block: Story) -> None:
        """Print each line after its title, with the sentence indented."""
        from rich.table import Table as RichTable

        if block.heading:
            self.print_heading(block.heading)
        for line in block.lines:
            grid = RichTable.grid(padding=(0, COLUMN_GAP))
            grid.add_column(width=TITLE_WIDTH, no_wrap=True, style="bold")
            grid.add_column(overflow="fold")
            sentence = wrap_sentence(self.console, line.sentence, self.console.width - TITLE_WIDTH - COLUMN_GAP)
            grid.add_row(shown(line.title), sentence)
            self.console.print(grid)
        if block.note:
            self.print_line(block.note, "dim")

    def print_table(self, block: Table) -> None:
        """Print as many columns side by side as fit and the others below, then the notes and the definitions of columns."""
        width, is_wide = self.console.width, self.console.width >= WIDE_COLUMNS
        groups = fit_columns(block, width, is_wide)
        if max(required_width(block, columns, is_wide) for columns in groups) > width:
            self.print_stacked(block)
        else:
            for columns in groups:
                self.console.print(to_rich_table(block, columns, is_wide))
        for line in (block.small_caption if is_wide else "", block.note):
            if line:
                self.print_line(line, "dim")
        if self.explain:
            self.console.print(column_definitions(block))
        elif any(cell.definition for cell in block.header):
            self.has_unexplained = True

    def print_stacked(self, block: Table) -> None:
        """Print a table that is too wide row by row: the name of the row, then every entry after its heading."""
        for row in block.rows:
            self.print_line(row[0].text, "bold")
            for header, cell in zip(block.header[1:], row[1:], strict=True):
                self.print_line(Message("  {name}: {value}", name=header.text, value=cell.text))

    def print_heading(self, heading: str) -> None:
        self.console.print()
        self.print_line(heading, "bold")

    def print_files(self, lines: Sequence[str]) -> None:
        """Print the hint about --explain, and one line per written file, so that its name can be copied."""
        if self.has_unexplained:
            self.print_line(Message("--explain defines every column"), "dim")
        for line in lines:
            self.console.print(shown(line), soft_wrap=True, markup=False, emoji=False)

    def print_line(self, line: str, style: str = "") -> None:
        """Print a line verbatim: control characters and markup in it have no effect."""
        self.console.print(shown(line), style=style, markup=False, emoji=False)


def shown(text: str) -> str:
    """A text in the current language, without control characters."""
    return printable(render(text))


def wrap_sentence(console: "Console", sentence: str, width: int) -> "Text":
    """A sentence in lines. A number stays on the line of its percent sign, and a token on that of its count."""
    from rich.text import Text

    joined = Text(UNBREAKABLE_SPACE.sub(PLACEHOLDER, shown(sentence)))
    lines = joined.wrap(console, max(width, MIN_TEXT_WIDTH), overflow="fold")
    return Text("\n".join(line.plain.rstrip().replace(PLACEHOLDER, " ") for line in lines))


def fit_columns(block: Table, width: int, is_wide: bool = True) -> list[list[int]]:
    """The columns of a table in groups that fit on a line. Every group starts with the first column, which names the rows.

    >>> row = [Cell("L0"), Cell(".25"), Cell(".50")]
    >>> fit_columns(Table("", [Cell("layer"), Cell("moved"), Cell("straight")], [row]), 16)
    [[0, 1], [0, 2]]
    """
    groups = [[0]]
    for column in range(1, len(block.header)):
        if len(groups[-1]) > 1 and required_width(block, [*groups[-1], column], is_wide) > width:
            groups.append([0])
        groups[-1].append(column)
    return groups


def required_width(block: Table, columns: Sequence[int], is_wide: bool) -> int:
    """The width of several columns side by side."""
    return sum(min_column_width(block, column, is_wide) for column in columns) + COLUMN_GAP * (len(columns) - 1)


def min_column_width(block: Table, column: int, is_wide: bool) -> int:
    """The width of a column: its widest cell in terminal cells (a Chinese character takes two). Text columns can be folded."""
    max_width = max(_rich_cell(row[column], is_wide).cell_len for row in [block.header, *block.rows])
    return min(max_width, MIN_TEXT_WIDTH) if column in block.text_columns and column > 0 else max_width


def to_rich_table(block: Table, columns: Sequence[int], is_wide: bool = True) -> "RichTable":
    """Some columns of a table. Text is left-aligned, numbers right-aligned; nulls appear in wide terminals only."""
    from rich.table import Table as RichTable

    table = RichTable(box=None, header_style="dim", pad_edge=False, padding=(0, COLUMN_GAP, 0, 0))
    for column in columns:
        wraps = column in block.text_columns and column > 0
        justify: Literal["left", "right"] = "left" if column in block.text_columns else "right"
        table.add_column(_rich_cell(block.header[column], is_wide=False), justify=justify, no_wrap=not wraps, overflow="fold",
                         min_width=0 if wraps else min_column_width(block, column, is_wide))  # fmt: skip
    for row_index, row in enumerate(block.rows):
        table.add_row(
            *(_rich_cell(row[column], is_wide) for column in columns), end_section=row_index in block.group_ends
        )
    return table


def _rich_cell(cell: Cell, is_wide: bool) -> "Text":
    from rich.text import Text

    content, small = shown(cell.text), shown(cell.small_text)
    return (
        Text.assemble((content, cell.style), (f" {small:>4}", "dim"))
        if small and is_wide
        else Text(content, cell.style)
    )


def column_definitions(block: Table) -> "RenderableType":
    """The definition of every column."""
    from rich.text import Text

    defined_cells = [cell for cell in block.header if cell.definition]
    return Text("\n").join(
        Text.assemble((shown(cell.text), "bold"), f": {shown(cell.definition)}") for cell in defined_cells
    )

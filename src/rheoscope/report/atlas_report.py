"""Run an atlas from the command line: cards and entries that are read or computed, the table in the terminal, and the files."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.files import check_writable
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, Verbatim
from rheoscope.picture.blocks import Block, Cell, Drawing, Table
from rheoscope.report.atlas import atlas, atlas_blocks, atlas_table
from rheoscope.report.atlas_entry import AtlasEntry, atlas_entry, entry_name
from rheoscope.report.atlas_pictures import curves_picture, heads_picture
from rheoscope.report.atlas_sizes import size_trends
from rheoscope.report.atlas_summary import summary_blocks
from rheoscope.report.atlas_tables import cloud_traits, compare_with_published, query_atlas, side_cards
from rheoscope.report.card import card, prepare_texts
from rheoscope.report.card_measurements import OnTask
from rheoscope.report.card_texts import for_model
from rheoscope.report.console import console
from rheoscope.report.page import Page
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.published_tables import finding_tables
from rheoscope.report.report_page import add_blocks
from rheoscope.report.run_report import OutputFiles, write_files
from rheoscope.report.terminal import Terminal
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True)
class CardRequest:
    """How the card of a model is computed: over which texts, with how many random models, and where its entry is stored."""

    texts: Sequence[Any] | None
    texts_path: Path | None
    draws: int
    untrained: int
    folder: Path | None

    def command(self, model: RunnableModel) -> str:
        """What to type for the entry of a model, with the names of its directories and not their paths."""
        texts = [] if self.texts_path is None else ["--texts", self.texts_path.name]
        numbers = ["--draws", str(self.draws), "--untrained", str(self.untrained)]
        return shlex.join(["rheoscope", "atlas", entry_name(model), *texts, *numbers, "--store", "atlas"])


def run_atlas(
    sources: Iterable[RunnableModel | AtlasEntry],
    request: CardRequest,
    files: OutputFiles,
    explain: bool,
    sql: str | None = None,
) -> None:
    """Read or compute the card of each model, print them side by side or the rows of a query, and write the requested files."""
    terminal, cards, entries, lines = Terminal(console(), [], explain), [], [], []
    for source in sources:
        if isinstance(source, AtlasEntry):
            entries.append(source)
        elif request.folder is None:
            cards.append(_card(source, request, terminal))
        else:
            entry, line = _stored_entry(source, request, request.folder, terminal)
            entries.append(entry)
            lines.append(line)
    if sql is not None:
        terminal.print_block(query_table(entries, sql))
        return
    result = atlas([*cards, *(card for entry in entries for card in side_cards(entry))])
    terminal.print_block(atlas_table(result))
    page = add_blocks(Page(Message("The atlas"), ""), [*atlas_blocks(result), *entry_blocks(entries, result)])
    terminal.print_files([*lines, *write_files({"atlas": result}, page.save if files.wants_page else None, files)])


def _card(model: RunnableModel, request: CardRequest, terminal: Terminal) -> "xarray.Dataset":
    """The card of a model."""
    terminal.print_line(model.view.summary, "dim")
    with progress_bar(Message("tracing the texts")) as start_task:
        return card(model, _texts(model, request, start_task), request.draws, request.untrained, progress=start_task)


def _stored_entry(
    model: RunnableModel, request: CardRequest, folder: Path, terminal: Terminal
) -> tuple[AtlasEntry, str]:
    """The entry of a model, stored in the folder, and the line that names its file."""
    path = folder / f"{entry_name(model)}.json"
    check_writable(path)
    terminal.print_line(model.view.summary, "dim")
    with progress_bar(Message("tracing the texts")) as start_task:
        texts = _texts(model, request, start_task)
        entry = atlas_entry(
            model, texts, request.draws, request.untrained, progress=start_task, command=request.command(model)
        )
    return entry, entry.save(path)


def _texts(model: RunnableModel, request: CardRequest, on_task: OnTask) -> Sequence[Any] | None:
    return None if request.texts is None else prepare_texts(model, for_model(model, request.texts), on_task)


def entry_blocks(entries: Sequence[AtlasEntry], result: "xarray.Dataset") -> list[Block]:
    """What stored models add to the atlas: what they have in common, published findings, curves over the layers and all heads."""
    if not entries:
        return []
    traits = cloud_traits(entries)
    has_all = set(traits) == set(map(str, result.model.values))
    common = summary_blocks(result, traits, size_trends(result, traits)) if has_all else []
    drawings = [Drawing(curves_picture(entries)), Drawing(heads_picture(entries))]
    return [*common, *finding_tables(compare_with_published(entries)), *drawings]


def query_table(entries: Sequence[AtlasEntry], sql: str) -> Table:
    """The rows of a query over stored models."""
    if not entries:
        raise RheoscopeError(
            Message("--query reads stored models, got none"),
            Advice("", "rheoscope atlas cards/*.json --query 'select …'"),
        )
    rows = query_atlas(entries, sql)
    cells = [[Cell(Verbatim(_shown(value))) for value in row] for row in rows.itertuples(index=False)]
    return Table("", [Cell(Verbatim(name)) for name in rows.columns], cells)


def _shown(value: Any) -> str:
    """A value of a query, with four digits.

    >>> _shown(0.123456), _shown("a")
    ('0.1235', 'a')
    """
    return f"{value:.4g}" if isinstance(value, float) else str(value)

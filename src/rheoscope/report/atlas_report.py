"""Run an atlas from the command line: cards and entries that are read or computed, the table in the terminal, and the files."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rheoscope.files import check_writable
from rheoscope.messages.message import Message
from rheoscope.report.atlas import atlas, atlas_blocks, atlas_table
from rheoscope.report.atlas_entry import AtlasEntry, atlas_entry, entry_name
from rheoscope.report.card import card, prepare_texts
from rheoscope.report.card_texts import for_model
from rheoscope.report.console import console
from rheoscope.report.page import Page
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.report_page import add_blocks
from rheoscope.report.run_report import OutputFiles, write_files
from rheoscope.report.terminal import Terminal
from rheoscope.running.runner import RunnableModel


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
    sources: Iterable[RunnableModel | AtlasEntry], request: CardRequest, files: OutputFiles, explain: bool
) -> None:
    """Read or compute the card of each model, print them side by side, and write the requested files."""
    terminal, cards, stored = Terminal(console(), [], explain), [], []
    for source in sources:
        if isinstance(source, AtlasEntry):
            cards.append(source.card)
            continue
        terminal.print_line(source.view.summary, "dim")
        path = None if request.folder is None else request.folder / f"{entry_name(source)}.json"
        if path is not None:
            check_writable(path)
        with progress_bar(Message("tracing the texts")) as start_task:
            texts = request.texts
            if texts is not None:
                texts = prepare_texts(source, for_model(source, texts), start_task)
            settings: dict[str, Any] = {"draws": request.draws, "untrained": request.untrained, "progress": start_task}
            if path is None:
                cards.append(card(source, texts, **settings))
                continue
            entry = atlas_entry(source, texts, command=request.command(source), **settings)
        stored.append(entry.save(path))
        cards.append(entry.card)
    result = atlas(cards)
    terminal.print_block(atlas_table(result))
    page = add_blocks(Page(Message("The atlas"), ""), atlas_blocks(result))
    terminal.print_files([*stored, *write_files({"atlas": result}, page.save if files.wants_page else None, files)])

"""Run a card or an atlas from the command line: progress, the table in the terminal, and the requested files."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rheoscope.messages.message import Message
from rheoscope.report.card import card, prepare_texts
from rheoscope.report.card_blocks import claim_table, pair_lines, skipped_lines, summary_line
from rheoscope.report.card_media import model_of_media
from rheoscope.report.card_rows import card_blocks
from rheoscope.report.card_texts import for_model
from rheoscope.report.console import console
from rheoscope.report.input_media import Medium
from rheoscope.report.page import Page
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.report_page import add_blocks
from rheoscope.report.run_report import OutputFiles, write_files
from rheoscope.report.terminal import Terminal
from rheoscope.running.runner import RunnableModel

if TYPE_CHECKING:
    import xarray


def run_card(
    model: RunnableModel,
    texts: Sequence[Any] | None,
    media: Sequence[Medium],
    files: OutputFiles,
    explain: bool = False,
    **settings: Any,
) -> None:
    """Compute a card over texts, images or sounds, print one row per claim, and write the requested files.

    `settings` are those of `rs.card`.
    """
    terminal = Terminal(console(), [], explain)
    terminal.print_line(model.view.summary, "dim")
    with progress_bar(Message("tracing the texts")) as start_task:
        if media:
            model, texts = model_of_media(model, media), [file.path for file in media]
        elif texts is not None:
            texts = prepare_texts(model, for_model(model, texts), start_task)
        result = card(model, texts, **settings, progress=start_task)
    terminal.print_block(claim_table(result))
    terminal.console.print()
    for line in [summary_line(result), *pair_lines(result), *skipped_lines(result)]:
        terminal.print_line(line)
    terminal.print_files(
        write_files({"card": result}, card_page(result, texts).save if files.wants_page else None, files)
    )


def card_page(result: "xarray.Dataset", texts: Sequence[Any] | None = None) -> Page:
    """A page with the forest plot, whose rows open, the table of intervals and how to read them."""
    title = Message("The card of {model}", model=str(result.attrs.get("model")))
    return add_blocks(Page(title, summary_line(result)), card_blocks(result, texts))

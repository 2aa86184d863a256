"""Run `rheoscope compare`: two models, the sentences and tables in the terminal, and the files."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rheoscope.messages.message import Message
from rheoscope.model_comparison.compare import compare
from rheoscope.report.comparison_blocks import comparison_blocks, provenance_block, title
from rheoscope.report.console import console
from rheoscope.report.page import Page
from rheoscope.report.progress_bars import progress
from rheoscope.report.report_page import add_blocks
from rheoscope.report.run_report import OutputFiles, write_files
from rheoscope.report.terminal import Terminal
from rheoscope.running.progress import listen
from rheoscope.running.runner import RunnableModel

if TYPE_CHECKING:
    import xarray


def compare_models(
    models: tuple[RunnableModel, RunnableModel],
    texts: Sequence[Any] | None,
    settings: dict[str, Any],
    files: OutputFiles,
    explain: bool = False,
) -> None:
    """Compare two models, print the result and write the requested files."""
    terminal = Terminal(console(), [], explain)
    for model in models:
        terminal.print_line(model.view.summary, "dim")
    with progress(Message("comparing the models")) as on_progress, listen(on_progress):
        result = compare(*models, texts, **settings)
    for block in comparison_blocks(result, has_picture=False):
        terminal.print_block(block)
    lines = write_files({"compare": result}, build_page(result).save if files.wants_page else None, files)
    terminal.print_files(lines)


def build_page(result: "xarray.Dataset") -> Page:
    """Everything that the terminal shows, the pictures, and the origin of the numbers."""
    page = Page(
        Message("Two models: {models}", models=title(result)),
        Message("Dotted words have definitions; point at a plot to see its numbers."),
    )
    return add_blocks(page, [*comparison_blocks(result), provenance_block(result)])

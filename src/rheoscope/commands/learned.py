"""`rheoscope learned`: how geometry formed while a model was trained."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.option_groups import OutputOptions, with_option_groups
from rheoscope.commands.options import Text

RunDirectory = Annotated[
    Path, typer.Argument(help="A run that was trained with --look, or a directory of checkpoints of any training run.")
]


@with_option_groups
def learned(
    run: RunDirectory,
    text: Text = None,
    *,
    output: OutputOptions,
) -> None:
    """Show how geometry formed during a training run.

    It reports the analyses at the steps of `rheoscope train --look`, each number with its null. With a text, it measures the
    checkpoints in a directory (checkpoint-500, checkpoint-1000, …) on this text.

    Examples:  rheoscope train tiny --data book.txt --out run --look 0,50,200    ·    rheoscope learned run --html learned.html
    ·    rheoscope learned checkpoints/ "The keys to the cabinet are"
    """
    from rheoscope.learn.geometry_report import show_learned
    from rheoscope.report.input_text import resolve_text

    input_text = None if text is None else resolve_text(text, None, None)
    show_learned(run, output.files(), output.explain, input_text)

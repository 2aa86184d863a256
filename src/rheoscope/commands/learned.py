"""`rheoscope learned`: how geometry formed while a model was trained."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.options import Csv, Explain, Html, Json

RunDirectory = Annotated[Path, typer.Argument(help="The directory of a run that was trained with --look.")]


def learned(run: RunDirectory, json: Json = None, csv: Csv = None, html: Html = None, explain: Explain = False) -> None:
    """Show how geometry formed during a training run.

    It reports the analyses at the steps of `rheoscope train --look`, each number with its null.

    Examples:  rheoscope train tiny --data book.txt --out run --look 0,50,200    ·    rheoscope learned run --html learned.html
    """
    from rheoscope.learn.geometry_report import show_learned
    from rheoscope.report.run_report import OutputFiles

    show_learned(run, OutputFiles(json, csv, html), explain)

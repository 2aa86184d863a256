"""`rheoscope atlas`: the cards of several models side by side."""

from typing import Annotated

import typer

from rheoscope.commands.completion import complete_from
from rheoscope.commands.options import Csv, Device, Dtype, Explain, Html, Json
from rheoscope.report.hub_cache import cached_hub_names


def atlas(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Hugging Face names or directories; default is the model that ships with Rheoscope.",
            autocompletion=complete_from(cached_hub_names),
        ),
    ],
    explain: Explain = False,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Put the cards of several models side by side.

    Cards that exist are read, and the others are computed over the passages of the package.

    Examples:  rheoscope atlas default gpt2    ·    rheoscope atlas path/ gpt2 --html atlas.html --json atlas.json
    """
    from rheoscope.report.card_report import run_atlas
    from rheoscope.report.progress_bars import load_model
    from rheoscope.report.run_report import OutputFiles

    files = OutputFiles(json, csv, html)
    run_atlas((load_model(None if name == "default" else name, device, dtype) for name in models), files, explain)

"""`rheoscope atlas`: the cards of several models side by side."""

from itertools import chain
from typing import Annotated

import typer

from rheoscope.commands.completion import complete_from
from rheoscope.commands.options import Csv, Device, Dtype, Explain, Html, Json, Series, Stream
from rheoscope.commands.usage import UsageProblem
from rheoscope.messages.message import Message
from rheoscope.report.hub_cache import cached_hub_names


def atlas(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Hugging Face names or directories; default is the model that ships with Rheoscope.",
            autocompletion=complete_from(cached_hub_names),
        ),
    ] = None,
    series: Series = None,
    explain: Explain = False,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    device: Device = None,
    dtype: Dtype = None,
    stream: Stream = None,
) -> None:
    """Put the cards of several models side by side.

    Cards that exist are read, and the others are computed over the passages of the package.

    Examples:  rheoscope atlas default gpt2    ·    rheoscope atlas path/ gpt2 --html atlas.html --json atlas.json
    ·    rheoscope atlas --series runs/checkpoints
    """
    from rheoscope.checkpoint_series import load_series
    from rheoscope.report.card_report import run_atlas
    from rheoscope.report.progress_bars import open_model
    from rheoscope.report.run_report import OutputFiles

    files = OutputFiles(json, csv, html)
    names = list(models or [])
    if not names and series is None:
        raise UsageProblem(Message("rheoscope atlas needs models or --series"), "rheoscope atlas default gpt2")
    checkpoints = () if series is None else load_series(series, None, device, dtype)
    named_models = (open_model(name, device, dtype, stream=stream) for name in names)
    run_atlas(chain(named_models, checkpoints), files, explain)

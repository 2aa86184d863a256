"""`rheoscope atlas`: the cards of several models side by side."""

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.completion import complete_from
from rheoscope.commands.option_groups import OutputOptions, with_option_groups
from rheoscope.commands.options import Device, Dtype, Series, Stream
from rheoscope.commands.usage import UsageProblem
from rheoscope.messages.message import Message
from rheoscope.report.hub_cache import cached_hub_names


@with_option_groups
def atlas(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Hugging Face names, directories or stored entries (.json); default is the model that ships with Rheoscope.",
            autocompletion=complete_from(cached_hub_names),
        ),
    ] = None,
    series: Series = None,
    texts: Annotated[
        Path | None, typer.Option(help="Texts of the cards, as in rheoscope card (default: 96 passages).")
    ] = None,
    draws: Annotated[int, typer.Option(min=40, help="Models with rotated or edited operators.")] = 40,
    untrained: Annotated[int, typer.Option(min=8, help="Untrained models of each architecture.")] = 8,
    store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Store each model here: its card, curves over its layers and its heads."),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", help="Rows of the tables models, claims, curves and heads of stored models (DuckDB)."
        ),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    stream: Stream = None,
    *,
    output: OutputOptions,
) -> None:
    """Put the cards of several models side by side.

    Cards that exist are read, and the others are computed.

    Examples:  rheoscope atlas default gpt2    ·    rheoscope atlas path/ gpt2 --html atlas.html --json atlas.json
    ·    rheoscope atlas --series runs/checkpoints    ·    rheoscope atlas gpt2 --store cards    ·    rheoscope atlas cards/*.json
    ·    rheoscope atlas cards/*.json --query "select model, answer from claims where claim = 'rest'"
    """
    from rheoscope.checkpoint_series import load_series
    from rheoscope.report.atlas_entry import read_entry
    from rheoscope.report.atlas_report import CardRequest, run_atlas
    from rheoscope.report.card_texts import read_texts
    from rheoscope.report.progress_bars import open_model

    files = output.files(texts)
    names = list(models or [])
    if not names and series is None:
        raise UsageProblem(Message("rheoscope atlas needs models or --series"), "rheoscope atlas default gpt2")
    checkpoints = () if series is None else load_series(series, None, device, dtype)
    request = CardRequest(None if texts is None else read_texts(texts), texts, draws, untrained, store)
    sources = (
        read_entry(Path(name)) if name.endswith(".json") else open_model(name, device, dtype, stream=stream)
        for name in names
    )
    run_atlas(chain(sources, checkpoints), request, files, output.explain, query)

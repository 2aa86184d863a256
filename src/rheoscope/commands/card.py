"""`rheoscope card`: the claims of the seed documents about one model, over many texts."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.completion import complete_from
from rheoscope.commands.options import (
    Adapter,
    Csv,
    Device,
    Dtype,
    Explain,
    Html,
    Images,
    Json,
    Sounds,
    Stream,
    refuse_both,
)
from rheoscope.report.hub_cache import cached_hub_names


def card(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A Hugging Face name or a directory (default: the model that ships, also named default).",
            autocompletion=complete_from(cached_hub_names),
        ),
    ] = None,
    adapter: Adapter = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Texts: one per line, a .jsonl file with a field text, or a directory (default: 96 passages). Pairs for an "
            "encoder-decoder: source, tab, target, or the fields source and target."
        ),
    ] = None,
    images: Images = None,
    audio: Sounds = None,
    draws: Annotated[int, typer.Option(min=40, help="Models with rotated or edited operators.")] = 40,
    untrained: Annotated[int, typer.Option(min=8, help="Untrained models of the same architecture.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The seed of all draws.")] = 0,
    cache: Annotated[bool, typer.Option(help="Store measurements, so that an interrupted card resumes.")] = True,
    explain: Explain = False,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    device: Device = None,
    dtype: Dtype = None,
    stream: Stream = None,
) -> None:
    """Answer claims about a model over many texts.

    Each claim has an effect, an interval, the smallest effect of interest, and what random models reach.

    Examples:  rheoscope card    ·    rheoscope card gpt2 --texts notes.txt --html card.html --json card.json
    ·    rheoscope card facebook/dinov2-small --images photos
    """
    from rheoscope.report import run_report
    from rheoscope.report.card_media import read_media
    from rheoscope.report.card_report import run_card
    from rheoscope.report.card_texts import read_texts
    from rheoscope.report.progress_bars import open_model

    refuse_both("--images", images is not None, "--audio", audio is not None)
    for option, folder in (("--images", images), ("--audio", audio)):
        refuse_both(option, folder is not None, "--texts", texts is not None)
    files = run_report.OutputFiles(json, csv, html, input_path=texts)
    media = read_media(images, audio)
    chosen_texts = None if texts is None else read_texts(texts)
    run_card(
        open_model(model, device, dtype, stream=stream, adapter=adapter),
        chosen_texts,
        media,
        draws,
        untrained,
        seed,
        cache,
        files,
        explain,
    )

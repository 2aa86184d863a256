"""`rheoscope card`: the claims of the seed documents about one model, over many texts."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.option_groups import NamedModel, OutputOptions, with_option_groups
from rheoscope.commands.options import Images, Sounds, refuse_both


@dataclass(frozen=True)
class CardOptions:
    """The random models of a card."""

    draws: Annotated[int, typer.Option(min=40, help="Models with rotated or edited operators.")] = 40
    untrained: Annotated[int, typer.Option(min=8, help="Untrained models of the same architecture.")] = 8
    seed: Annotated[int, typer.Option(min=0, help="The seed of all draws.")] = 0
    cache: Annotated[bool, typer.Option(help="Store measurements, so that an interrupted card resumes.")] = True


@with_option_groups
def card(
    network: NamedModel,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Texts: one per line, a .jsonl file with a field text, or a directory (default: 96 passages). Pairs for an "
            "encoder-decoder: source, tab, target, or the fields source and target."
        ),
    ] = None,
    images: Images = None,
    audio: Sounds = None,
    *,
    random_models: CardOptions,
    output: OutputOptions,
) -> None:
    """Answer claims about a model over many texts.

    Each claim has an effect, an interval, the smallest effect of interest, and what random models reach.

    Examples:  rheoscope card    ·    rheoscope card gpt2 --texts notes.txt --html card.html --json card.json
    ·    rheoscope card facebook/dinov2-small --images photos
    """
    from rheoscope.report.card_media import read_media
    from rheoscope.report.card_report import run_card
    from rheoscope.report.card_texts import read_texts

    refuse_both("--images", images is not None, "--audio", audio is not None)
    for option, folder in (("--images", images), ("--audio", audio)):
        refuse_both(option, folder is not None, "--texts", texts is not None)
    files = output.files(texts)
    media = read_media(images, audio)
    chosen_texts = None if texts is None else read_texts(texts)
    run_card(network.open(), chosen_texts, media, files, output.explain, **asdict(random_models))

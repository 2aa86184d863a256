"""`rheoscope generate`: continue or translate a text with a model that `rheoscope train` made."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.options import Device


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue or translate. - reads it from stdin.")] = "",
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", help="A directory made by rheoscope train (default: the model that ships)."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Generate at most this many tokens.")] = 100,
    temperature: Annotated[float, typer.Option(help="0 always takes the most probable token.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, help="Sample from the k most probable tokens. 0: from all.")] = 50,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most probable tokens that sum to this probability.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    device: Device = None,
) -> None:
    """Continue or translate a text with a trained model.

    A decoder continues the text and an encoder-decoder translates it. The model is one that `rheoscope train` made.

    Examples:  rheoscope generate "The history of"    ·    rheoscope generate -m run --temperature 0 "Once upon a time"
    """
    from rheoscope.report.generation import generate_text
    from rheoscope.report.input_text import resolve_text

    generate_text(resolve_text(prompt, None), model, tokens, temperature, top_k or None, top_p, seed, device)

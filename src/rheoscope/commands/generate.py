"""`rheoscope generate`: continue or translate a text, and show the flow of every new token."""

from dataclasses import dataclass
from typing import Annotated

import typer

from rheoscope.commands.option_groups import with_option_groups
from rheoscope.commands.options import Device, Json, ModelName


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is chosen."""

    temperature: Annotated[float, typer.Option(help="0 always takes the most probable token.")] = 0.8
    top_k: Annotated[int, typer.Option(min=0, help="Sample from the k most probable tokens. 0: from all.")] = 50
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most probable tokens that sum to this probability.")
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0

    def to_settings(self) -> tuple[float, int | None, float | None, int]:
        """Temperature, top k (None: all tokens), top p and seed."""
        return self.temperature, self.top_k or None, self.top_p, self.seed


@with_option_groups
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue or translate. - reads it from stdin.")] = "",
    model: ModelName = None,
    tokens: Annotated[int, typer.Option(min=1, help="Generate at most this many tokens.")] = 100,
    flow: Annotated[
        bool,
        typer.Option("--flow", help="Print, for every token, the layer that decides it and the tokens that write it."),
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Attribute the whole answer to prompt tokens and heads (implies --flow).")
    ] = False,
    json: Json = None,
    device: Device = None,
    *,
    sampling: SamplingOptions,
) -> None:
    """Continue or translate a text with any model that opens.

    A decoder continues the text and an encoder-decoder translates it.

    Examples:  rheoscope generate "The history of"    ·    rheoscope generate -m gpt2 --temperature 0 "Once upon a time"
    ·    rheoscope generate --explain --temperature 0 "The keys to the cabinet are"
    """
    from rheoscope.report.generation import generate_text
    from rheoscope.report.input_text import resolve_text

    text, settings = resolve_text(prompt, None), sampling.to_settings()
    if flow or explain or json is not None:
        from rheoscope.report.generated_tokens import show_generation

        show_generation(text, model, tokens, settings, device, explain, json)
    else:
        generate_text(text, model, tokens, *settings, device)

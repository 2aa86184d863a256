"""`rheoscope describe`: how a model was interpreted, or what it needs before it is downloaded."""

from typing import Annotated

import typer

from rheoscope.commands.completion import complete_from
from rheoscope.commands.options import Adapter, Device, Dtype, Json, Stream
from rheoscope.commands.usage import UsageProblem
from rheoscope.messages.message import Message
from rheoscope.report.hub_cache import cached_hub_names


def describe(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A Hugging Face name, a directory, or a config.json for --plan (default: the model that ships, also named default).",
            autocompletion=complete_from(cached_hub_names),
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Plan from the config alone: bytes, memory, reading time and FLOPs.")
    ] = False,
    tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Length of the text for --plan.")] = 512,
    adapter: Adapter = None,
    json: Json = None,
    device: Device = None,
    dtype: Dtype = None,
    stream: Stream = None,
) -> None:
    """Print how a model was interpreted.

    The formulas of scores and content, M and F, where each matrix lives, and the errors of the proof.

    With --plan it needs no weights, so a model of any size can be planned before it is downloaded.

    Examples:  rheoscope describe gpt2 --json gpt2.json    ·    rheoscope describe --plan path/config.json --dtype bfloat16
    """
    from rheoscope.files import check_outputs

    check_outputs([] if json is None else [json])
    if plan:
        from rheoscope.report.loading_plan import show_plan

        if model is None:
            raise UsageProblem(Message("--plan needs a model"), "rheoscope describe --plan gpt2")
        show_plan(model, tokens, dtype, device, json)
        return
    from rheoscope.report.model_description import show_description
    from rheoscope.report.progress_bars import open_model

    show_description(open_model(model, device, dtype, stream=stream, adapter=adapter), json)

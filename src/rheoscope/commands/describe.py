"""`rheoscope describe`: how a model was interpreted, or what it needs before it is downloaded."""

from typing import Annotated

import typer

from rheoscope.commands.option_groups import NamedModel, with_option_groups
from rheoscope.commands.options import Json
from rheoscope.commands.usage import UsageProblem
from rheoscope.messages.message import Message


@with_option_groups
def describe(
    network: NamedModel,
    plan: Annotated[
        bool, typer.Option("--plan", help="Plan from the config alone: bytes, memory, reading time and FLOPs.")
    ] = False,
    tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Length of the text for --plan.")] = 512,
    json: Json = None,
) -> None:
    """Print how a model was interpreted.

    The formulas of scores and content, M and F, where each matrix lives, and the errors of the proof.

    With --plan it needs no weights, so a model of any size can be planned before it is downloaded.
    MODEL may then be a config.json.

    Examples:  rheoscope describe gpt2 --json gpt2.json    ·    rheoscope describe --plan path/config.json --dtype bfloat16
    """
    from rheoscope.files import check_outputs

    check_outputs([] if json is None else [json])
    if plan:
        from rheoscope.report.loading_plan import show_plan

        if network.model is None:
            raise UsageProblem(Message("--plan needs a model"), "rheoscope describe --plan gpt2")
        show_plan(network.model, tokens, network.dtype, network.device, json)
        return
    from rheoscope.report.model_description import show_description

    show_description(network.open(), json)

"""`rheoscope bench`: the speed of attention on this machine."""

from typing import Annotated

import typer

from rheoscope.commands.completion import complete_from, device_names
from rheoscope.commands.options import Json
from rheoscope.commands.usage import UsageProblem
from rheoscope.messages.message import Message


def bench(
    subject: Annotated[
        str, typer.Argument(help="What to measure: attention.", autocompletion=complete_from(lambda: ["attention"]))
    ] = "attention",
    tokens: Annotated[
        list[int] | None,
        typer.Option(min=1, max=1_000_000, help="A sequence length. Repeat it for several (default on a CPU: 1024)."),
    ] = None,
    json: Json = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu or cuda (default: cuda if there is a GPU).", autocompletion=complete_from(device_names)),
    ] = None,
) -> None:
    """Measure the speed of attention on this machine.

    It compares speed, numerical error and memory of every mechanism with torch's fused dot-product attention.

    Examples:  rheoscope bench attention    ·    rheoscope bench attention --tokens 2048 --tokens 8192 --json speed.json
    """
    if subject != "attention":
        raise UsageProblem(Message("there is no benchmark {name!r}", name=subject), "rheoscope bench attention")
    from rheoscope.report.speed_report import run_speed_bench

    run_speed_bench(tokens, json, device)

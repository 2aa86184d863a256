"""The command `rheoscope bench`: how fast things run on this machine."""

from typing import Annotated

import typer

from rheoscope.commands.options import Json


def bench(
    what: Annotated[str, typer.Argument(help="What is measured: attention.")] = "attention",
    tokens: Annotated[
        list[int] | None, typer.Option(min=1, max=1_000_000, help="A length; again for more (default: 1024 on a CPU).")
    ] = None,
    json: Json = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: cuda where there is a GPU).")] = None,
) -> None:
    """How fast every attention mechanism runs on this machine beside torch's fused dot products: speed, error, memory, kernel.

    Examples:  rheoscope bench attention    ·    rheoscope bench attention --tokens 2048 --tokens 8192 --json speed.json
    """
    from rheoscope.report.speed_report import run_speed_bench
    from rheoscope.shapes import RheoscopeError

    if what != "attention":
        raise RheoscopeError(f"there is no bench {what!r}; type rheoscope bench attention")
    run_speed_bench(tokens, json, device)

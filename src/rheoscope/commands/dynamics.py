"""The command `rheoscope dynamics`: what is typed behind it."""

from pathlib import Path
from typing import Annotated

import typer


def dynamics(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; see --list.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every experiment.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Show every experiment.")] = False,
    seed: Annotated[int, typer.Option(help="Another one draws other particles.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Draw each figure (PNG) into this directory.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write every number and curve to this file.")] = None,
) -> None:
    """The theory bench: particles under attention without trained weights, each number beside the one that theory gives.

    Examples:  rheoscope dynamics --list    ·    rheoscope dynamics equiangular --out figures    ·    rheoscope dynamics --all
    """
    from rheoscope.report.theory_report import run_experiments, show_experiment_list
    from rheoscope.theory.experiments import experiments

    if listed:
        show_experiment_list()
    elif not names and not every:
        raise typer.BadParameter("type rheoscope dynamics NAME…, --all, or --list for the experiments")
    else:
        run_experiments(list(experiments()) if every else names or [], seed, out, json)

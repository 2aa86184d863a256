"""`rheoscope dynamics`: the theory bench, particles under attention compared with theory."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.completion import complete_from, experiment_names
from rheoscope.commands.usage import UsageProblem
from rheoscope.messages.message import Message


def dynamics(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments. --list names them.", autocompletion=complete_from(experiment_names)),
    ] = None,
    run_all: Annotated[bool, typer.Option("--all", help="Run every experiment.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List every experiment.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the initial particles.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write each figure (PNG) into this directory.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write every number and curve to this file.")] = None,
) -> None:
    """Run the theory bench: particles under attention.

    No weights are trained. Each number is compared with the value that theory predicts.

    Examples:  rheoscope dynamics --list    ·    rheoscope dynamics equiangular --out figures    ·    rheoscope dynamics --all
    """
    if not names and not run_all and not show_list:
        raise UsageProblem(Message("got no experiment"), "rheoscope dynamics --list")
    from rheoscope.report.theory_report import run_experiments, show_experiment_list
    from rheoscope.theory.experiments import experiments

    if show_list:
        show_experiment_list()
    else:
        run_experiments(list(experiments()) if run_all else names or [], seed, out, json)

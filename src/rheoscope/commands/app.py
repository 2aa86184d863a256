"""The command `rheoscope`: all commands, assembled in the order of the first screen."""

import atexit
import gc
import sys
from contextvars import copy_context
from enum import StrEnum
from typing import Annotated

import typer

from rheoscope.commands import analyse as analyse_module
from rheoscope.commands.analyses import analyses
from rheoscope.commands.atlas import atlas
from rheoscope.commands.attention import attention
from rheoscope.commands.bench import bench
from rheoscope.commands.card import card
from rheoscope.commands.command_group import RootGroup
from rheoscope.commands.compare import compare
from rheoscope.commands.corpus import corpus
from rheoscope.commands.costs import costs
from rheoscope.commands.covers import covers
from rheoscope.commands.describe import describe
from rheoscope.commands.doctor import doctor
from rheoscope.commands.dynamics import dynamics
from rheoscope.commands.exit_status import end_process, exit_now, run_to_status
from rheoscope.commands.features import features
from rheoscope.commands.flow import flow
from rheoscope.commands.generate import generate
from rheoscope.commands.heal import heal
from rheoscope.commands.learned import learned
from rheoscope.commands.operators import operators
from rheoscope.commands.patch import patch
from rheoscope.commands.race import race
from rheoscope.commands.reverse import reverse
from rheoscope.commands.studio import studio
from rheoscope.commands.surgery import surgery
from rheoscope.commands.train import train
from rheoscope.commands.variadic_options import VariadicCommand
from rheoscope.messages.catalogue import LANGUAGES, set_language
from rheoscope.report.console import ignore_zero_width, replace_unencodable

app = typer.Typer(
    cls=RootGroup,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Language = StrEnum("Language", {language: language for language in LANGUAGES})  # type: ignore[misc]


def _print_version(is_requested: bool) -> bool:
    if is_requested:
        from rheoscope import __version__

        print(f"rheoscope {__version__}")
        raise typer.Exit
    return is_requested


@app.callback()
def rheoscope(
    lang: Annotated[
        Language | None,
        typer.Option("--lang", help="Language of the output (default: the locale). Allowed anywhere."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """See, measure and redesign attention as geometry.

    Start with a text:  rheoscope "The keys to the cabinet are"

    The default model ships with Rheoscope, so nothing is downloaded. `rheoscope COMMAND --help` lists the options.
    """
    if lang is not None:
        set_language(lang.value)


A_TEXT, A_MODEL = "One text in a model", "A model"
TRAINING, MACHINE = "Training, corpora and theory", "This machine"

app.command("flow", rich_help_panel=A_TEXT)(flow)
app.command("covers", rich_help_panel=A_TEXT)(covers)
app.command("reverse", rich_help_panel=A_TEXT)(reverse)
app.command("patch", rich_help_panel=A_TEXT)(patch)
app.command("surgery", rich_help_panel=A_TEXT)(surgery)
app.command("analyse", rich_help_panel=A_TEXT, context_settings=analyse_module.CONTEXT_SETTINGS, add_help_option=False)(
    analyse_module.analyse
)
app.command("analyses", rich_help_panel=A_TEXT)(analyses)
app.command("studio", rich_help_panel=A_TEXT)(studio)
app.command("card", rich_help_panel=A_MODEL)(card)
app.command("atlas", rich_help_panel=A_MODEL)(atlas)
app.command("compare", rich_help_panel=A_MODEL)(compare)
app.command("operators", rich_help_panel=A_MODEL)(operators)
app.command("costs", rich_help_panel=A_MODEL)(costs)
app.add_typer(features, name="features", rich_help_panel=A_MODEL)
app.command("describe", rich_help_panel=A_MODEL)(describe)
app.command("attention", rich_help_panel=A_MODEL)(attention)
app.command("train", cls=VariadicCommand, rich_help_panel=TRAINING)(train)
app.command("generate", rich_help_panel=TRAINING)(generate)
app.command("learned", rich_help_panel=TRAINING)(learned)
app.command("heal", cls=VariadicCommand, rich_help_panel=TRAINING)(heal)
app.add_typer(race, name="race", rich_help_panel=TRAINING)
app.add_typer(corpus, name="corpus", rich_help_panel=TRAINING)
app.command("dynamics", rich_help_panel=TRAINING)(dynamics)
app.command("bench", rich_help_panel=MACHINE)(bench)
app.command("doctor", rich_help_panel=MACHINE)(doctor)


GARBAGE_THRESHOLD = 100_000
"""New objects between two searches for reference cycles. Imports create half a million, and a search over all of them takes as
long as an analysis. What a cycle refers to takes memory until then: at a threshold of a million, all untrained models of a card did."""


def main() -> None:
    """Run the command line as a process, which exits with its status."""
    statuses: list[int] = []
    atexit.register(end_process, statuses)  # registered first, so it runs after the exit handlers of other packages
    statuses.append(run_command_line())
    exit_now(*statuses)


def run_command_line() -> int:
    """Run the command line and return its exit status."""
    replace_unencodable(sys.stdout, sys.stderr)
    ignore_zero_width()
    gc.set_threshold(GARBAGE_THRESHOLD, 10, 10)
    context = copy_context()  # --lang is set here and not in the caller's context
    return context.run(run_to_status, lambda: app(prog_name="rheoscope", standalone_mode=False))


if __name__ == "__main__":
    main()

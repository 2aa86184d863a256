"""`rheoscope analyse NAME`: any analysis of the catalogue. Its settings are its options."""

from typing import Annotated

import typer

from rheoscope.commands.completion import analysis_names, complete_from

CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""The command of the analysis parses all other arguments, --help included."""


def analyse(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="The name of an analysis.", autocompletion=complete_from(analysis_names))
    ] = "--help",
) -> None:
    """Run one analysis by name: rheoscope analyse NAME TEXT.

    The settings of an analysis are its options: `rheoscope analyse NAME --help` lists them.

    Examples:  rheoscope analyse transport "The keys to the cabinet are"    ·    rheoscope analyse composition --model gpt2 --csv tables
    ·    rheoscope analyse fixed_point --file notes.txt --layers 0,3 --json settle.json
    """
    from rheoscope.commands.analysis_command import build_command, show_usage

    if name in ("-h", "--help"):
        show_usage()
    else:
        build_command(name)(context.args)

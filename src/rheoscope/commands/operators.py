"""`rheoscope operators`: every head of a model as two operators, M and F."""

from typing import Annotated

import typer

from rheoscope.commands.option_groups import ModelOptions, OutputOptions, with_option_groups


@with_option_groups
def operators(
    text: Annotated[str | None, typer.Option(help="Also decompose the scores on this text.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Use the bare weights, without the gain of the norm, as papers do.")
    ] = False,
    *,
    network: ModelOptions,
    output: OutputOptions,
) -> None:
    """Describe every head as two operators, M (QK) and F (OV).

    For each head it reports symmetry, directionality, rank and copying.

    Examples:  rheoscope operators --model gpt2    ·    rheoscope operators -m path/ --html heads.html --json heads.json
    ·    rheoscope operators -m gpt2 --text "The keys to the cabinet are on the table"
    """
    from rheoscope.report.input_text import check_text
    from rheoscope.report.report_plans import REPORTS
    from rheoscope.report.run_report import run_report

    check_text(text)
    files, model = output.files(), network.open_for_one_text()
    run_report(REPORTS["operators"], model, text, {"raw": raw, "text": text}, files, explain=output.explain)

"""`rheoscope reverse`: the gradient of the loss with respect to the scores (reversed attention)."""

from typing import Annotated

import typer

from rheoscope.commands.option_groups import ModelOptions, OutputOptions, TextOptions, with_option_groups


@with_option_groups
def reverse(
    source: TextOptions,
    target: Annotated[
        str | None, typer.Option(help="The target token, or its id as #262 (default: the most probable one).")
    ] = None,
    token: Annotated[
        int, typer.Option(help="The position that predicts it, counted from 0, or from the end if negative.")
    ] = -1,
    *,
    network: ModelOptions,
    output: OutputOptions,
) -> None:
    """Show how the loss would change attention, head by head.

    This is reversed attention, the gradient of the loss with respect to the scores. It names the heads and tokens with the
    largest gradient.

    Examples:  rheoscope reverse "The keys to the cabinet are" --target " on"    ·    rheoscope reverse --file notes.txt --json pull.json
    """
    from rheoscope.report.long_texts import truncate_text
    from rheoscope.report.parse_options import parse_token
    from rheoscope.report.report_plans import REPORTS
    from rheoscope.report.run_report import run_report

    text, files = source.resolve(), output.files(source.file)
    model = network.open_for_one_text()
    options = {"target": None if target is None else parse_token(target), "token": token}
    first_tokens = truncate_text(model, text, source.first)
    run_report(REPORTS["reverse"], model, first_tokens, options, files, explain=output.explain)

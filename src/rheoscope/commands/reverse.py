"""`rheoscope reverse`: the gradient of the loss with respect to the scores (reversed attention)."""

from typing import Annotated

import typer

from rheoscope.commands.options import (
    Adapter,
    Csv,
    Device,
    Dtype,
    Explain,
    File,
    First,
    Html,
    Json,
    ModelName,
    Stream,
    Text,
)


def reverse(
    text: Text = None,
    file: File = None,
    target: Annotated[
        str | None, typer.Option(help="The target token, or its id as #262 (default: the most probable one).")
    ] = None,
    token: Annotated[
        int, typer.Option(help="The position that predicts it, counted from 0, or from the end if negative.")
    ] = -1,
    first: First = None,
    model: ModelName = None,
    adapter: Adapter = None,
    explain: Explain = False,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    device: Device = None,
    dtype: Dtype = None,
    stream: Stream = None,
) -> None:
    """Show how the loss would change attention, head by head.

    This is reversed attention, the gradient of the loss with respect to the scores. It names the heads and tokens with the
    largest gradient.

    Examples:  rheoscope reverse "The keys to the cabinet are" --target " on"    ·    rheoscope reverse --file notes.txt --json pull.json
    """
    from rheoscope.report import run_report
    from rheoscope.report.input_text import resolve_text
    from rheoscope.report.long_texts import truncate_text
    from rheoscope.report.parse_options import parse_token
    from rheoscope.report.progress_bars import load_model
    from rheoscope.report.report_plans import REPORTS

    input_text, files = resolve_text(text, file, first), run_report.OutputFiles(json, csv, html, file)
    network, target_token = (
        load_model(model, device, dtype, stream=stream, adapter=adapter),
        None if target is None else parse_token(target),
    )
    options = {"target": target_token, "token": token}
    run_report.run_report(
        REPORTS["reverse"], network, truncate_text(network, input_text, first), options, files, explain=explain
    )

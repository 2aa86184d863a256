"""`rheoscope operators`: every head of a model as two operators, M and F."""

from typing import Annotated

import typer

from rheoscope.commands.options import Adapter, Csv, Device, Dtype, Explain, Html, Json, ModelName, Stream


def operators(
    text: Annotated[str | None, typer.Option(help="Also decompose the scores on this text.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Use the bare weights, without the gain of the norm, as papers do.")
    ] = False,
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
    """Describe every head as two operators, M (QK) and F (OV).

    For each head it reports symmetry, directionality, rank and copying.

    Examples:  rheoscope operators --model gpt2    ·    rheoscope operators -m path/ --html heads.html --json heads.json
    ·    rheoscope operators -m gpt2 --text "The keys to the cabinet are on the table"
    """
    from rheoscope.report import run_report
    from rheoscope.report.input_text import check_text
    from rheoscope.report.progress_bars import load_model
    from rheoscope.report.report_plans import REPORTS

    check_text(text)
    files, network = (
        run_report.OutputFiles(json, csv, html),
        load_model(model, device, dtype, stream=stream, adapter=adapter),
    )
    run_report.run_report(REPORTS["operators"], network, text, {"raw": raw, "text": text}, files, explain=explain)

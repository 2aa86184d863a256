"""`rheoscope covers`: whether attention scores track the similarity of tokens."""

from typing import Annotated

import typer

from rheoscope.commands.options import (
    Adapter,
    Csv,
    Device,
    Dtype,
    Explain,
    Fast,
    File,
    First,
    Html,
    Json,
    ModelName,
    Stream,
    TargetText,
    Text,
    Window,
)


def covers(
    text: Text = None,
    file: File = None,
    target: TargetText = None,
    draws: Annotated[int, typer.Option(min=2, max=10_000, help="Random heads that each head is compared with.")] = 40,
    untrained: Annotated[
        bool,
        typer.Option("--untrained/--no-untrained", help="Compare with the same architecture at initial weights."),
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the initial weights.")] = 0,
    first: First = None,
    window: Window = None,
    model: ModelName = None,
    adapter: Adapter = None,
    fast: Fast = False,
    explain: Explain = False,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    device: Device = None,
    dtype: Dtype = None,
    stream: Stream = None,
) -> None:
    """Test whether attention scores track token similarity.

    Each head's scores are correlated with the cosines of its tokens. Random heads are the null, and the same
    architecture at initial weights is the control.

    Examples:  rheoscope covers "The keys to the cabinet are on the table"    ·    rheoscope covers --file notes.txt --html covers.html
    ·    rheoscope covers --file notes.txt --model path/ --no-untrained
    ·    rheoscope covers --file source.txt --target "La maison est petite." --model opus-mt-en-fr
    """
    from rheoscope.report import run_report, windowed_report
    from rheoscope.report.input_text import check_target, resolve_text
    from rheoscope.report.long_texts import split_into_windows
    from rheoscope.report.progress_bars import open_model
    from rheoscope.report.report_plans import REPORTS
    from rheoscope.running.pair_sides import same_side, sides_for

    check_target(target)
    input_text, files = resolve_text(text, file, first), run_report.OutputFiles(json, csv, html, file)
    opened_model = open_model(model, device, dtype, stream=stream, adapter=adapter)
    network, input_text = sides_for(opened_model, input_text, target)
    windows = split_into_windows(network, input_text, first, window)
    control = same_side(network, open_model(model, device, dtype, untrained=True, seed=seed)) if untrained else None
    control_settings = (
        windowed_report.no_text_options if control is None else lambda ids: {"control": control.trace(ids)}
    )
    windowed_report.run_on_windows(
        REPORTS["covers"], network, windows, {"draws": draws}, files, fast, explain, text_options=control_settings
    )

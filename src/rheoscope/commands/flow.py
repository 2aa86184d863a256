"""`rheoscope flow`, the default command: what a text does in a model, with a report."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.completion import complete_from, space_names
from rheoscope.commands.options import (
    Adapter,
    Audio,
    Csv,
    Device,
    Dtype,
    Explain,
    Fast,
    File,
    First,
    Image,
    Json,
    ModelName,
    Stream,
    TargetText,
    Text,
    Window,
    one_medium,
    refuse_both,
)

ComparedText = Annotated[
    str | None, typer.Option(metavar="TEXT", help="A second text, compared with the first layer by layer.")
]
SpaceOption = Annotated[
    str,
    typer.Option(
        help="raw, normed (after the final norm) or sphere (directions).", autocompletion=complete_from(space_names)
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Also print the tables of the report.")]
ReportFile = Annotated[
    Path | None, typer.Option(help="Write the report to this file (default: an unused report.html).")
]
NoReport = Annotated[bool, typer.Option("--no-html", help="Write no report.")]


def flow(
    text: Text = None,
    file: File = None,
    image: Image = None,
    audio: Audio = None,
    target: TargetText = None,
    compare: ComparedText = None,
    first: First = None,
    window: Window = None,
    model: ModelName = None,
    adapter: Adapter = None,
    space: SpaceOption = "raw",
    full: Full = False,
    fast: Fast = False,
    explain: Explain = False,
    json: Json = None,
    csv: Csv = None,
    html: ReportFile = None,
    no_html: NoReport = False,
    device: Device = None,
    dtype: Dtype = None,
    stream: Stream = None,
) -> None:
    """Show what a text does in a model, and write a report.

    This is the default command: `rheoscope "some text"` runs it. It prints the story of the text: the next token and what writes
    it, the heads at work, how tokens move and which groups they form. The report has all analyses.

    Examples:  rheoscope "The keys to the cabinet are"    ·    rheoscope flow --model gpt2 --file notes.txt --html notes.html
    ·    rheoscope "The keys to the cabinet are" --compare "The key to the cabinets is"
    ·    rheoscope "The house is small." --model opus-mt-en-fr --target "La maison est"
    ·    rheoscope --image photo.png --model vit-base-patch16-224
    ·    rheoscope --audio speech.wav --model wav2vec2-base    ·    rheoscope --audio speech.wav --model whisper-tiny --target "The keys"
    """
    from rheoscope.flow.cloud import check_space
    from rheoscope.report import run_report, windowed_report
    from rheoscope.report.input_text import check_target, check_text, clean_typed_text, resolve_text
    from rheoscope.report.long_texts import split_into_windows
    from rheoscope.report.progress_bars import open_model
    from rheoscope.report.text_report import TEXT_REPORT
    from rheoscope.running.pair_sides import sides_for

    refuse_both("--html", html is not None, "--no-html", no_html)
    check_space(space)
    plan = TEXT_REPORT
    text_options = {"text": text, "file": file, "target": target, "compare": compare, "first": first, "window": window}
    medium = one_medium(image, audio, **text_options)
    check_text(compare)
    check_target(target)
    if medium is not None:
        files = run_report.OutputFiles(json, csv, html, medium.path, medium.option, not no_html)
        medium.check()
        sides = medium.sides(open_model(model, device, dtype, stream=stream, adapter=adapter), target)
        run_report.run_report(plan, *sides, {"space": space}, files, fast, explain, full)
        return
    input_text = resolve_text(text, file, first)
    files = run_report.OutputFiles(json, csv, html, file, default_page=not no_html)
    opened_model = open_model(model, device, dtype, stream=stream, adapter=adapter)
    network, input_text = sides_for(opened_model, input_text, target)
    windows = split_into_windows(network, input_text, first, window)
    if compare is None:
        windowed_report.run_on_windows(plan, network, windows, {"space": space}, files, fast, explain, full=full)
    else:
        windowed_report.refuse_windows(windows, "--compare")
        text_pair = windows.texts[0], split_into_windows(network, clean_typed_text(compare), first).texts[0]
        run_report.compare_texts(plan, network, text_pair, {"space": space}, files, fast, explain)

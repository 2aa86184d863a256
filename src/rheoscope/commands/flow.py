"""`rheoscope flow`, the default command: what a text does in a model, with a report."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rheoscope.commands.completion import complete_from, space_names
from rheoscope.commands.option_groups import ModelOptions, TextOptions, with_option_groups
from rheoscope.commands.options import (
    Audio,
    Csv,
    Explain,
    Fast,
    Image,
    Json,
    TargetText,
    Window,
    one_medium,
    refuse_both,
)

if TYPE_CHECKING:
    from rheoscope.report.input_media import Medium
    from rheoscope.report.run_report import OutputFiles

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


@dataclass(frozen=True)
class FlowInput(TextOptions):
    """A text, an image or a sound, and what it is compared with."""

    image: Image = None
    audio: Audio = None
    target: TargetText = None
    compare: ComparedText = None
    window: Window = None

    def medium(self) -> "Medium | None":
        """The image or the sound, if there is one. Raises if it is combined with options for texts."""
        names = ("text", "file", "target", "compare", "first", "window")
        return one_medium(self.image, self.audio, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class ReportOptions:
    """What is printed and written."""

    full: Full = False
    fast: Fast = False
    explain: Explain = False
    json: Json = None
    csv: Csv = None
    html: ReportFile = None
    no_html: NoReport = False

    def files(self, input_path: Path | None, input_option: str = "--file") -> "OutputFiles":
        """The files, by default with a report. `input_option` is the option that named the input."""
        from rheoscope.report.run_report import OutputFiles

        return OutputFiles(self.json, self.csv, self.html, input_path, input_option, not self.no_html)


@with_option_groups
def flow(
    source: FlowInput,
    space: SpaceOption = "raw",
    *,
    network: ModelOptions,
    output: ReportOptions,
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
    from rheoscope.report.input_text import check_target, check_text, clean_typed_text
    from rheoscope.report.long_texts import split_into_windows
    from rheoscope.report.text_report import TEXT_REPORT
    from rheoscope.running.pair_sides import sides_for

    refuse_both("--html", output.html is not None, "--no-html", output.no_html)
    check_space(space)
    settings, shown = {"space": space}, (output.fast, output.explain)
    medium = source.medium()
    check_text(source.compare)
    check_target(source.target)
    if medium is not None:
        files = output.files(medium.path, medium.option)
        medium.check()
        sides = medium.sides(network.open(), source.target)
        run_report.run_report(TEXT_REPORT, *sides, settings, files, *shown, output.full)
        return
    text, files = source.resolve(), output.files(source.file)
    model, text = sides_for(network.open(), text, source.target)
    windows = split_into_windows(model, text, source.first, source.window)
    if source.compare is None:
        windowed_report.run_on_windows(TEXT_REPORT, model, windows, settings, files, *shown, full=output.full)
    else:
        windowed_report.refuse_windows(windows, "--compare")
        compared_text = split_into_windows(model, clean_typed_text(source.compare), source.first).texts[0]
        run_report.compare_texts(TEXT_REPORT, model, (windows.texts[0], compared_text), settings, files, *shown)

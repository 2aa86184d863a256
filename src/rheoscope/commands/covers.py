"""`rheoscope covers`: whether attention scores track the similarity of tokens."""

from typing import Annotated

import typer

from rheoscope.commands.option_groups import ModelOptions, OutputOptions, TextOptions, with_option_groups
from rheoscope.commands.options import Fast, TargetText, Window


@with_option_groups
def covers(
    source: TextOptions,
    target: TargetText = None,
    draws: Annotated[int, typer.Option(min=2, max=10_000, help="Random heads that each head is compared with.")] = 40,
    untrained: Annotated[
        bool,
        typer.Option("--untrained/--no-untrained", help="Compare with the same architecture at initial weights."),
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the initial weights.")] = 0,
    window: Window = None,
    fast: Fast = False,
    *,
    network: ModelOptions,
    output: OutputOptions,
) -> None:
    """Test whether attention scores track token similarity.

    Each head's scores are correlated with the cosines of its tokens. Random heads are the null, and the same
    architecture at initial weights is the control.

    Examples:  rheoscope covers "The keys to the cabinet are on the table"    ·    rheoscope covers --file notes.txt --html covers.html
    ·    rheoscope covers --file notes.txt --model path/ --no-untrained
    ·    rheoscope covers --file source.txt --target "La maison est petite." --model opus-mt-en-fr
    """
    from rheoscope.report import windowed_report
    from rheoscope.report.input_text import check_target
    from rheoscope.report.long_texts import split_into_windows
    from rheoscope.report.report_plans import REPORTS
    from rheoscope.running.pair_sides import same_side, sides_for

    check_target(target)
    text, files = source.resolve(), output.files(source.file)
    model, text = sides_for(network.open(), text, target)
    windows = split_into_windows(model, text, source.first, window)
    control = same_side(model, network.open_untrained(seed)) if untrained else None
    control_settings = (
        windowed_report.no_text_options if control is None else lambda ids: {"control": control.trace(ids)}
    )
    windowed_report.run_on_windows(
        REPORTS["covers"], model, windows, {"draws": draws}, files, fast, output.explain, text_options=control_settings
    )

"""`rheoscope patch`: which parts of a model carry the difference between two texts."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.option_groups import ModelOptions, OutputOptions, with_option_groups


@dataclass(frozen=True)
class PatchOptions:
    """What is patched, and how its effect is measured."""

    answers: Annotated[
        str,
        typer.Option(help='The answers of the two texts, as " on| in" (default: the likeliest token after each text).'),
    ] = ""
    metric: Annotated[str, typer.Option(help="logit_diff, prob, kl or loss.")] = "logit_diff"
    token: Annotated[int, typer.Option(help="The position of the prediction; -1 is the last token.")] = -1
    top: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many of the strongest heads to patch token by token.")
    ] = 4
    edges: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Also find a circuit of at most this many edges between heads, as 20."),
    ] = None
    tries: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Edges of each ranking to patch exactly (default: 60).")
    ] = None
    min_effect: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Remove edges without which the circuit loses less than this (default: .02)."),
    ] = None
    draws: Annotated[
        int | None,
        typer.Option(min=0, max=10_000, help="Random circuits to compare with the circuit (default: 10, 0 for none)."),
    ] = None


@with_option_groups
def patch(
    text: Annotated[str | None, typer.Argument(help="The text.", show_default=False)] = None,
    other: Annotated[
        str | None,
        typer.Argument(help="Another text with as many tokens, which differs in a few of them.", show_default=False),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(help="A .jsonl, .csv or .tsv file with clean, corrupt, answers and spans, in place of two texts."),
    ] = None,
    *,
    patching: PatchOptions,
    network: ModelOptions,
    output: OutputOptions,
) -> None:
    """Find what carries the difference between two texts.

    The other text runs with one part from the first text at a time: a point of the stream, an MLP update, or a head. A head
    is also patched through its weights alone (M) and through its values alone (F). --edges also finds the edges between heads.

    Examples:  rheoscope patch "He lived in London. She lived in" "He lived in Paris. She lived in"
    ·    rheoscope patch "The men who live here" "The man who live here" --answers " are| is" --html pair.html
    ·    rheoscope patch --pairs pairs.jsonl --edges 20 --json effects.json
    """
    from rheoscope.covers.patch.pair_files import read_pairs
    from rheoscope.report.input_text import resolve_pair
    from rheoscope.report.pairs_report import run_on_pairs
    from rheoscope.report.report_plans import REPORTS
    from rheoscope.report.run_report import run_report

    texts, files = resolve_pair(text, other, pairs), output.files(pairs, "--pairs")
    file_pairs = [] if pairs is None else read_pairs(pairs)
    model, options = network.open_for_one_text(), asdict(patching)
    if texts is None:
        run_on_pairs(REPORTS["patch"], model, file_pairs, options, files, output.explain)
    else:
        run_report(REPORTS["patch"], model, texts[0], options | {"other": texts[1]}, files, explain=output.explain)

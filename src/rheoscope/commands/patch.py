"""`rheoscope patch`: which parts of a model carry the difference between two texts."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.options import Adapter, Csv, Device, Dtype, Explain, Html, Json, ModelName


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
    answers: Annotated[
        str,
        typer.Option(help='The answers of the two texts, as " on| in" (default: the likeliest token after each text).'),
    ] = "",
    metric: Annotated[str, typer.Option(help="logit_diff, prob, kl or loss.")] = "logit_diff",
    token: Annotated[int, typer.Option(help="The position of the prediction; -1 is the last token.")] = -1,
    top: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many of the strongest heads to patch token by token.")
    ] = 4,
    edges: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Also find a circuit of at most this many edges between heads, as 20."),
    ] = None,
    tries: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Edges of each ranking to patch exactly (default: 60).")
    ] = None,
    model: ModelName = None,
    adapter: Adapter = None,
    explain: Explain = False,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Find what carries the difference between two texts.

    The other text runs with one part from the first text at a time: a point of the stream, an MLP update, or a head. A head
    is also patched through its weights alone (M) and through its values alone (F). --edges also finds the edges between heads.

    Examples:  rheoscope patch "He lived in London. She lived in" "He lived in Paris. She lived in"
    ·    rheoscope patch "The men who live here" "The man who live here" --answers " are| is" --html pair.html
    ·    rheoscope patch --pairs pairs.jsonl --edges 20 --json effects.json
    """
    from rheoscope.covers.patch.pair_files import read_pairs
    from rheoscope.report import pairs_report, run_report
    from rheoscope.report.input_text import resolve_pair
    from rheoscope.report.progress_bars import load_model
    from rheoscope.report.report_plans import REPORTS

    texts, files = resolve_pair(text, other, pairs), run_report.OutputFiles(json, csv, html, pairs, "--pairs")
    read = [] if pairs is None else read_pairs(pairs)
    options = {"answers": answers, "metric": metric, "token": token, "top": top, "edges": edges, "tries": tries}
    network = load_model(model, device, dtype, adapter=adapter)
    if texts is None:
        pairs_report.run_on_pairs(REPORTS["patch"], network, read, options, files, explain)
        return
    options["other"] = texts[1]
    run_report.run_report(REPORTS["patch"], network, texts[0], options, files, explain=explain)

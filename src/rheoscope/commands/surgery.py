"""`rheoscope surgery`: the loss after M or F of some heads is replaced."""

from typing import Annotated

import typer

from rheoscope.commands.option_groups import ModelOptions, OutputOptions, TextOptions, with_option_groups


@with_option_groups
def surgery(
    source: TextOptions,
    heads: Annotated[
        str | None, typer.Option(help="Heads as layer.head,… or a layer as L5 (default: every head).")
    ] = None,
    M: Annotated[str | None, typer.Option("--M", help="Replace M by: symmetric, skew, at_zero, 'rank 8', …")] = None,
    F: Annotated[str | None, typer.Option("--F", help="Replace F by: symmetric, 'rank 8', …")] = None,
    per_head: Annotated[bool, typer.Option(help="Edit each head alone, one after the other.")] = False,
    draws: Annotated[int, typer.Option(min=1, max=10_000, help="Random controls of each kind.")] = 1,
    *,
    network: ModelOptions,
    output: OutputOptions,
) -> None:
    """Measure what replacing M or F of some heads costs.

    M is the QK circuit and F the OV circuit of a head. The loss after the edit is compared with random edits of the same
    size and with ablation. A longer text gives narrower intervals.

    Examples:  rheoscope surgery "The keys to the cabinet are on the table" --heads 2.1,3.2 --M symmetric
    ·    rheoscope surgery --file notes.txt --model gpt2 --M "rank 8" --json cost.json
    """
    from rheoscope.covers.comparison_arms import COMPARISONS, SIZE_MATCHED, Comparisons
    from rheoscope.messages.advice import Advice
    from rheoscope.messages.message import Message
    from rheoscope.report.long_texts import truncate_text
    from rheoscope.report.parse_options import parse_heads
    from rheoscope.report.report_plans import REPORTS
    from rheoscope.report.run_report import run_report
    from rheoscope.shapes import RheoscopeError

    text, files = source.resolve(), output.files(source.file)
    if M is None and F is None:
        raise RheoscopeError(Message("nothing to replace"), Advice("", Message("--M symmetric or --F symmetric")))
    model = network.open_for_one_text()
    comparisons = Comparisons(SIZE_MATCHED.names if per_head else COMPARISONS, draws=draws)
    options = {
        "heads": parse_heads(heads, model.view),
        "M": M,
        "F": F,
        "per_head": per_head,
        "comparisons": comparisons,
    }
    first_tokens = truncate_text(model, text, source.first)
    run_report(REPORTS["surgery"], model, first_tokens, options, files, explain=output.explain)

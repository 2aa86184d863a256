"""`rheoscope attention`: all attention mechanisms, their laws and how they run on this machine."""

from pathlib import Path
from typing import Annotated

import typer


def attention(
    out: Annotated[Path, typer.Option(help="Directory for the picture (PNG) and the page (HTML).")] = Path(),
    json: Annotated[Path | None, typer.Option(help="Also write every number to this file.")] = None,
    tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Sequence length for which lowerings are chosen.")
    ] = 2048,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why each lowering is chosen and why the others are not.")
    ] = False,
    laws: Annotated[
        bool, typer.Option("--laws", help="Only list every definition and theorem of attention with its violation.")
    ] = False,
) -> None:
    """List all attention mechanisms and check their laws.

    It also reports which lowering runs each mechanism on this machine, and draws the attention weights.

    Examples:  rheoscope attention    ·    rheoscope attention --explain    ·    rheoscope attention --laws --json laws.json
    """
    from rheoscope.report import mechanism_survey, theorem_table

    if laws:
        theorem_table.show_laws(json)
    else:
        mechanism_survey.show_mechanisms(out, json, tokens, explain)

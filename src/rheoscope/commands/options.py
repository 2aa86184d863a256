"""The options that commands share: what is typed, and what it says of itself in the help."""

from pathlib import Path
from typing import Annotated

import typer

Text = Annotated[str | None, typer.Argument(help="The text; - reads it from standard input.")]
File = Annotated[Path | None, typer.Option(help="Read the text from this file.")]
First = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N tokens of the text.")]
Window = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Analyse the text in pieces of N tokens: means, and intervals over the pieces."
    ),
]
ModelName = Annotated[
    str | None, typer.Option("--model", "-m", help="A hub name or a directory (default: the model that ships).")
]
Explain = Annotated[bool, typer.Option("--explain", help="Define every column.")]
Fast = Annotated[
    bool, typer.Option("--fast", help="Leave out what is drawn at random: nulls, and what is told of them.")
]
Json = Annotated[Path | None, typer.Option(help="Write every number to this file.")]
Csv = Annotated[
    Path | None, typer.Option(help="Write a table for every set of axes into this directory, with definitions.")
]
Html = Annotated[Path | None, typer.Option(help="Write a page with every picture to this file.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, … (default: cpu).")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or float64 (default: float32 on the CPU).")]
Untrained = Annotated[bool, typer.Option("--untrained", help="Beside it the same architecture at initial weights.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="0: this process, without Ray; else so many by Ray (default: one for each GPU, 0 where there are fewer than 2).",
    ),
]
Address = Annotated[str | None, typer.Option(help="A Ray cluster (default: this machine).")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of each worker (default: the cores, shared out).")]

"""The command `rheoscope`: thin, every answer comes from the rooms below."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from rheoscope import __version__

        print(f"rheoscope {__version__}")
        raise typer.Exit


@app.callback()
def rheoscope(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    """See, measure and redesign attention as geometry."""


@app.command()
def attention(
    out: Annotated[Path, typer.Option(help="Directory for the picture (PNG) and the page (HTML).")] = Path(),
    json: Annotated[Path | None, typer.Option(help="Also write every number to this file.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Length for which the lowering is chosen.")] = 2048,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why each lowering is taken, and why not the others.")
    ] = False,
) -> None:
    """Every attention mechanism: its laws checked live, how it runs on this machine, a picture of its weights.

    Examples:  rheoscope attention    ·    rheoscope attention --explain    ·    rheoscope attention --json laws.json
    """
    from rheoscope.report.attention import show

    show(out, json, tokens, explain)


ModelName = Annotated[
    str, typer.Option("--model", "-m", help="A hub name or a directory with config.json and safetensors.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, … (default: cpu).")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or float64 (default: float32 on the CPU).")]


@app.command("operators")
def operators_command(
    model: ModelName,
    text: Annotated[str | None, typer.Option(help="Also say what scores are made of on this text.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Bare weights, without the gain of the norm, as papers print them.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Define every column.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write every number to this file.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with maps of all heads to this file (and a PNG beside it).")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Every head of a model as two operators, M (QK circuit) and F (OV circuit): symmetry, direction, rank, copying.

    Examples:  rheoscope operators --model gpt2    ·    rheoscope operators -m path/ --html heads.html --json heads.json
    ·    rheoscope operators -m gpt2 --text "The keys to the cabinet are on the table"
    """
    from rheoscope.opening import load
    from rheoscope.report.operators import show

    show(load(model, device=device, dtype=dtype), text, raw, explain, json, html)


def main() -> None:
    """Run the command; a user's mistake is one line on stderr and exit status 1, never a stack trace."""
    try:
        app()
    except Exception as error:
        # Imported late: the error lives beside torch, which `rheoscope --help` does not need.
        from rheoscope.shapes import RheoscopeError

        if not isinstance(error, RheoscopeError):
            raise
        print(f"rheoscope: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()

"""The command `rheoscope race`: what is typed behind it."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.options import Address, Csv, Explain, Html, Json, Threads, Workers

Name = Annotated[str | None, typer.Argument(help="A recipe, before any option; see rheoscope train --list.")]
Mechanisms = Annotated[str, typer.Option(metavar="A,B,…", help="Who races against the baseline; see --list.")]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="Runs of each, paired: a seed is one data order and one start (default: 12).")
]
Rates = Annotated[str, typer.Option(metavar="A,B,…", help="Learning rates that each may choose from.")]
Screened = Annotated[
    str | None,
    typer.Option(
        "--screen", metavar="SEEDSxSTEPS", help="Choose rates in such a shorter race before, with other seeds."
    ),
]
JobFile = Annotated[
    Path | None, typer.Option("--job", help="Read these settings from a TOML file; what is typed goes before.")
]
Data = Annotated[
    list[Path] | None,
    typer.Option(help="Text files or a prepared directory, as for train; two_moons and digits need none."),
]
Out = Annotated[Path | None, typer.Option(help="Directory of the race; one that is there goes on.")]
HeldOut = Annotated[list[Path] | None, typer.Option(help="Files to measure on (default: a share of --data).")]
HeldOutTokens = Annotated[
    int | None, typer.Option(min=1, help="Held-out tokens that are measured, the first ones (default: 100,000).")
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Change the recipe: name=value.")]
Steps = Annotated[int | None, typer.Option(help="How many steps.")]
LookAt = Annotated[
    str, typer.Option("--look", metavar="0,100,…", help="Steps at which the geometry of each one's first seed is kept.")
]
DeviceName = Annotated[str | None, typer.Option(help="cpu, cuda, … (default: cuda where there is one).")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="On a GPU too, round alike each time: resumed, the same bytes; slower.")
]
Report = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Only tell what the race in DIR, or in a file of --logs, shows.")
]
LogFile = Annotated[
    Path | None,
    typer.Option("--logs", metavar="FILE", help="Keep the logs in one small file, which --report reads too."),
]
Joined = Annotated[
    Path | None,
    typer.Option(
        "--join", metavar="FILE", help="Go on with a race of which a file of --logs is left: it is not trained again."
    ),
]
Target = Annotated[float | None, typer.Option(help="Loss to count tokens to (default: the baseline's worst seed's).")]
Halves = Annotated[bool, typer.Option("--halves", help="Choose rates on half of the seeds, judge on the others.")]
Listed = Annotated[bool, typer.Option("--list", help="Show every entrant.")]


def race(
    recipe: Name = None,
    mechanisms: Mechanisms = "",
    seeds: Seeds = None,
    rates: Rates = "",
    screen: Screened = None,
    data: Data = None,
    out: Out = None,
    held_out: HeldOut = None,
    held_out_tokens: HeldOutTokens = None,
    settings: Settings = None,
    steps: Steps = None,
    look: LookAt = "",
    job: JobFile = None,
    device: DeviceName = None,
    deterministic: Deterministic = False,
    workers: Workers = None,
    address: Address = None,
    threads: Threads = None,
    report: Report = None,
    target: Target = None,
    halves: Halves = False,
    logs: LogFile = None,
    join: Joined = None,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    explain: Explain = False,
    listed: Listed = False,
) -> None:
    """Race ways to attend: the same budget, data order and start for each seed; who is ahead, behind, or cannot be told.

    Examples:  rheoscope race --list    ·    rheoscope race tiny --mechanisms metric,qk_norm --seeds 4 --data book.txt --out run
    ·    rheoscope race tiny --mechanisms metric --rates 1e-3,3e-3 --screen 4x50 --data book.txt --out run --workers 8
    ·    rheoscope race two_moons --mechanisms metric,tied --out moons
    ·    rheoscope race --job race.toml --out run    ·    rheoscope race --report run --html race.html
    ·    rheoscope race --job race.toml --join published.json --mechanisms metric --data book.txt --out run
    """
    from rheoscope.learn.race_report import asked, show_entrants, show_race, show_report

    if listed:
        show_entrants()
    elif report is not None and join is not None:
        raise typer.BadParameter(
            "--report trains nothing that could --join; type --report FILE for what a file of --logs holds"
        )
    elif report is not None:
        show_report(report, target, halves, logs, json, csv, html, explain)
    elif out is None or (job is None and (recipe is None or not mechanisms)):
        raise typer.BadParameter(
            "type rheoscope race RECIPE --mechanisms A,B --data FILE… --out DIR, --job FILE --out DIR, --report DIR, or --list"
        )
    else:
        typed = {
            "recipe": recipe, "mechanisms": _words(mechanisms), "seeds": seeds, "rates": _numbers(rates), "screen": screen, "data": data,
            "held_out": held_out, "held_out_tokens": held_out_tokens, "steps": steps, "look": look,
        }  # fmt: skip
        if show_race(asked(job, typed, settings or []), out, device, deterministic, workers, address, threads, join):
            show_report(out, target, halves, logs, json, csv, html, explain)


def _words(told: str) -> list[str]:
    return [word.strip() for word in told.split(",") if word.strip()]


def _numbers(told: str) -> list[float]:
    """Rates as a person types them.

    >>> _numbers("1e-3, 0.003"), _numbers("")
    ([0.001, 0.003], [])
    """
    try:
        return [float(word) for word in _words(told)]
    except ValueError as error:
        from rheoscope.shapes import RheoscopeError  # beside torch, which --help does not need

        raise RheoscopeError(f"rates are numbers, got {told!r}; type --rates 1e-3,3e-3") from error

"""The command `rheoscope race`: what is typed behind it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rheoscope.commands.options import Address, Csv, Explain, Html, Json, Threads, Workers

RecipeName = Annotated[str | None, typer.Argument(help="A recipe, before any option; see rheoscope train --list.")]
Mechanisms = Annotated[str, typer.Option(metavar="A,B,…", help="Who races against the baseline; see --list.")]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="Runs of each, paired: a seed is one data order and one start (default: 12).")
]
Rates = Annotated[str, typer.Option(metavar="A,B,…", help="Learning rates that each may choose from.")]
ScreenSize = Annotated[
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
OutDirectory = Annotated[Path | None, typer.Option(help="Directory of the race; one that is there goes on.")]
HeldOut = Annotated[list[Path] | None, typer.Option(help="Files to measure on (default: a share of --data).")]
HeldOutTokens = Annotated[
    int | None, typer.Option(min=1, help="Held-out tokens that are measured, the first ones (default: 100,000).")
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Change the recipe: name=value.")]
Steps = Annotated[int | None, typer.Option(help="How many steps.")]
ObservedSteps = Annotated[
    str, typer.Option("--look", metavar="0,100,…", help="Steps at which the geometry of each one's first seed is kept.")
]
DeviceName = Annotated[str | None, typer.Option(help="cpu, cuda, … (default: cuda where there is one).")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="On a GPU too, round alike each time: resumed, the same bytes; slower.")
]
ReportPath = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Only tell what the race in DIR, or in a file of --logs, shows.")
]
LogFile = Annotated[
    Path | None,
    typer.Option("--logs", metavar="FILE", help="Keep the logs in one small file, which --report reads too."),
]
JoinFile = Annotated[
    Path | None,
    typer.Option(
        "--join", metavar="FILE", help="Go on with a race of which a file of --logs is left: it is not trained again."
    ),
]
Target = Annotated[float | None, typer.Option(help="Loss to count tokens to (default: the baseline's worst seed's).")]
Halves = Annotated[bool, typer.Option("--halves", help="Choose rates on half of the seeds, judge on the others.")]
ListEntrants = Annotated[bool, typer.Option("--list", help="Show every entrant.")]


def race(
    recipe: RecipeName = None,
    mechanisms: Mechanisms = "",
    seeds: Seeds = None,
    rates: Rates = "",
    screen: ScreenSize = None,
    data: Data = None,
    out: OutDirectory = None,
    held_out: HeldOut = None,
    held_out_tokens: HeldOutTokens = None,
    settings: Settings = None,
    steps: Steps = None,
    look: ObservedSteps = "",
    job: JobFile = None,
    device: DeviceName = None,
    deterministic: Deterministic = False,
    workers: Workers = None,
    address: Address = None,
    threads: Threads = None,
    report: ReportPath = None,
    target: Target = None,
    halves: Halves = False,
    logs: LogFile = None,
    join: JoinFile = None,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    explain: Explain = False,
    listed: ListEntrants = False,
) -> None:
    """Race ways to attend: the same budget, data order and start for each seed; who is ahead, behind, or cannot be told.

    Examples:  rheoscope race --list    ·    rheoscope race tiny --mechanisms metric,qk_norm --seeds 4 --data book.txt --out run
    ·    rheoscope race tiny --mechanisms metric --rates 1e-3,3e-3 --screen 4x50 --data book.txt --out run --workers 8
    ·    rheoscope race two_moons --mechanisms metric,tied --out moons
    ·    rheoscope race --job race.toml --out run    ·    rheoscope race --report run --html race.html
    ·    rheoscope race --job race.toml --join published.json --mechanisms metric --data book.txt --out run
    """
    from rheoscope.learn.race_report import make_job, run_race_job, show_entrants, show_report

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
        options: dict[str, Any] = {"recipe": recipe, "seeds": seeds, "screen": screen, "steps": steps, "look": look}
        options |= {"mechanisms": _split_names(mechanisms), "rates": _parse_rates(rates), "data": data}
        options |= {"held_out": held_out, "held_out_tokens": held_out_tokens}
        if run_race_job(
            make_job(job, options, settings or []), out, device, deterministic, workers, address, threads, join
        ):
            show_report(out, target, halves, logs, json, csv, html, explain)


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _parse_rates(text: str) -> list[float]:
    """Rates as a person types them.

    >>> _parse_rates("1e-3, 0.003"), _parse_rates("")
    ([0.001, 0.003], [])
    """
    try:
        return [float(number) for number in _split_names(text)]
    except ValueError as error:
        from rheoscope.shapes import RheoscopeError  # beside torch, which --help does not need

        raise RheoscopeError(f"rates are numbers, got {text!r}; type --rates 1e-3,3e-3") from error

"""`rheoscope race run|report|list`: mechanisms trained under one budget, and who learns faster."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rheoscope.commands.command_group import CommandGroup
from rheoscope.commands.completion import complete_from, complete_list_from, entrant_names, recipe_names
from rheoscope.commands.option_groups import OutputOptions, WorkerOptions, with_option_groups
from rheoscope.commands.options import TrainingDevice, split_names
from rheoscope.commands.usage import UsageProblem
from rheoscope.commands.variadic_options import VariadicCommand
from rheoscope.messages.message import Message

race = typer.Typer(
    cls=CommandGroup,
    help="Race mechanisms under one budget: run, report, list.",
)

RecipeName = Annotated[
    str | None,
    typer.Argument(
        help="A recipe, before any option. rheoscope train --list names them.",
        autocompletion=complete_from(recipe_names),
    ),
]
Mechanisms = Annotated[
    str,
    typer.Option(
        metavar="A,B,…",
        help="Entrants that race against the baseline. rheoscope race list names them.",
        autocompletion=complete_list_from(entrant_names),
    ),
]
Entrants = Annotated[
    list[str] | None,
    typer.Option(
        "--entrant",
        metavar="PARTS",
        help="An entrant as its parts (projection=tied,scale=unit) or as a module of your own (my_attention.py:Mine). May be repeated.",
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, help="Paired runs of each entrant. A seed is one data order and one start (default: 12)."),
]
Rates = Annotated[str, typer.Option(metavar="A,B,…", help="Learning rates from which each entrant takes its best.")]
ScreenSize = Annotated[
    str | None,
    typer.Option("--screen", metavar="SEEDSxSTEPS", help="Choose the rates in a shorter race first, with other seeds."),
]
HasCurves = Annotated[
    bool,
    typer.Option(
        "--curves", help="Choose the rates from loss curves over --rates at full length, with four other seeds."
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=1, help="Stop in time; the same command continues. Packs run one by one."),
]
JobFile = Annotated[
    Path | None, typer.Option("--job", help="Read these settings from a TOML file. Typed options override it.")
]
Data = Annotated[
    list[Path] | None,
    typer.Option(help="Text files or a prepared directory, as for train. two_moons and digits need none."),
]
OutDirectory = Annotated[Path, typer.Option(help="Directory of the race. An existing race is resumed.")]
HeldOut = Annotated[list[Path] | None, typer.Option(help="Files for evaluation (default: a share of --data).")]
HeldOutTokens = Annotated[
    int | None, typer.Option(min=1, help="Evaluate on this many held-out tokens, from the start (default: 100,000).")
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Change the recipe by name=value.")]
Steps = Annotated[int | None, typer.Option(help="Number of training steps.")]
ObservedSteps = Annotated[
    str,
    typer.Option("--look", metavar="0,100,…", help="Steps at which the geometry of each first seed is stored."),
]
Deterministic = Annotated[
    bool,
    typer.Option("--deterministic", help="Round identically on a GPU, so that a resumed race is bit-equal. Slower."),
]
JoinFile = Annotated[
    Path | None,
    typer.Option("--join", metavar="FILE", help="Add entrants to a race from its --logs file, without retraining it."),
]
SaveDirectory = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Save the winner as a model that rheoscope and transformers open.")
]
RacePath = Annotated[Path, typer.Argument(help="The directory of a race, or a file written by --logs.")]
LogFile = Annotated[
    Path | None, typer.Option("--logs", metavar="FILE", help="Store the logs in one small file that report can read.")
]
Target = Annotated[
    float | None, typer.Option(help="Count tokens until this loss (default: that of the baseline's worst seed).")
]
Halves = Annotated[bool, typer.Option("--halves", help="Choose rates on half of the seeds and judge on the others.")]


@dataclass(frozen=True)
class RaceOptions:
    """The settings of a race. Those that are not typed come from the job file, or are the defaults."""

    recipe: RecipeName = None
    mechanisms: Mechanisms = ""
    entrant: Entrants = None
    seeds: Seeds = None
    rates: Rates = ""
    screen: ScreenSize = None
    curves: HasCurves = False
    data: Data = None
    held_out: HeldOut = None
    held_out_tokens: HeldOutTokens = None
    steps: Steps = None
    look: ObservedSteps = ""

    def to_mapping(self) -> dict[str, Any]:
        """The settings as a job file has them."""
        from rheoscope.learn.entrant_parts import split_entrants
        from rheoscope.learn.rate_curves import CURVE_SEEDS

        values = {name: value for name, value in asdict(self).items() if name != "entrant"}
        return values | {
            "mechanisms": [*split_entrants(self.mechanisms), *(self.entrant or [])],
            "rates": _parse_rates(self.rates),
            "curves": CURVE_SEEDS if self.curves else None,
        }


@dataclass(frozen=True)
class RunOptions:
    """How a race is run."""

    join_logs: JoinFile = None
    time_limit: Seconds = None
    save: SaveDirectory = None
    device: TrainingDevice = None
    deterministic: Deterministic = False


@race.command("run", cls=VariadicCommand)
@with_option_groups
def run_command(
    out: OutDirectory,
    settings: Settings = None,
    job: JobFile = None,
    *,
    options: RaceOptions,
    run: RunOptions,
    cluster: WorkerOptions,
) -> None:
    """Train every entrant with every seed, and print who is ahead. The same command resumes a stopped race.

    Examples:  rheoscope race run tiny --mechanisms metric,qk_norm --seeds 4 --data book.txt --out run
    ·    rheoscope race run tiny --mechanisms metric --rates 1e-3,3e-3 --screen 4x50 --data book.txt --out run --workers 8
    ·    rheoscope race run tiny --mechanisms tied --rates 5e-4,1e-3,2e-3,4e-3,8e-3 --curves --data book.txt --out run --time-limit 500
    ·    rheoscope race run tiny --entrant projection=tied,scale=unit,diagonal=no --entrant qk_norm --data book.txt --out run
    ·    rheoscope race run two_moons --mechanisms metric,tied --out moons    ·    rheoscope race run --job race.toml --out run
    ·    rheoscope race run --job race.toml --join published.json --mechanisms metric --data book.txt --out run
    """
    if job is None and (options.recipe is None or not (options.mechanisms or options.entrant)):
        raise UsageProblem(
            Message("a race needs a recipe and --mechanisms or --entrant, or --job"),
            "rheoscope race run RECIPE --mechanisms A,B --data FILE… --out DIR",
        )
    from rheoscope.learn.race_report import make_job, run_race_job, show_report

    race_job = make_job(job, options.to_mapping(), settings or [])
    if run_race_job(race_job, out, **asdict(run), **asdict(cluster)):
        show_report(out)


@race.command("report")
@with_option_groups
def report_command(
    path: RacePath,
    target: Target = None,
    halves: Halves = False,
    logs: LogFile = None,
    *,
    output: OutputOptions,
) -> None:
    """Report a race: who is ahead of the baseline, who is behind, and what is not resolved.

    Examples:  rheoscope race report run --html race.html    ·    rheoscope race report run --logs race.json --csv tables
    """
    from rheoscope.learn.race_report import show_report

    show_report(path, target, halves, logs, **asdict(output))


@race.command("list")
def list_command() -> None:
    """List every entrant and what it changes.

    Examples:  rheoscope race list
    """
    from rheoscope.learn.race_report import show_entrants

    show_entrants()


def _parse_rates(text: str) -> list[float]:
    """Learning rates as typed.

    >>> _parse_rates("1e-3, 0.003"), _parse_rates("")
    ([0.001, 0.003], [])
    """
    try:
        return [float(number) for number in split_names(text)]
    except ValueError as error:
        raise UsageProblem(
            Message("--rates takes numbers separated by commas, got {text!r}", text=text), "--rates 1e-3,3e-3"
        ) from error

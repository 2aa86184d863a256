"""What a race tells a person: a bar while it runs, one table, the same as JSON, CSV and a page."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.files import check_outputs, undone
from rheoscope.learn.curves import AHEAD, BEHIND, LEVEL
from rheoscope.learn.distributed_race import race_spread
from rheoscope.learn.entrants import BASELINE, ENTRANTS
from rheoscope.learn.race import Look, Race, Tell, Way, fitting, race
from rheoscope.learn.race_files import DATA, RACE, SCREEN, from_logs, screen_file, write_logs
from rheoscope.learn.race_job import Job, from_mapping, from_toml
from rheoscope.learn.race_result import FIELDS, looks, result, times
from rheoscope.learn.train_report import preparing
from rheoscope.learn.training_time import in_words
from rheoscope.messages.numbers import fixed, plural, short
from rheoscope.models.corpus_sources import check_data, task_for
from rheoscope.models.recipes import setting
from rheoscope.models.task import Task
from rheoscope.models.train import Place, placed
from rheoscope.picture.blocks import Cell, Table, cells
from rheoscope.ray_workers import how_many, set_threads
from rheoscope.report.console import console
from rheoscope.report.csv_files import check_tables, save_csv
from rheoscope.report.json_file import as_json, write_json
from rheoscope.report.progress_bars import asking_bar
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray

COLOURS = {AHEAD: "green", BEHIND: "red"}


def show_entrants() -> None:
    """What `rheoscope race --list` does."""
    rows = [cells([name, one.sentence]) for name, one in ENTRANTS.items()]
    terminal = Terminal(console(), [])
    terminal.show(Table("Entrants", cells(["entrant", "what it is"]), rows, frozenset({0, 1})))
    terminal.line(
        "NAME:parameters and NAME:flops have an FFN as wide as it takes to match the recipe's own model", "dim"
    )


def asked(job: Path | None, typed: Mapping[str, Any], settings: Sequence[str]) -> Job:
    """What a file says, and what was typed, which goes before."""
    told = {} if job is None else from_toml(job)
    given = {name: one for name, one in typed.items() if one}
    if "look" in given:
        from rheoscope.learn.geometry_over_training import marked

        given["look"] = marked(given["look"])
    return from_mapping(told | given | {"set": told.get("set", {}) | dict(setting(one) for one in settings)})


def show_race(
    job: Job,
    out: Path,
    device: str | None = None,
    deterministic: bool = False,
    workers: int | None = None,
    address: str | None = None,
    threads: int | None = None,
    join: Path | None = None,
) -> bool:
    """Prepare the data, race or go on racing, also where only logs are left; gives whether this process is the one that tells of it."""
    wanted, shorter = job.race(), job.shorter()
    wanted.packs()  # a name that is not known is told before anything is prepared
    check_data(job.recipe, [*job.data, *job.held_out])
    before = None if shorter is None else shorter.race(wanted)
    with placed(device) as place:
        with undone(out) if place.first else nullcontext(), preparing(place.first) as told:
            task, _ = task_for(job.recipe, wanted.recipe, job.data, job.held_out, out / DATA, place, told)
            if place.first and join is not None:
                begins = 0 if shorter is None else shorter.seeds
                from_logs(join, out, fitting(replace(wanted, first_seed=begins), task).told(task))
        many = how_many_workers(workers, address, device, place)

        def run(asked: Race, where: Path, tell: Tell, look: Look | None = None) -> None:
            if many:
                way = Way(deterministic=deterministic, look=look)
                race_spread(asked, task, where, many, address, threads, device, way, tell, _say)
            else:
                race(asked, task, where, device, deterministic=deterministic, tell=tell, say=_say, look=look)

        try:
            set_threads(None if many else threads)
            with racing(place.first) as tell:
                if shorter is not None and before is not None:
                    run(before, out / SCREEN, tell)
                    wanted = shorter.then(wanted, out / SCREEN)
                run(wanted, out, tell, looking(job.look, wanted, task) if job.look else None)
        except KeyboardInterrupt:
            _say(f"stopped; every turn that was finished is kept in {out}; type the same command to go on")
            raise SystemExit(130) from None
        return place.first


def looking(at: Sequence[int], wanted: Race, task: Task) -> Look:
    """Looks at the first seed of every entrant, kept in the folder of its pack, where `rheoscope learned` finds them."""
    from rheoscope.learn.geometry_over_training import Looks

    looks = Looks.of(at, Path(), task, wanted.recipe)
    return lambda folder, step, model: replace(looks, out=folder)(step, model)


def how_many_workers(workers: int | None, address: str | None, device: str | None, place: Place) -> int:
    """How many by Ray, 0 for none; under `torchrun` the processes are there already."""
    if place.world == 1:
        return how_many(workers, address, device)
    if workers or address:
        raise RheoscopeError("torchrun and Ray both share out a race; type --workers without torchrun, or leave it out")
    return 0


def show_report(
    out: Path,
    target: float | None = None,
    halves: bool = False,
    logs: Path | None = None,
    json: Path | None = None,
    csv: Path | None = None,
    html: Path | None = None,
    explain: bool = False,
) -> None:
    """One table in the terminal; every number as JSON, tables as CSV, curves as a page, logs as one small file."""
    screened = None if logs is None or not (out / SCREEN / RACE).exists() else screen_file(logs)
    check_outputs([path for path in (logs, screened, json, html) if path is not None], csv)
    if csv is not None:
        check_tables(csv)
    found, speeds = result(out, target, halves), times(out)
    terminal, said = Terminal(console(), [], explain), []
    for one in tables(found, speeds):
        terminal.show(one)
    if logs is not None:
        said.append(write_logs(out, logs))
    if screened is not None:
        said.append(write_logs(out / SCREEN, screened))
    if json is not None:
        said.append(write_json({"race": as_json(found), "tokens_per_second": speeds}, json))
    if csv is not None:
        said.append(save_csv({"race": found}, csv))
    if html is not None:
        from rheoscope.learn.race_page import page_of

        said.append(page_of(found, speeds, out.resolve().stem, looks(out)).save(html))
    terminal.files(said)


def tables(found: "xarray.Dataset", speeds: dict[str, float]) -> list[Table]:
    """Who is ahead, and where it was kept, how long it took."""
    return [table(found), *([speed_table(found, speeds)] if speeds else [])]


def table(found: "xarray.Dataset") -> Table:
    """An entrant a row: its loss, how far from the baseline, how sure, how soon."""
    heads = {
        "entrant": "", "rate": "best_rate", "loss": "final_loss", "difference": "difference", "95 % interval": "difference_low",
        "p": "p_holm", "verdict": "verdict", "tokens": "tokens_ratio", "FLOPs": "flops_ratio", "reached": "reached",
        "diverged": "diverged",
    }  # fmt: skip
    header = [Cell(name, FIELDS[field][1] if field else "") for name, field in heads.items()]
    rows = [_row(found, at) for at in range(found.sizes["entrant"])]
    told = found.attrs
    going = "" if told["steps"] == told["steps_planned"] else f" of {told['steps_planned']:,}, the race goes on"
    heading = f"Held-out loss after {told['steps']:,} steps{going}, {told['seeds']} seeds"
    return Table(heading, header, rows, frozenset({0, 6}), note=note(found))


def note(found: "xarray.Dataset") -> str:
    """How the table was made, in words."""
    told, rates = found.attrs, found.sizes["rate"]
    same = told["rates_chosen_on"] == told["judged_on"]
    chosen = "on the same seeds" if same else f"on seeds {told['rates_chosen_on']}, judged on seeds {told['judged_on']}"
    grid = f"each at the best of {rates} rates, chosen {chosen}; " if rates > 1 else ""
    ends = {float(found.rate.min()), float(found.rate.max())} if rates > 2 else set()
    at = {str(name): float(rate) for name, rate in zip(found.entrant.values, found.best_rate.values, strict=True)}
    outer = [name for name, rate in at.items() if rate in ends]
    apart = [name for name, rate in at.items() if rate != at[BASELINE]]
    others = plural(found.sizes["entrant"] - 1, "entrant")
    return (
        f"Differences are paired by seed, {grid}p after Holm's correction over {others}. tokens and FLOPs: "
        f"to a loss of {told['target']:.4f}, over the baseline's, median over seeds."
        + f" At an end of the grid, where a wider one might help: {', '.join(outer)}." * bool(outer)
        + f" At another rate than the baseline, so that a difference may be the rate's: {', '.join(apart)}."
        * bool(apart)
    )


def _row(found: "xarray.Dataset", at: int) -> list[Cell]:
    one = {str(name): field.values[at] for name, field in found.data_vars.items() if field.dims == ("entrant",)}
    base = at == 0
    ends = f"{fixed(one['difference_low'], 4, True)} to {fixed(one['difference_high'], 4, True)}"
    seeds = found.sizes["judged"]
    return [
        Cell(str(found.entrant.values[at]), style="bold"),
        Cell(f"{one['best_rate']:g}"),
        Cell(fixed(one["final_loss"], 4), small=f"±{fixed(one['final_sd'], 4)}"),
        Cell("" if base else fixed(one["difference"], 4, True)),
        Cell("" if base else ends),
        Cell("" if base else p_value(one["p_holm"])),
        Cell("baseline" if base else str(one["verdict"]), style=COLOURS.get(str(one["verdict"]), "")),
        Cell(_times(one["tokens_ratio"])),
        Cell(_times(one["flops_ratio"])),
        Cell(f"{one['reached']} of {seeds}"),
        Cell(str(one["diverged"] or "")),
    ]


def p_value(p: float) -> str:
    """A p value, short; where two digits would hide on which side of 5 % it lies, more.

    >>> p_value(0.3), p_value(0.0509), p_value(0.0496), p_value(0.002), p_value(float("nan"))
    ('.30', '.0509', '.0496', '0.002', 'none')
    """
    if p < 0.01:
        return f"{p:.1g}"
    return f"{p:.3g}".removeprefix("0") if round(p, 2) == LEVEL else short(p)


def _times(ratio: float) -> str:
    """How many times as much; never where it was not reached by half of the seeds; nothing where the baseline was there at once."""
    return "never" if ratio == float("inf") else "" if ratio != ratio else f"{fixed(ratio, 2)} ×"


def speed_table(found: "xarray.Dataset", speeds: dict[str, float]) -> Table:
    """Tokens a second of every entrant on this machine, and its time to the target, beside the baseline's."""
    base = speeds.get(BASELINE, float("nan"))
    soon = dict(zip(map(str, found.entrant.values), map(float, found.tokens_ratio.values), strict=True))
    rows = [
        [
            Cell(name, style="bold"),
            Cell(f"{speed:,.0f}"),
            Cell(_times(base / speed)),
            Cell(_times(soon[name] * base / speed)),
        ]
        for name, speed in speeds.items()
    ]
    header = cells(["entrant", "tokens/s, all seeds", "time of a step", "time to target"])
    return Table("How long it took here", header, rows, note="Of this machine, in turns; no part of --json's race.")


def _say(line: str) -> None:
    console(stderr=True).print(line, soft_wrap=True, markup=False)


@contextmanager
def racing(shown: bool) -> Iterator[Tell]:
    """Who is training, the rate and the time left: a bar on a terminal, a line now and then where stderr is a file or a pipe."""
    where, pace = console(stderr=True), Pace()
    if not shown:
        yield lambda tokens, total, what: None
    elif not where.is_terminal:
        with asking_bar("racing") as say:
            yield lambda tokens, total, what: say(f"{what}, {pace(tokens, total)},")(tokens, total)
    else:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn()
        with Progress(*columns, console=where, transient=True, refresh_per_second=4) as bars:
            bar = bars.add_task("racing", total=None)
            yield lambda tokens, total, what: bars.update(
                bar, completed=tokens, total=total, description=f"{what}, {pace(tokens, total)}"
            )


class Pace:
    """How fast a race is since it was first asked, and how long it will take at that pace.

    >>> pace = Pace()
    >>> pace(100, 1000), pace.told(100, 300, 1000, seconds=2.0)
    ('0 tokens/s', '100 tokens/s, 7 s left')
    """

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None

    def __call__(self, tokens: int, total: int) -> str:
        now = time.monotonic()
        self.first = self.first or (now, tokens)
        return self.told(self.first[1], tokens, total, now - self.first[0])

    @staticmethod
    def told(first: int, tokens: int, total: int, seconds: float) -> str:
        """From so many tokens to so many, of all, in seconds."""
        if tokens <= first or seconds <= 0:
            return "0 tokens/s"
        speed = (tokens - first) / seconds
        return f"{speed:,.0f} tokens/s, {in_words((total - tokens) / speed)} left"

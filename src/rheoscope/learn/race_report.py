"""What a race tells a person: a bar while it runs, one table, the same as JSON, CSV and a page."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.files import check_outputs, remove_created
from rheoscope.learn.curves import AHEAD, BEHIND, SIGNIFICANCE_LEVEL
from rheoscope.learn.distributed_race import run_distributed_race
from rheoscope.learn.entrants import BASELINE, ENTRANTS
from rheoscope.learn.race import OnProgress, PackObserver, TrainingMode, run_race, with_task_vocabulary
from rheoscope.learn.race_files import (
    DATA_FOLDER,
    RACE_FILE,
    SCREEN_FOLDER,
    restore_from_logs,
    screen_logs_file,
    write_logs,
)
from rheoscope.learn.race_job import Job, job_from_mapping, settings_from_toml
from rheoscope.learn.race_plan import Race
from rheoscope.learn.race_result import FIELDS, best_rate_observations, median_speeds, race_result
from rheoscope.learn.train_report import preparation_bar
from rheoscope.learn.training_time import format_duration
from rheoscope.messages.numbers import format_fixed, format_number, pluralise
from rheoscope.models.corpus_sources import check_data, load_task
from rheoscope.models.recipes import parse_setting
from rheoscope.models.task import Task
from rheoscope.models.train import Process, distributed_process
from rheoscope.picture.blocks import Cell, Table, to_cells
from rheoscope.ray_workers import set_threads, worker_count
from rheoscope.report.console import console
from rheoscope.report.csv_files import check_table_directory, save_csv
from rheoscope.report.json_file import dataset_to_json, write_json
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray

VERDICT_STYLES = {AHEAD: "green", BEHIND: "red"}


def show_entrants() -> None:
    """What `rheoscope race --list` does."""
    rows = [to_cells([name, entrant.sentence]) for name, entrant in ENTRANTS.items()]
    terminal = Terminal(console(), [])
    terminal.print_block(Table("Entrants", to_cells(["entrant", "what it is"]), rows, frozenset({0, 1})))
    terminal.print_line(
        "NAME:parameters and NAME:flops have an FFN as wide as it takes to match the recipe's own model", "dim"
    )


def make_job(job_file: Path | None, options: Mapping[str, Any], assignments: Sequence[str]) -> Job:
    """What a file says, and what was typed, which goes before."""
    file_settings = {} if job_file is None else settings_from_toml(job_file)
    typed_settings = {name: value for name, value in options.items() if value}
    if "look" in typed_settings:
        from rheoscope.learn.geometry_over_training import parse_steps

        typed_settings["look"] = parse_steps(typed_settings["look"])
    return job_from_mapping(
        file_settings
        | typed_settings
        | {"set": file_settings.get("set", {}) | dict(parse_setting(assignment) for assignment in assignments)}
    )


def run_race_job(
    job: Job,
    out: Path,
    device: str | None = None,
    deterministic: bool = False,
    workers: int | None = None,
    address: str | None = None,
    threads: int | None = None,
    join_logs: Path | None = None,
) -> bool:
    """Prepare the data, race or go on racing, also where only logs are left; gives whether this process is the one that tells of it."""
    full_race, screen = job.build_race(), job.build_screen()
    full_race.packs()  # a name that is not known is told before anything is prepared
    check_data(job.recipe, [*job.data, *job.held_out])
    screening_race = None if screen is None else screen.screening_race(full_race)
    with distributed_process(device) as process:
        with remove_created(out) if process.is_first else nullcontext(), preparation_bar(process.is_first) as on_stage:
            task, _ = load_task(
                job.recipe, full_race.recipe, job.data, job.held_out, out / DATA_FOLDER, process, on_stage
            )
            if process.is_first and join_logs is not None:
                first_seed = 0 if screen is None else screen.seeds
                restore_from_logs(
                    join_logs, out, with_task_vocabulary(replace(full_race, first_seed=first_seed), task).to_json(task)
                )
        n_workers = ray_worker_count(workers, address, device, process)

        def run(race: Race, folder: Path, on_progress: OnProgress, observe: PackObserver | None = None) -> None:
            if n_workers:
                mode = TrainingMode(deterministic=deterministic, observe=observe)
                run_distributed_race(race, task, folder, n_workers, address, threads, device, mode, on_progress, _log)
            else:
                run_race(
                    race,
                    task,
                    folder,
                    device,
                    deterministic=deterministic,
                    on_progress=on_progress,
                    log=_log,
                    observe=observe,
                )

        try:
            set_threads(None if n_workers else threads)
            with race_progress(process.is_first) as on_progress:
                if screen is not None and screening_race is not None:
                    run(screening_race, out / SCREEN_FOLDER, on_progress)
                    full_race = screen.main_race(full_race, out / SCREEN_FOLDER)
                run(full_race, out, on_progress, make_observer(job.look, full_race, task) if job.look else None)
        except KeyboardInterrupt:
            _log(f"stopped; every turn that was finished is kept in {out}; type the same command to go on")
            raise SystemExit(130) from None
        return process.is_first


def make_observer(steps: Sequence[int], race: Race, task: Task) -> PackObserver:
    """Looks at the first seed of every entrant, kept in the folder of its pack, where `rheoscope learned` finds them."""
    from rheoscope.learn.geometry_over_training import GeometryObserver

    observer = GeometryObserver.from_task(steps, Path(), task, race.recipe)
    return lambda folder, step, model: replace(observer, out=folder)(step, model)


def ray_worker_count(workers: int | None, address: str | None, device: str | None, process: Process) -> int:
    """How many by Ray, 0 for none; under `torchrun` the processes are there already."""
    if process.world_size == 1:
        return worker_count(workers, address, device)
    if workers or address:
        raise RheoscopeError("torchrun and Ray both share out a race; type --workers without torchrun, or leave it out")
    return 0


def show_report(
    race_path: Path,
    target: float | None = None,
    halves: bool = False,
    logs: Path | None = None,
    json: Path | None = None,
    csv: Path | None = None,
    html: Path | None = None,
    explain: bool = False,
) -> None:
    """One table in the terminal; every number as JSON, tables as CSV, curves as a page, logs as one small file."""
    screen_logs = (
        None if logs is None or not (race_path / SCREEN_FOLDER / RACE_FILE).exists() else screen_logs_file(logs)
    )
    check_outputs([path for path in (logs, screen_logs, json, html) if path is not None], csv)
    if csv is not None:
        check_table_directory(csv)
    result, speeds = race_result(race_path, target, halves), median_speeds(race_path)
    terminal, file_messages = Terminal(console(), [], explain), []
    for block in report_tables(result, speeds):
        terminal.print_block(block)
    if logs is not None:
        file_messages.append(write_logs(race_path, logs))
    if screen_logs is not None:
        file_messages.append(write_logs(race_path / SCREEN_FOLDER, screen_logs))
    if json is not None:
        file_messages.append(write_json({"race": dataset_to_json(result), "tokens_per_second": speeds}, json))
    if csv is not None:
        file_messages.append(save_csv({"race": result}, csv))
    if html is not None:
        from rheoscope.learn.race_page import build_page

        file_messages.append(
            build_page(result, speeds, race_path.resolve().stem, best_rate_observations(race_path)).save(html)
        )
    terminal.print_files(file_messages)


def report_tables(result: "xarray.Dataset", speeds: dict[str, float]) -> list[Table]:
    """Who is ahead, and where it was kept, how long it took."""
    return [entrant_table(result), *([speed_table(result, speeds)] if speeds else [])]


def entrant_table(result: "xarray.Dataset") -> Table:
    """An entrant a row: its loss, how far from the baseline, how sure, how soon."""
    field_by_column = {
        "entrant": "", "rate": "best_rate", "loss": "final_loss", "difference": "difference", "95 % interval": "difference_low",
        "p": "p_holm", "verdict": "verdict", "tokens": "tokens_ratio", "FLOPs": "flops_ratio", "reached": "reached",
        "diverged": "diverged",
    }  # fmt: skip
    header = [Cell(name, FIELDS[field][1] if field else "") for name, field in field_by_column.items()]
    rows = [_entrant_cells(result, index) for index in range(result.sizes["entrant"])]
    attributes = result.attrs
    progress_note = (
        ""
        if attributes["steps"] == attributes["steps_planned"]
        else f" of {attributes['steps_planned']:,}, the race goes on"
    )
    heading = f"Held-out loss after {attributes['steps']:,} steps{progress_note}, {attributes['seeds']} seeds"
    return Table(heading, header, rows, frozenset({0, 6}), note=table_note(result))


def table_note(result: "xarray.Dataset") -> str:
    """How the table was made, in words."""
    attributes, n_rates = result.attrs, result.sizes["rate"]
    same_seeds = attributes["rates_chosen_on"] == attributes["judged_on"]
    seeds_text = (
        "on the same seeds"
        if same_seeds
        else f"on seeds {attributes['rates_chosen_on']}, judged on seeds {attributes['judged_on']}"
    )
    rates_text = f"each at the best of {n_rates} rates, chosen {seeds_text}; " if n_rates > 1 else ""
    grid_ends = {float(result.rate.min()), float(result.rate.max())} if n_rates > 2 else set()
    rate_by_entrant = {
        str(name): float(rate) for name, rate in zip(result.entrant.values, result.best_rate.values, strict=True)
    }
    at_grid_end = [name for name, rate in rate_by_entrant.items() if rate in grid_ends]
    at_other_rate = [name for name, rate in rate_by_entrant.items() if rate != rate_by_entrant[BASELINE]]
    entrants_text = pluralise(result.sizes["entrant"] - 1, "entrant")
    return (
        f"Differences are paired by seed, {rates_text}p after Holm's correction over {entrants_text}. tokens and FLOPs: "
        f"to a loss of {attributes['target']:.4f}, over the baseline's, median over seeds."
        + f" At an end of the grid, where a wider one might help: {', '.join(at_grid_end)}." * bool(at_grid_end)
        + f" At another rate than the baseline, so that a difference may be the rate's: {', '.join(at_other_rate)}."
        * bool(at_other_rate)
    )


def _entrant_cells(result: "xarray.Dataset", index: int) -> list[Cell]:
    values = {
        str(name): variable.values[index]
        for name, variable in result.data_vars.items()
        if variable.dims == ("entrant",)
    }
    is_baseline = index == 0
    interval_text = (
        f"{format_fixed(values['difference_low'], 4, True)} to {format_fixed(values['difference_high'], 4, True)}"
    )
    n_seeds = result.sizes["judged"]
    return [
        Cell(str(result.entrant.values[index]), style="bold"),
        Cell(f"{values['best_rate']:g}"),
        Cell(format_fixed(values["final_loss"], 4), small_text=f"±{format_fixed(values['final_sd'], 4)}"),
        Cell("" if is_baseline else format_fixed(values["difference"], 4, True)),
        Cell("" if is_baseline else interval_text),
        Cell("" if is_baseline else format_p_value(values["p_holm"])),
        Cell(
            "baseline" if is_baseline else str(values["verdict"]), style=VERDICT_STYLES.get(str(values["verdict"]), "")
        ),
        Cell(_format_ratio(values["tokens_ratio"])),
        Cell(_format_ratio(values["flops_ratio"])),
        Cell(f"{values['reached']} of {n_seeds}"),
        Cell(str(values["diverged"] or "")),
    ]


def format_p_value(p: float) -> str:
    """A p value, short; where two digits would hide on which side of 5 % it lies, more.

    >>> format_p_value(0.3), format_p_value(0.0509), format_p_value(0.0496), format_p_value(0.002), format_p_value(float("nan"))
    ('.30', '.0509', '.0496', '0.002', 'none')
    """
    if p < 0.01:
        return f"{p:.1g}"
    return f"{p:.3g}".removeprefix("0") if round(p, 2) == SIGNIFICANCE_LEVEL else format_number(p)


def _format_ratio(ratio: float) -> str:
    """How many times as much; never where it was not reached by half of the seeds; nothing where the baseline was there at once."""
    return "never" if ratio == float("inf") else "" if ratio != ratio else f"{format_fixed(ratio, 2)} ×"


def speed_table(result: "xarray.Dataset", speeds: dict[str, float]) -> Table:
    """Tokens a second of every entrant on this machine, and its time to the target, beside the baseline's."""
    baseline_speed = speeds.get(BASELINE, float("nan"))
    tokens_ratio = dict(zip(map(str, result.entrant.values), map(float, result.tokens_ratio.values), strict=True))
    rows = [
        [
            Cell(name, style="bold"),
            Cell(f"{speed:,.0f}"),
            Cell(_format_ratio(baseline_speed / speed)),
            Cell(_format_ratio(tokens_ratio[name] * baseline_speed / speed)),
        ]
        for name, speed in speeds.items()
    ]
    header = to_cells(["entrant", "tokens/s, all seeds", "time of a step", "time to target"])
    return Table("How long it took here", header, rows, note="Of this machine, in turns; no part of --json's race.")


def _log(line: str) -> None:
    console(stderr=True).print(line, soft_wrap=True, markup=False)


@contextmanager
def race_progress(visible: bool) -> Iterator[OnProgress]:
    """Who is training, the rate and the time left: a bar on a terminal, a line now and then where stderr is a file or a pipe."""
    stderr_console, pace = console(stderr=True), PaceEstimate()
    if not visible:
        yield lambda tokens, total, pack_name: None
    elif not stderr_console.is_terminal:
        with progress_bar("racing") as start_task:
            yield lambda tokens, total, pack_name: start_task(f"{pack_name}, {pace(tokens, total)},")(tokens, total)
    else:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn()
        with Progress(*columns, console=stderr_console, transient=True, refresh_per_second=4) as display:
            task_id = display.add_task("racing", total=None)
            yield lambda tokens, total, pack_name: display.update(
                task_id, completed=tokens, total=total, description=f"{pack_name}, {pace(tokens, total)}"
            )


class PaceEstimate:
    """How fast a race is since it was first asked, and how long it will take at that pace.

    >>> pace = PaceEstimate()
    >>> pace(100, 1000), pace.format_pace(100, 300, 1000, seconds=2.0)
    ('0 tokens/s', '100 tokens/s, 7 s left')
    """

    def __init__(self) -> None:
        self.start: tuple[float, int] | None = None

    def __call__(self, tokens: int, total: int) -> str:
        now = time.monotonic()
        self.start = self.start or (now, tokens)
        return self.format_pace(self.start[1], tokens, total, now - self.start[0])

    @staticmethod
    def format_pace(start_tokens: int, tokens: int, total: int, seconds: float) -> str:
        """From so many tokens to so many, of all, in seconds."""
        if tokens <= start_tokens or seconds <= 0:
            return "0 tokens/s"
        speed = (tokens - start_tokens) / seconds
        return f"{speed:,.0f} tokens/s, {format_duration((total - tokens) / speed)} left"

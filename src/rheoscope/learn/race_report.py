"""The commands of a race: run it with a progress bar, and report it as a table, JSON, CSV and a page."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from rheoscope.files import check_outputs, remove_created
from rheoscope.learn.distributed_race import run_distributed_race
from rheoscope.learn.entrant_parts import describe_parts
from rheoscope.learn.entrants import ENTRANTS, TRAINING_SETTINGS
from rheoscope.learn.geometry_over_training import GeometryObserver, parse_steps
from rheoscope.learn.own_entrants import is_own_entrant
from rheoscope.learn.race import OnProgress, PackObserver, TrainingMode, run_race, with_task_vocabulary
from rheoscope.learn.race_files import (
    DATA_FOLDER,
    RATE_FOLDERS,
    is_race,
    rate_race,
    restore_from_logs,
    write_logs,
)
from rheoscope.learn.race_job import Job, job_from_mapping, settings_from_toml
from rheoscope.learn.race_page import build_page
from rheoscope.learn.race_plan import Race
from rheoscope.learn.race_result import best_rate_observations, median_speeds, race_result
from rheoscope.learn.race_tables import report_tables
from rheoscope.learn.race_winner import check_can_save, save_winner
from rheoscope.learn.time_limit import TimeLimit
from rheoscope.learn.train_report import preparation_bar
from rheoscope.learn.training_time import format_duration
from rheoscope.messages.advice import Advice
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.models.corpus_sources import check_data, load_task
from rheoscope.models.penalty import PENALTIES
from rheoscope.models.recipes import parse_setting
from rheoscope.models.task import Task
from rheoscope.models.train import Process, distributed_process
from rheoscope.picture.blocks import Table, to_cells
from rheoscope.ray_workers import set_threads, worker_count
from rheoscope.report.console import console
from rheoscope.report.csv_files import check_table_directory, save_csv
from rheoscope.report.json_file import dataset_to_json, write_json
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError


def show_entrants() -> None:
    """Print the parts of entrants, and the combinations that have a short name."""
    rows = [to_cells([name, entrant.description]) for name, entrant in ENTRANTS.items()]
    header = to_cells([Message("entrant"), Message("description")])
    part_rows = [to_cells([f"{part}={value}", description]) for part, value, description in describe_parts()]
    part_header = to_cells([Message("part"), Message("description")])
    terminal = Terminal(console(), [])
    terminal.print_block(Table(Message("Parts"), part_header, part_rows, frozenset({0, 1})))
    terminal.print_line(
        Message(
            "Parts combine with commas, as in --entrant projection=tied,scale=unit,diagonal=no. "
            "The first value of each part is the baseline's."
        ),
        "dim",
    )
    terminal.print_block(Table(Message("Entrants with short names"), header, rows, frozenset({0, 1})))
    terminal.print_line(
        Message("NAME:parameters and NAME:flops have the FFN width that matches the size of the recipe's own model."),
        "dim",
    )
    terminal.print_line(
        Message(
            "NAME+residual=0.1 adds a penalty to the loss ({penalties}). NAME+weight_decay=0.3 changes a setting of the "
            "training ({settings}). Several may follow each other.",
            penalties=", ".join(PENALTIES),
            settings=", ".join(TRAINING_SETTINGS),
        ),
        "dim",
    )


def make_job(job_file: Path | None, options: Mapping[str, Any], assignments: Sequence[str]) -> Job:
    """A job from a file and from typed options. Typed options take precedence."""
    file_settings = {} if job_file is None else settings_from_toml(job_file)
    typed_settings = {name: value for name, value in options.items() if value}
    if "look" in typed_settings:
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
    time_limit: float | None = None,
    save: Path | None = None,
) -> bool:
    """Prepare the data, then start or continue the race. Returns whether this process prints the report.

    With `join_logs`, finished packs are restored from a file of logs. With a `time_limit` in seconds, packs are trained
    one after another, and the race stops before an interval that would end too late. `save` is the directory of the winner.
    """
    full_race, choice, limit = job.build_race(), job.build_rate_choice(), TimeLimit.of_seconds(time_limit)
    _check_race(job, full_race, save)
    with distributed_process(device) as process:
        with remove_created(out) if process.is_first else nullcontext(), preparation_bar(process.is_first) as on_stage:
            task, tokenizer = load_task(
                job.recipe, full_race.recipe, job.data, job.held_out, out / DATA_FOLDER, process, on_stage
            )
            if process.is_first and join_logs is not None:
                first_seed = 0 if choice is None else choice.seeds
                restore_from_logs(
                    join_logs, out, with_task_vocabulary(replace(full_race, first_seed=first_seed), task).to_json(task)
                )
        n_workers = ray_worker_count(workers, address, device, process)
        if n_workers and any(map(is_own_entrant, job.mechanisms)):
            raise RheoscopeError(Message("Ray workers cannot import an entrant from a file"), Advice("", "--workers 0"))

        def run(race: Race, folder: Path, observe: PackObserver | None = None) -> bool:
            sequential = time_limit is not None or folder != out
            mode = TrainingMode(deterministic=deterministic, observe=observe, sequential=sequential)
            if n_workers:
                return run_distributed_race(
                    race, task, folder, n_workers, address, threads, device, mode, on_progress, _log, limit
                )
            return run_race(race, task, folder, device, mode, on_progress, _log, limit)

        try:
            set_threads(None if n_workers else threads)
            with race_progress(process.is_first) as on_progress:
                race = full_race if choice is None else choice.choose_rates(full_race, out, run)
                is_finished = race is not None and run(
                    race, out, make_observer(job.look, race, task) if job.look else None
                )
        except KeyboardInterrupt:
            _log(_continue_later(out))
            raise SystemExit(130) from None
        if not is_finished and process.is_first:
            _log(_continue_later(out))
        if save is not None and race is not None and process.is_first and is_finished:
            _log(save_winner(with_task_vocabulary(race, task).packs(), out, tokenizer, save))
        return process.is_first and is_finished


def _check_race(job: Job, race: Race, save: Path | None) -> None:
    """Raise for what a race cannot do before any data is prepared: an unknown entrant, missing data, unsuitable rates or sizes."""
    race.packs()
    check_data(job.recipe, [*job.data, *job.held_out])
    if save is not None:
        check_can_save(job.mechanisms, race.recipe.config.form, save)
    choice = job.build_rate_choice()
    if choice is not None:
        choice.first_race(race)


def _continue_later(out: Path) -> Message:
    return Message("stopped; {out} keeps all finished intervals; run the same command to continue", out=str(out))


def make_observer(steps: Sequence[int], race: Race, task: Task) -> PackObserver:
    """An observer of every entrant's first seed.

    Observations are stored in the folder of the pack, where `rheoscope learned` finds them.
    """
    observer = GeometryObserver.from_task(steps, Path(), task, race.recipe)
    return lambda folder, step, model: replace(observer, out=folder)(step, model)


def ray_worker_count(workers: int | None, address: str | None, device: str | None, process: Process) -> int:
    """The number of Ray workers, 0 for none. Under `torchrun` the processes already exist."""
    if process.world_size == 1:
        return worker_count(workers, address, device)
    if workers or address:
        raise RheoscopeError(
            Message("--workers and --address use Ray, which cannot be combined with torchrun"),
            Advice("", "--workers 0"),
        )
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
    """Print the tables of a race without running it. Optionally write JSON, CSV, a page and the logs in one file."""
    logs_files = {} if logs is None else {race_path: logs} | _rate_race_logs(race_path, logs)
    check_outputs([path for path in (*logs_files.values(), json, html) if path is not None], csv)
    if csv is not None:
        check_table_directory(csv)
    result, speeds = race_result(race_path, target, halves), median_speeds(race_path)
    terminal = Terminal(console(), [], explain)
    for block in report_tables(result, speeds):
        terminal.print_block(block)
    file_messages = [write_logs(path, logs_file) for path, logs_file in logs_files.items()]
    if json is not None:
        file_messages.append(write_json({"race": dataset_to_json(result), "tokens_per_second": speeds}, json))
    if csv is not None:
        file_messages.append(save_csv({"race": result}, csv))
    if html is not None:
        file_messages.append(
            build_page(result, speeds, race_path.resolve().stem, best_rate_observations(race_path)).save(html)
        )
    terminal.print_files(file_messages)


def _rate_race_logs(race_path: Path, logs_file: Path) -> dict[Path, Path]:
    """The races that chose the rates, and the files for their logs next to `logs_file`."""
    races = {rate_race(race_path, name): rate_race(logs_file, name) for name in RATE_FOLDERS}
    return {path: file for path, file in races.items() if is_race(path)}


def _log(line: str) -> None:
    console(stderr=True).print(render(line), soft_wrap=True, markup=False)


@contextmanager
def race_progress(visible: bool) -> Iterator[OnProgress]:
    """Show the current pack, the speed and the time left: a bar on a terminal, otherwise a line every few seconds."""
    stderr_console, pace = console(stderr=True), PaceEstimate()
    if not visible:
        yield lambda tokens, total, pack_name: None
    elif not stderr_console.is_terminal:
        with progress_bar(Message("training")) as start_task:
            yield lambda tokens, total, pack_name: start_task(_progress_text(pack_name, pace(tokens, total)))(
                tokens, total
            )
    else:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn()
        with Progress(*columns, console=stderr_console, transient=True, refresh_per_second=4) as display:
            task_id = display.add_task(render(Message("training")), total=None)
            yield lambda tokens, total, pack_name: display.update(
                task_id,
                completed=tokens,
                total=total,
                description=render(_progress_text(pack_name, pace(tokens, total))),
            )


def _progress_text(pack_name: str, pace: Message) -> Message:
    return Message("{pack} ({pace})", pack=pack_name, pace=pace)


class PaceEstimate:
    """The speed of a race since the first call and the time left at that speed.

    The estimate starts anew with every total, because the curves and the main race count their own tokens.

    >>> pace = PaceEstimate()
    >>> pace(100, 1000), pace.format_pace(100, 300, 1000, seconds=2.0)
    ('0 tokens/s', '100 tokens/s, 7 s left')
    """

    def __init__(self) -> None:
        self.start: tuple[float, int, int] | None = None

    def __call__(self, tokens: int, total: int) -> Message:
        now = time.monotonic()
        if self.start is None or self.start[2] != total:
            self.start = (now, tokens, total)
        return self.format_pace(self.start[1], tokens, total, now - self.start[0])

    @staticmethod
    def format_pace(start_tokens: int, tokens: int, total: int, seconds: float) -> Message:
        """The speed from `start_tokens` to `tokens`, and the time left to `total`."""
        if tokens <= start_tokens or seconds <= 0:
            return Message("{speed:,.0f} tokens/s", speed=0)
        speed = (tokens - start_tokens) / seconds
        duration = format_duration((total - tokens) / speed)
        return Message("{speed:,.0f} tokens/s, {duration} left", speed=speed, duration=duration)

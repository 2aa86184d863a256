"""What a corpus run tells a person: a bar with rate, time left and rejects; how far it is; what a question found."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import Hear, Progress, drive, here
from rheoscope.corpus.merged_summary import counts
from rheoscope.corpus.parquet_tables import parquet
from rheoscope.corpus.query import connected, tables_of
from rheoscope.corpus.shards import done, files_of_table, opened, shards_of
from rheoscope.ray_workers import how_many, set_threads
from rheoscope.report.console import console
from rheoscope.report.tables import csv_text
from rheoscope.shapes import RheoscopeError


def run(job: Job, folder: Path, workers: int | None, address: str | None, threads: int | None) -> None:
    """A run with a bar; stopped, it says how to go on."""
    try:
        with _bar() as hear:
            progress = drive(job, folder, _engine(job, workers, address, threads), hear)
    except KeyboardInterrupt:
        raise RheoscopeError(
            f"stopped; {len(done(folder))} shards are there and whole; type rheoscope corpus resume {folder}"
        ) from None
    told = counts(folder)
    print(
        f"{folder}: {_several(progress.done, 'shard')}, {_several(told['texts'], 'text')}, {told['tokens']:,} tokens, "
        f"{_several(told['rejects'], 'reject')}"
        f"{_rate(progress)}; type rheoscope corpus report {folder}"
    )


def _several(count: int, what: str) -> str:
    """1 shard, 2,000 shards."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _engine(job: Job, workers: int | None, address: str | None, threads: int | None) -> Any:
    """This process, or Ray."""
    wanted = how_many(workers, address, job.device)
    if wanted:
        from rheoscope.corpus.distributed_run import spread

        return partial(spread, workers=wanted, address=address, threads=threads)
    set_threads(threads)
    return here


def _rate(progress: Progress) -> str:
    return f", {progress.tokens / progress.seconds:,.0f} tokens/s" if progress.tokens else ""


@contextmanager
def _bar() -> Iterator[Hear]:
    """On a terminal a bar with rate, time left and rejects; nothing where stderr is a file or a pipe."""
    where = console(stderr=True)
    if not where.is_terminal:
        yield lambda progress: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    told = TextColumn("{task.description}", markup=False)
    with Bars(told, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=where, transient=True) as bars:
        bar = bars.add_task("corpus: opening", total=None)

        def hear(progress: Progress) -> None:
            said = f"corpus: {progress.tokens:,} tokens{_rate(progress)}, {progress.rejects:,} rejects"
            bars.update(bar, description=said, completed=progress.done, total=progress.shards)

        yield hear


def show_status(folder: Path) -> None:
    """How far a run is, and the reasons of its rejects, the most frequent first."""
    held, there, shards, told = opened(folder), done(folder), shards_of(folder), counts(folder)
    whole = _several(len(shards), "shard")
    print(f"{folder}: {len(there)} of {whole}, {_several(told['texts'], 'text')}, {told['tokens']:,} tokens")
    print(f"model {held.job.model or 'the default model'} ({held.model['weights']}), {', '.join(held.job.analyses)}")
    reasons: Counter[str] = Counter()
    for file in files_of_table(folder, "rejects"):
        rows = parquet().read_table(file, columns=["analysis", "reason"]).to_pylist()
        reasons.update(": ".join(part for part in (row["analysis"], row["reason"]) if part) for row in rows)
    print(f"{sum(reasons.values()):,} rejects" + ("" if not reasons else ", the most frequent:"))
    for reason, count in reasons.most_common(5):
        print(f"  {count:,} x {reason}")
    if len(there) < len(shards):
        print(f"type rheoscope corpus resume {folder}")


def show_query(folder: Path, sql: str, csv: Path | None) -> None:
    """What a question in SQL finds; without one, what can be asked."""
    if not sql:
        for name, columns in tables_of(folder).items():
            print(f"{name}: {', '.join(columns)}")
        return
    found = connected(folder).ask(sql)
    if csv is None:
        print(found)
        return
    from rheoscope.files import write_file

    print(write_file(csv, lambda path: path.write_text(csv_text(found.df()), encoding="utf-8")))

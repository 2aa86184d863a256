"""The commands of a corpus run: run it with a progress bar, show its status, and query it."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rheoscope.corpus.commit_records import finished_shards, total_counts
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import CorpusProgress, OnProgress, local_engine, run_job
from rheoscope.corpus.distributed_run import ray_engine
from rheoscope.corpus.file_faults import raise_for_faults
from rheoscope.corpus.parquet_tables import import_parquet
from rheoscope.corpus.query import connect, rejected_query, table_columns
from rheoscope.corpus.run_files import RunFiles, find_faults
from rheoscope.files import write_file
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message, join, plural
from rheoscope.ray_workers import set_threads, worker_count
from rheoscope.report.console import console
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.tables import csv_text
from rheoscope.shapes import RheoscopeError

OPENING = Message("opening the corpus")


def run_corpus(job: Job, folder: Path, workers: int | None, address: str | None, threads: int | None) -> None:
    """Run a job with a progress bar. If interrupted, print how to resume."""
    try:
        with _progress_bar() as on_progress:
            progress = run_job(job, folder, _make_engine(job, workers, address, threads), on_progress)
    except KeyboardInterrupt:
        line = plural(
            "stopped, {n} shard is complete; type rheoscope corpus resume {folder}",
            "stopped, {n} shards are complete; type rheoscope corpus resume {folder}",
            n=len(finished_shards(folder)),
            folder=shlex.quote(str(folder)),
        )
        print(f"rheoscope: {render(line)}", file=sys.stderr)
        raise SystemExit(130) from None
    files = RunFiles(folder)
    totals = total_counts(files.records)
    if not totals["texts"]:
        raise _no_texts_error(files)
    counts: list[str] = [
        plural("{n:,} shard", "{n:,} shards", n=progress.shards_done),
        _texts_count(totals["texts"]),
        _tokens_count(totals["tokens"]),
        _rejects_count(totals["rejects"]),
        *_speed(progress),
    ]
    _print(
        Message(
            "{folder}: {counts}; type rheoscope corpus report {folder}", folder=str(folder), counts=join(", ", counts)
        )
    )


def _texts_count(n: int) -> Message:
    return plural("{n:,} text", "{n:,} texts", n=n)


def _tokens_count(n: int) -> Message:
    return plural("{n:,} token", "{n:,} tokens", n=n)


def _rejects_count(n: int) -> Message:
    return plural("{n:,} reject", "{n:,} rejects", n=n)


def _print(line: str) -> None:
    print(render(line))


def _make_engine(job: Job, workers: int | None, address: str | None, threads: int | None) -> Any:
    """An engine of this process, or of Ray workers."""
    n_workers = worker_count(workers, address, job.device)
    if n_workers:
        return partial(ray_engine, workers=n_workers, address=address, threads=threads)
    set_threads(threads)
    return local_engine


def _speed(progress: CorpusProgress) -> list[Message]:
    """The speed, if any token was processed."""
    if not progress.tokens:
        return []
    return [Message("{speed:,.0f} tokens/s", speed=progress.tokens / progress.seconds)]


def _progress_text(progress: CorpusProgress) -> Message:
    return join(", ", [_tokens_count(progress.tokens), *_speed(progress), _rejects_count(progress.rejects)])


@contextmanager
def _progress_bar() -> Iterator[OnProgress]:
    """Speed, rejects and the share done: a bar on a terminal, a line every ten seconds in a file or a pipe."""
    stderr_console = console(stderr=True)
    if not stderr_console.is_terminal:
        with progress_bar(OPENING) as start_task:
            yield lambda progress: start_task(_progress_text(progress))(progress.shards_done, progress.shards)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    description_column = TextColumn("{task.description}", markup=False)
    with RichProgress(
        description_column,
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=stderr_console,
        transient=True,
    ) as display:
        task_id = display.add_task(render(OPENING), total=None)

        def on_progress(progress: CorpusProgress) -> None:
            display.update(
                task_id,
                description=render(_progress_text(progress)),
                completed=progress.shards_done,
                total=progress.shards,
            )

        yield on_progress


def show_status(folder: Path, deep: bool = False) -> None:
    """Print the progress of a run and the most frequent reasons for rejects.

    A damaged file is an error. `deep` compares every file with its digest first.
    """
    if deep:
        raise_for_faults(folder, find_faults(folder))
    files = RunFiles(folder)
    manifest, totals, n_finished = files.manifest, total_counts(files.records), len(files.records)
    counts: list[str] = [
        plural("{done:,} of {n:,} shard", "{done:,} of {n:,} shards", n=manifest.shards, done=n_finished),
        _texts_count(totals["texts"]),
        _tokens_count(totals["tokens"]),
    ]
    _print(Message("{folder}: {counts}", folder=str(folder), counts=join(", ", counts)))
    _print(
        Message(
            "model {model} ({weights}), analyses {analyses}",
            model=manifest.job.model or Message("the default model"),
            weights=manifest.model["weights"],
            analyses=", ".join(manifest.job.analyses),
        )
    )
    reasons = _reject_reasons(files)
    _print(
        plural("{n:,} reject:", "{n:,} rejects, most frequent first:", n=totals["rejects"])
        if reasons
        else _rejects_count(0)
    )
    for reason, count in reasons.most_common(5):
        print(f"  {count:,} × {reason}")
    if deep:
        _print(Message("every file has the digest with which it was written"))
    if n_finished < manifest.shards:
        _print(Message("type rheoscope corpus resume {folder}", folder=str(folder)))


def _reject_reasons(files: RunFiles) -> Counter[str]:
    """The reasons of all rejects, with their numbers."""
    reasons: Counter[str] = Counter()
    for file in files.table("rejects"):
        rows = import_parquet().read_table(file, columns=["analysis", "reason"]).to_pylist()
        reasons.update(": ".join(part for part in (row["analysis"], row["reason"]) if part) for row in rows)
    return reasons


def _no_texts_error(files: RunFiles) -> RheoscopeError:
    """The error for a run without a single text."""
    reasons = _reject_reasons(files)
    if not reasons:
        return RheoscopeError(Message("no text could be read: all rows of the input are blank"))
    ((reason, count),) = reasons.most_common(1)
    return RheoscopeError(
        plural(
            "no text could be read, with {n:,} reject; the most frequent reason ({count:,} ×) is: {reason}",
            "no text could be read, with {n:,} rejects; the most frequent reason ({count:,} ×) is: {reason}",
            n=sum(reasons.values()),
            count=count,
            reason=reason,
        )
    )


def show_query(folder: Path, sql: str, csv: Path | None) -> None:
    """Print the result of a SQL query; without a query, the tables and their columns."""
    files = RunFiles(folder)
    if not sql:
        for name, columns in table_columns(files).items():
            print(f"{name}: {', '.join(columns)}")
        return
    import duckdb

    relation = connect(files).query(sql)
    try:
        if csv is None:
            print(relation)
            return
        table = relation.df()
    except duckdb.Error as error:  # values are computed here
        raise rejected_query(error, folder) from None
    _print(write_file(csv, lambda path: path.write_text(csv_text(table), encoding="utf-8")))

"""What a corpus run tells a person: a bar with rate, time left and rejects; how far it is; what a question found."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import CorpusProgress, OnProgress, local_engine, run_job
from rheoscope.corpus.merged_summary import total_counts
from rheoscope.corpus.parquet_tables import import_parquet
from rheoscope.corpus.query import connect, table_columns
from rheoscope.corpus.shards import finished_shards, read_manifest, read_shards, table_files
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import plural
from rheoscope.ray_workers import set_threads, worker_count
from rheoscope.report.console import console
from rheoscope.report.tables import csv_text


def run_corpus(job: Job, folder: Path, workers: int | None, address: str | None, threads: int | None) -> None:
    """A run with a bar; stopped, it says how to go on."""
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
    totals = total_counts(folder)
    print(
        f"{folder}: {_pluralise(progress.shards_done, 'shard')}, {_pluralise(totals['texts'], 'text')}, {totals['tokens']:,} tokens, "
        f"{_pluralise(totals['rejects'], 'reject')}"
        f"{_rate_text(progress)}; type rheoscope corpus report {folder}"
    )


def _pluralise(count: int, noun: str) -> str:
    """1 shard, 2,000 shards."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _make_engine(job: Job, workers: int | None, address: str | None, threads: int | None) -> Any:
    """This process, or Ray."""
    n_workers = worker_count(workers, address, job.device)
    if n_workers:
        from rheoscope.corpus.distributed_run import ray_engine

        return partial(ray_engine, workers=n_workers, address=address, threads=threads)
    set_threads(threads)
    return local_engine


def _rate_text(progress: CorpusProgress) -> str:
    return f", {progress.tokens / progress.seconds:,.0f} tokens/s" if progress.tokens else ""


@contextmanager
def _progress_bar() -> Iterator[OnProgress]:
    """On a terminal a bar with rate, time left and rejects; nothing where stderr is a file or a pipe."""
    stderr_console = console(stderr=True)
    if not stderr_console.is_terminal:
        yield lambda progress: None
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
        task_id = display.add_task("corpus: opening", total=None)

        def on_progress(progress: CorpusProgress) -> None:
            description = f"corpus: {progress.tokens:,} tokens{_rate_text(progress)}, {progress.rejects:,} rejects"
            display.update(task_id, description=description, completed=progress.shards_done, total=progress.shards)

        yield on_progress


def show_status(folder: Path) -> None:
    """How far a run is, and the reasons of its rejects, the most frequent first."""
    manifest, finished, shards, totals = (
        read_manifest(folder),
        finished_shards(folder),
        read_shards(folder),
        total_counts(folder),
    )
    total_text = _pluralise(len(shards), "shard")
    print(
        f"{folder}: {len(finished)} of {total_text}, {_pluralise(totals['texts'], 'text')}, {totals['tokens']:,} tokens"
    )
    print(
        f"model {manifest.job.model or 'the default model'} ({manifest.model['weights']}), {', '.join(manifest.job.analyses)}"
    )
    reasons: Counter[str] = Counter()
    for file in table_files(folder, "rejects"):
        rows = import_parquet().read_table(file, columns=["analysis", "reason"]).to_pylist()
        reasons.update(": ".join(part for part in (row["analysis"], row["reason"]) if part) for row in rows)
    print(f"{sum(reasons.values()):,} rejects" + ("" if not reasons else ", the most frequent:"))
    for reason, count in reasons.most_common(5):
        print(f"  {count:,} x {reason}")
    if len(finished) < len(shards):
        print(f"type rheoscope corpus resume {folder}")


def show_query(folder: Path, sql: str, csv: Path | None) -> None:
    """What a question in SQL finds; without one, what can be asked."""
    if not sql:
        for name, columns in table_columns(folder).items():
            print(f"{name}: {', '.join(columns)}")
        return
    relation = connect(folder).query(sql)
    if csv is None:
        print(relation)
        return
    from rheoscope.files import write_file

    print(write_file(csv, lambda path: path.write_text(csv_text(relation.df()), encoding="utf-8")))

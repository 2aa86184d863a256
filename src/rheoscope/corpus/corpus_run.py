"""A corpus run from start to end: lock the folder, load the model, process the unfinished shards, merge their summaries."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Protocol

import torch

from rheoscope.corpus.batch_analyses import axis_labels_of
from rheoscope.corpus.commit_records import SUMMARY_RECORD, ShardRecord, finished_shards, read_shard_record
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.file_faults import Fault
from rheoscope.corpus.input_texts import Input, Shard, input_files
from rheoscope.corpus.manifest import recover_manifest
from rheoscope.corpus.merged_summary import SUMMARY, write_summary
from rheoscope.corpus.parquet_tables import import_parquet
from rheoscope.corpus.run_files import find_faults
from rheoscope.corpus.shard_worker import Worker
from rheoscope.corpus.shards import load_or_plan, run_lock, start_run
from rheoscope.messages.advice import use
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.opening import load
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True)
class CorpusProgress:
    """The progress of a run."""

    shards_done: int
    shards: int
    texts: int
    tokens: int
    rejects: int
    seconds: float
    """Seconds since this driver started."""


MAX_PRINTED_FAULTS = 20
"""The number of damaged files that a resumed run names."""
OnProgress = Callable[[CorpusProgress], None]


class Engine(Protocol):
    """An engine that processes shards, in this process or on workers."""

    @property
    def model(self) -> dict[str, Any]:
        """Facts about the model: its weights, dtype and device."""
        ...

    def process_shards(self, inputs: list[Input], shards: Sequence[Shard]) -> Iterator[ShardRecord]:
        """Process the shards in any order and yield a report for each when its files are complete."""
        ...


class LocalEngine:
    """An engine of this process, without Ray."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    @property
    def model(self) -> dict[str, Any]:
        return worker_facts(self.worker)

    def process_shards(self, inputs: list[Input], shards: Sequence[Shard]) -> Iterator[ShardRecord]:
        previous: Future[ShardRecord] | None = None
        for shard, next_shard in pairwise(chain(shards, [None])):
            assert shard is not None
            future = self.worker.work(inputs, shard, next_shard)
            if previous is not None:
                yield previous.result()
            previous = future
        if previous is not None:
            yield previous.result()


@contextmanager
def local_engine(job: Job, folder: Path) -> Iterator[LocalEngine]:
    """An engine of this process."""
    worker = Worker(job, folder, open_model(job))
    try:
        yield LocalEngine(worker)
    finally:
        worker.close()


def open_model(job: Job) -> RunnableModel:
    """The model of a job. Raises if it has no tokenizer or does not support the length."""
    model = load(job.model, device=job.device, dtype=job.dtype, untrained=job.untrained, seed=job.seed)
    max_tokens = model.view.context_length
    if max_tokens is not None and job.length > max_tokens:
        raise RheoscopeError(
            Message(
                "length must be at most {max_tokens}, the context length of the model, got {length}",
                max_tokens=max_tokens,
                length=job.length,
            ),
            use(length=max_tokens),
        )
    if model.tokenizer is None:
        raise RheoscopeError(
            Message(
                "a corpus run needs a tokenizer, but the model has none; put its tokenizer.json next to its weights"
            )
        )
    return model


def worker_facts(worker: Worker) -> dict[str, Any]:
    """The facts that determine the numbers of a model, and the axis labels of every analysis."""
    model, facts = worker.model, worker.model.view.facts
    return {
        "weights": facts["weights"],
        "dtype": facts["dtype"],
        "device": model.device.type,
        "torch": torch.__version__.split("+")[0],
        "layers": model.view.layers,
        "heads": model.view.heads,
        "places": {request.name: axis_labels_of(model, request) for request in worker.job.requests},
    }


def run_job(
    job: Job,
    folder: Path,
    engine: Callable[[Job, Path], AbstractContextManager[Engine]] = local_engine,
    on_progress: OnProgress = lambda progress: None,
) -> CorpusProgress:
    """Start or continue a job in a folder: process the shards that are unfinished or damaged.

    Every file of the folder is compared with its digest first. Damaged ones are named on stderr and written again.
    """
    job = job.validate()
    input_files(list(job.texts))  # raises for a missing file before the model is loaded
    import_parquet()
    start_time = time.monotonic()
    with run_lock(folder):
        faults = find_faults(folder)
        _print_faults(folder, faults)
        with engine(job, folder) as workers:
            model = workers.model
            inputs, shards = load_or_plan(folder, job)
            run = start_run(folder, job, model, inputs, shards).fingerprint
            records = _intact_records(folder, faults)
            n_intact = len(records)
            progress = CorpusProgress(n_intact, len(shards), 0, 0, 0, 0.0)
            for record in workers.process_shards(inputs, [shard for shard in shards if shard.number not in records]):
                records[record.shard] = record
                progress = CorpusProgress(
                    progress.shards_done + 1,
                    len(shards),
                    progress.texts + record.texts,
                    progress.tokens + record.tokens,
                    progress.rejects + record.rejects,
                    time.monotonic() - start_time,
                )
                on_progress(progress)
            if len(records) > n_intact or any(fault.path in (SUMMARY, SUMMARY_RECORD) for fault in faults):
                write_summary(folder, run, [records[shard] for shard in sorted(records)], job.top)
            return progress


def _intact_records(folder: Path, faults: Sequence[Fault]) -> dict[int, ShardRecord]:
    """The commit records of the finished shards without a fault, by their numbers."""
    damaged = {fault.shard for fault in faults}
    return {shard: read_shard_record(folder, shard) for shard in finished_shards(folder) if shard not in damaged}


def _print_faults(folder: Path, faults: Sequence[Fault]) -> None:
    """Name the damaged files on stderr."""
    for fault in faults[:MAX_PRINTED_FAULTS]:
        line = Message("{folder} is damaged: {faults}", folder=str(folder), faults=fault.describe())
        print(f"rheoscope: {render(line)}", file=sys.stderr, flush=True)
    if len(faults) > MAX_PRINTED_FAULTS:
        line = Message("and {n:,} more damaged files", n=len(faults) - MAX_PRINTED_FAULTS)
        print(f"rheoscope: {render(line)}", file=sys.stderr, flush=True)


def resume(
    folder: Path,
    engine: Callable[[Job, Path], AbstractContextManager[Engine]] = local_engine,
    on_progress: OnProgress = lambda progress: None,
) -> CorpusProgress:
    """Continue the job of a folder."""
    return run_job(recover_manifest(folder).job, folder, engine, on_progress)

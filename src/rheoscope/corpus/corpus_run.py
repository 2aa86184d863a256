"""A corpus run from start to end: lock the folder, load the model, process the unfinished shards, merge their summaries."""

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
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.input_texts import Input, Shard, input_files
from rheoscope.corpus.merged_summary import write_summary
from rheoscope.corpus.parquet_tables import import_parquet
from rheoscope.corpus.shard_worker import ShardReport, Worker
from rheoscope.corpus.shards import finished_shards, load_or_plan, read_manifest, run_lock, start_run
from rheoscope.messages.advice import use
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


OnProgress = Callable[[CorpusProgress], None]


class Engine(Protocol):
    """An engine that processes shards, in this process or on workers."""

    @property
    def model(self) -> dict[str, Any]:
        """Facts about the model: its weights, dtype and device."""
        ...

    def process_shards(self, inputs: list[Input], shards: Sequence[Shard]) -> Iterator[ShardReport]:
        """Process the shards in any order and yield a report for each when its files are complete."""
        ...


class LocalEngine:
    """An engine of this process, without Ray."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    @property
    def model(self) -> dict[str, Any]:
        return worker_facts(self.worker)

    def process_shards(self, inputs: list[Input], shards: Sequence[Shard]) -> Iterator[ShardReport]:
        previous: Future[ShardReport] | None = None
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
    """Start or continue a job in a folder and process all its unfinished shards."""
    job = job.validate()
    input_files(list(job.texts))  # raises for a missing file before the model is loaded
    import_parquet()
    start_time = time.monotonic()
    with run_lock(folder), engine(job, folder) as workers:
        model = workers.model
        inputs, shards = load_or_plan(folder, job)
        start_run(folder, job, model, inputs, shards)
        finished = set(finished_shards(folder))
        progress = CorpusProgress(len(finished), len(shards), 0, 0, 0, 0.0)
        for report in workers.process_shards(inputs, [shard for shard in shards if shard.number not in finished]):
            progress = CorpusProgress(
                progress.shards_done + 1,
                len(shards),
                progress.texts + report.texts,
                progress.tokens + report.tokens,
                progress.rejects + report.rejects,
                time.monotonic() - start_time,
            )
            on_progress(progress)
        write_summary(folder, job.top)
        return progress


def resume(
    folder: Path,
    engine: Callable[[Job, Path], AbstractContextManager[Engine]] = local_engine,
    on_progress: OnProgress = lambda progress: None,
) -> CorpusProgress:
    """Continue the job of a folder."""
    return run_job(read_manifest(folder).job, folder, engine, on_progress)

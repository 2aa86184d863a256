"""A run from its beginning to its end: the folder, the model, the shards that are not done, their summaries together."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Protocol

import torch

from rheoscope.corpus.batch_analyses import named
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.input_texts import Input, Shard, files_of
from rheoscope.corpus.merged_summary import write_summary
from rheoscope.corpus.parquet_tables import parquet
from rheoscope.corpus.shard_worker import Told, Worker
from rheoscope.corpus.shards import begin, done, locked, opened, planned
from rheoscope.opening import load
from rheoscope.running.runner import Running
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    done: int
    shards: int
    texts: int
    tokens: int
    rejects: int
    seconds: float
    """Since this driver began."""


Hear = Callable[[Progress], None]


class Engine(Protocol):
    """What works on shards: this process, or many."""

    @property
    def model(self) -> dict[str, Any]:
        """What the model is: its weights, its dtype, where it runs."""
        ...

    def work(self, inputs: list[Input], shards: Sequence[Shard]) -> Iterator[Told]:
        """Every shard, in any order, told when its files are there."""
        ...


class Here:
    """This process, without Ray."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    @property
    def model(self) -> dict[str, Any]:
        return facts_of(self.worker)

    def work(self, inputs: list[Input], shards: Sequence[Shard]) -> Iterator[Told]:
        before: Future[Told] | None = None
        for shard, then in pairwise(chain(shards, [None])):
            assert shard is not None
            written = self.worker.work(inputs, shard, then)
            if before is not None:
                yield before.result()
            before = written
        if before is not None:
            yield before.result()


@contextmanager
def here(job: Job, folder: Path) -> Iterator[Here]:
    """An engine of this process."""
    worker = Worker(job, folder, open_model(job))
    try:
        yield Here(worker)
    finally:
        worker.close()


def open_model(job: Job) -> Running:
    """The model of a job; one that cannot be read, and a length that it does not read, are refused at once."""
    model = load(job.model, device=job.device, dtype=job.dtype, untrained=job.untrained, seed=job.seed)
    longest = model.view.context
    if longest is not None and job.length > longest:
        raise RheoscopeError(
            f"the model reads at most {longest} tokens, got a length of {job.length}; type --length {longest}"
        )
    if model.tokenizer is None:
        raise RheoscopeError(
            "this model has no tokenizer, so it reads no text; put its tokenizer.json beside its weights"
        )
    return model


def facts_of(worker: Worker) -> dict[str, Any]:
    """What makes the numbers of a model its own, and how every analysis names the places along its axes."""
    model, facts = worker.model, worker.model.view.facts
    return {
        "weights": facts["weights"],
        "dtype": facts["dtype"],
        "device": model.device.type,
        "torch": torch.__version__.split("+")[0],
        "layers": model.view.layers,
        "heads": model.view.heads,
        "places": {question.name: named(model, question) for question in worker.job.questions},
    }


def drive(
    job: Job,
    folder: Path,
    engine: Callable[[Job, Path], AbstractContextManager[Engine]] = here,
    hear: Hear = lambda progress: None,
) -> Progress:
    """Do all that is not done yet of a job in a folder: begun, or gone on with."""
    job = job.checked()
    files_of(list(job.texts))  # a name that nobody has is told before a model is opened
    parquet()
    began = time.monotonic()
    with locked(folder), engine(job, folder) as workers:
        model = workers.model
        inputs, shards = planned(folder, job)
        begin(folder, job, model, inputs, shards)
        there = set(done(folder))
        progress = Progress(len(there), len(shards), 0, 0, 0, 0.0)
        for told in workers.work(inputs, [shard for shard in shards if shard.number not in there]):
            progress = Progress(
                progress.done + 1,
                len(shards),
                progress.texts + told.texts,
                progress.tokens + told.tokens,
                progress.rejects + told.rejects,
                time.monotonic() - began,
            )
            hear(progress)
        write_summary(folder, job.top)
        return progress


def resume(
    folder: Path,
    engine: Callable[[Job, Path], AbstractContextManager[Engine]] = here,
    hear: Hear = lambda progress: None,
) -> Progress:
    """Go on with the job that a folder holds."""
    return drive(opened(folder).job, folder, engine, hear)

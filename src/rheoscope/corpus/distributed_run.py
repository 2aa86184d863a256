"""A corpus run on Ray: every worker holds the model and processes one shard after another."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rheoscope.corpus.commit_records import ShardRecord
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import open_model, worker_facts
from rheoscope.corpus.input_texts import Input, Shard
from rheoscope.corpus.shard_worker import Worker
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.ray_workers import WorkerMessages, WorkerPool
from rheoscope.ray_workers import worker_pool as spread_workers

WORKER_MESSAGES = WorkerMessages(
    opening_text=Message("opening the model"),
    describe_task=lambda shard: Message("shard {number}", number=shard.number),
    death_advice=use(batch=4096, workers=1),
    mismatch_error=Message("the workers have different models, dtypes or devices"),
    mismatch_advice=use(device="cpu", dtype="float32"),
)


@dataclass(frozen=True, eq=False)
class RayWorker:
    """The state of a Ray actor: a worker with its model."""

    worker: Worker

    @property
    def facts(self) -> dict[str, Any]:
        return worker_facts(self.worker)

    def work(self, inputs: list[Input], shard: Shard, next_shard: Shard | None) -> ShardRecord:
        return self.worker.work(inputs, shard, next_shard).result()


def open_worker(job: Job, folder: Path) -> RayWorker:
    """A worker with its model."""
    return RayWorker(Worker(job, folder, open_model(job)))


@dataclass(frozen=True, eq=False)
class RayEngine:
    """An engine of Ray workers."""

    pool: "WorkerPool[Shard, ShardRecord]"

    @property
    def model(self) -> dict[str, Any]:
        return self.pool.facts

    def process_shards(self, inputs: list[Input], shards: Sequence[Shard]) -> Iterator[ShardRecord]:
        return self.pool.work(inputs, shards)


@contextmanager
def ray_engine(
    job: Job, folder: Path, workers: int = 1, address: str | None = None, threads: int | None = None
) -> Iterator[RayEngine]:
    """An engine of workers on the Ray cluster at `address`, or on this machine."""
    factory = partial(open_worker, job, folder.resolve())
    with spread_workers(factory, WORKER_MESSAGES, workers, address, threads, job.device) as pool:
        yield RayEngine(pool)

"""A corpus by many workers: each holds the model, and works on one shard after the other while the next one is read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import facts_of, open_model
from rheoscope.corpus.input_texts import Input, Shard
from rheoscope.corpus.shard_worker import Told, Worker
from rheoscope.ray_workers import Spread, Words
from rheoscope.ray_workers import spread as spread_workers

WORDS = Words(
    opening="opening the model",
    task=lambda shard: f"shard {shard.number}",
    died="type a smaller --batch or fewer --workers",
    differ="the workers have other models, dtypes or devices; type --device and --dtype, and the same --model",
)


@dataclass(frozen=True, eq=False)
class Held:
    """What an actor holds: a model, and a worker that has it."""

    worker: Worker

    @property
    def facts(self) -> dict[str, Any]:
        return facts_of(self.worker)

    def work(self, inputs: list[Input], shard: Shard, then: Shard | None) -> Told:
        return self.worker.work(inputs, shard, then).result()


def opened(job: Job, folder: Path) -> Held:
    """A worker with its model."""
    return Held(Worker(job, folder, open_model(job)))


@dataclass(frozen=True, eq=False)
class Workers:
    """An engine of many workers."""

    spread: "Spread[Shard, Told]"

    @property
    def model(self) -> dict[str, Any]:
        return self.spread.facts

    def work(self, inputs: list[Input], shards: Sequence[Shard]) -> Iterator[Told]:
        return self.spread.work(inputs, shards)


@contextmanager
def spread(
    job: Job, folder: Path, workers: int = 1, address: str | None = None, threads: int | None = None
) -> Iterator[Workers]:
    """Workers of a Ray cluster at an address, or of this machine."""
    opening = partial(opened, job, folder.resolve())
    with spread_workers(opening, WORDS, workers, address, threads, job.device) as found:
        yield Workers(found)

"""Many workers, by Ray: an actor for every slot holds the model and works on one shard after the other.

Ray schedules and restarts; what is done is what lies in the folder. A worker has one shard in work and the next one in reading, so
nothing piles up. What a dead worker had goes to the others, and another worker is started in its place.
"""

import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rheoscope.corpus.driving import facts_of, open_model
from rheoscope.corpus.job import Job
from rheoscope.corpus.texts import Input, Shard
from rheoscope.corpus.work import Told, Worker
from rheoscope.shapes import RheoscopeError

PATIENCE = 3
"""How often workers may die over one shard, or before one of them has opened the model."""


class Actor:
    """What runs in a process of its own: a model, and a worker that has it. Mistakes of the user come back as text."""

    def __init__(self, job: Job, folder: Path, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.job, self.folder = job, folder
        self.worker: Worker | None = None

    def open(self) -> dict[str, Any] | str:
        """What the model is; the reason where it cannot be opened."""
        try:
            self.worker = Worker(self.job, self.folder, open_model(self.job))
        except RheoscopeError as error:
            return str(error)
        return facts_of(self.worker.model)

    def work(self, inputs: list[Input], shard: Shard, then: Shard | None) -> Told | str:
        """One shard."""
        assert self.worker is not None
        try:
            return self.worker.work(inputs, shard, then).result()
        except RheoscopeError as error:
            return str(error)


@dataclass(eq=False)
class Slot:
    """A worker as the driver sees it: its actor, the shard it works on, the one that comes next."""

    actor: Any
    now: Shard | None = None
    then: Shard | None = None


@dataclass(eq=False)
class Spread:
    """Workers of a Ray cluster."""

    ray: Any
    job: Job
    folder: Path
    threads: int
    gpus: int
    """GPUs of each worker."""
    slots: dict[Any, Slot] = field(default_factory=dict)
    ready: list[Slot] = field(default_factory=list)
    deaths: Counter[int | None] = field(default_factory=Counter)
    facts: dict[str, Any] | None = None

    def start(self) -> None:
        """One more worker; it is ready when it has opened the model."""
        remote = self.ray.remote(Actor).options(
            num_cpus=0 if self.gpus else 1,
            num_gpus=self.gpus,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(self.threads)}},
        )
        slot = Slot(remote.remote(self.job, self.folder, self.threads))
        self.slots[slot.actor.open.remote()] = slot

    @property
    def model(self) -> dict[str, Any]:
        """What the model of the first worker is that has opened it."""
        while self.facts is None:
            self.hear()
        return self.facts

    def work(self, inputs: list[Input], shards: Sequence[Shard]) -> Iterator[Told]:
        """Every shard, by whoever is free."""
        held, left = self.ray.put(inputs), deque(shards)
        open_shards = len(left)
        while open_shards:
            for slot in self.ready:
                self.give(slot, held, left)
            self.ready = [slot for slot in self.ready if slot.now is None]
            told, returned = self.hear()
            left.extendleft(reversed(returned))
            if told is not None:
                open_shards -= 1
                yield told

    def give(self, slot: Slot, held: Any, left: "deque[Shard]") -> None:
        """The next shard to a worker that is free, and word of the one after it."""
        slot.now = slot.then or (left.popleft() if left else None)
        if slot.now is not None:
            slot.then = left.popleft() if len(left) >= len(self.slots) + len(self.ready) else None
            self.slots[slot.actor.work.remote(held, slot.now, slot.then)] = slot

    def hear(self) -> tuple[Told | None, list[Shard]]:
        """Wait for one worker: what it did, and the shards that come back from one that died."""
        (first, *_), _ = self.ray.wait(list(self.slots), num_returns=1)
        slot = self.slots.pop(first)
        try:
            told = self.ray.get(first)
        except self.ray.exceptions.RayTaskError:
            raise
        except self.ray.exceptions.RayError:
            return None, self.buried(slot)
        if isinstance(told, str):
            raise RheoscopeError(told)
        slot.now = None
        self.ready.append(slot)
        if isinstance(told, Told):
            return told, []
        if self.facts not in (None, told):
            raise RheoscopeError(
                "the workers have other models, dtypes or devices; type --device and --dtype, and the same --model"
            )
        self.facts = told
        return None, []

    def buried(self, slot: Slot) -> list[Shard]:
        """What a dead worker had; another one is started. What kills one worker after the other stops the run."""
        at = None if slot.now is None else slot.now.number
        self.deaths[at] += 1
        if self.deaths[at] >= PATIENCE:
            doing = "opening the model" if at is None else f"working on shard {at}"
            raise RheoscopeError(
                f"{PATIENCE} workers died {doing}, most likely for want of memory; type a smaller --batch or fewer --workers"
            )
        self.start()
        return [shard for shard in (slot.now, slot.then) if shard is not None]

    def close(self) -> None:
        """End every worker."""
        for slot in [*self.slots.values(), *self.ready]:
            self.ray.kill(slot.actor)


@contextmanager
def spread(
    job: Job, folder: Path, workers: int = 1, address: str | None = None, threads: int | None = None
) -> Iterator[Spread]:
    """Workers of a Ray cluster at an address, or of this machine."""
    try:
        import ray
    except ImportError as error:
        raise RheoscopeError(
            "several workers need Ray, which is not here; type pip install 'rheoscope[corpus]', or --workers 0"
        ) from error
    mine = not ray.is_initialized()
    if mine:
        _join(ray, address)
    threads = threads or max(1, (os.cpu_count() or 1) // max(1, workers))
    found = Spread(ray, job, folder.resolve(), threads, gpus_each(ray.cluster_resources(), job.device, workers))
    try:
        for _ in range(workers):
            found.start()
        yield found
    finally:
        found.close()
        if mine:
            ray.shutdown()


def gpus_each(resources: Mapping[str, float], device: str | None, workers: int) -> int:
    """How many GPUs a worker has: one, and where a model is laid over several (`auto`) its share of all.

    >>> gpus_each({"GPU": 8}, None, 8), gpus_each({"GPU": 8}, "auto", 2), gpus_each({"GPU": 8}, "cpu", 8), gpus_each({}, None, 1)
    (1, 4, 0, 0)
    """
    there = int(resources.get("GPU", 0))
    if not there or (device or "cuda").startswith("cpu"):
        return 0
    return max(1, there // max(1, workers)) if device == "auto" else 1


def _join(ray: Any, address: str | None) -> None:
    try:
        ray.init(
            address=address, include_dashboard=None if address else False, log_to_driver=False, logging_level="error"
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RheoscopeError(
            f"cannot reach Ray at {address}: {str(error).splitlines()[0]}; type --address auto or none"
        ) from error

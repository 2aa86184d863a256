"""Many workers, by Ray: an actor for every slot holds something (a model, a device) and works on one task after the other.

Ray schedules and restarts; what is done is what lies in a folder. A worker has one task in work and word of the next one, so nothing
piles up. What a dead worker had goes to the others, and another worker is started in its place.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from rheoscope.shapes import RheoscopeError

PATIENCE = 3
"""How often workers may die over one task, or before one of them is ready."""

Task = TypeVar("Task")
TakesTask = TypeVar("TakesTask", contravariant=True)
Told = TypeVar("Told")
GivesTold = TypeVar("GivesTold", covariant=True)


class Worker(Protocol[TakesTask, GivesTold]):
    """What an actor holds."""

    @property
    def facts(self) -> dict[str, Any]:
        """What must be the same for all workers, or their numbers would not be."""
        ...

    def work(self, shared: Any, task: TakesTask, then: TakesTask | None) -> GivesTold:
        """One task, with what all tasks share; `then` is the one that comes next."""
        ...


@dataclass(frozen=True)
class Words:
    """How workers are spoken of where they fail."""

    opening: str
    """What a worker does before it is ready."""
    task: Callable[[Any], str]
    """What it works on."""
    died: str
    """What to type where one after the other dies."""
    differ: str
    """What is wrong, and what to type, where their facts differ."""


@dataclass(frozen=True)
class Refused:
    """A mistake of the user, as an actor sends it back."""

    why: str


class Actor:
    """What runs in a process of its own, and holds a worker. Mistakes of the user come back as text."""

    def __init__(self, opened: Callable[[], Worker[Any, Any]], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.opened = opened
        self.worker: Worker[Any, Any] | None = None

    def open(self) -> dict[str, Any] | Refused:
        """The facts of the worker; the reason where it cannot be opened."""
        try:
            self.worker = self.opened()
            return self.worker.facts
        except RheoscopeError as error:
            return Refused(str(error))

    def work(self, shared: Any, task: Any, then: Any) -> Any:
        """One task."""
        assert self.worker is not None
        try:
            return self.worker.work(shared, task, then)
        except RheoscopeError as error:
            return Refused(str(error))


@dataclass(eq=False)
class Slot(Generic[Task]):
    """A worker as the driver sees it: its actor, the task it works on, the one that comes next."""

    actor: Any
    now: Task | None = None
    then: Task | None = None


@dataclass(eq=False)
class Spread(Generic[Task, Told]):
    """Workers of a Ray cluster."""

    ray: Any
    opened: Any
    """How a worker is opened, in Ray's store: it travels to a node once."""
    words: Words
    threads: int
    gpus: int
    """GPUs of each worker."""
    slots: dict[Any, Slot[Task]] = field(default_factory=dict)
    ready: list[Slot[Task]] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)
    known: dict[str, Any] | None = None

    def start(self) -> None:
        """One more worker; it is ready when it is opened."""
        remote = self.ray.remote(Actor).options(
            num_cpus=0 if self.gpus else 1,
            num_gpus=self.gpus,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(self.threads)}},
        )
        slot: Slot[Task] = Slot(remote.remote(self.opened, self.threads))
        self.slots[slot.actor.open.remote()] = slot

    @property
    def facts(self) -> dict[str, Any]:
        """Those of the first worker that is ready, and so of all."""
        while self.known is None:
            self.hear()
        return self.known

    def work(self, shared: Any, tasks: Sequence[Task]) -> Iterator[Told]:
        """Every task, by whoever is free; told in the order in which they end."""
        held, left = self.ray.put(shared), deque(tasks)
        open_tasks = len(left)
        while open_tasks:
            for slot in self.ready:
                self.give(slot, held, left)
            self.ready = [slot for slot in self.ready if slot.now is None]
            told, returned = self.hear()
            left.extendleft(reversed(returned))
            open_tasks -= len(told)
            yield from told

    def give(self, slot: Slot[Task], held: Any, left: "deque[Task]") -> None:
        """The next task to a worker that is free, and word of the one after it."""
        slot.now = slot.then or (left.popleft() if left else None)
        if slot.now is not None:
            slot.then = left.popleft() if len(left) >= len(self.slots) + len(self.ready) else None
            self.slots[slot.actor.work.remote(held, slot.now, slot.then)] = slot

    def hear(self) -> tuple[list[Told], list[Task]]:
        """Wait for one worker: what it did, if anything, and the tasks that come back from one that died."""
        (first, *_), _ = self.ray.wait(list(self.slots), num_returns=1)
        slot = self.slots.pop(first)
        try:
            told = self.ray.get(first)
        except self.ray.exceptions.RayTaskError:
            raise
        except self.ray.exceptions.RayError:
            return [], self.buried(slot)
        if isinstance(told, Refused):
            raise RheoscopeError(told.why)
        self.ready.append(slot)
        if slot.now is not None:
            slot.now = None
            return [told], []
        if self.known not in (None, told):
            raise RheoscopeError(self.words.differ)
        self.known = told
        return [], []

    def buried(self, slot: Slot[Task]) -> list[Task]:
        """What a dead worker had; another one is started. What kills one worker after the other stops the run."""
        doing = self.words.opening if slot.now is None else f"working on {self.words.task(slot.now)}"
        self.deaths[doing] += 1
        if self.deaths[doing] >= PATIENCE:
            raise RheoscopeError(f"{PATIENCE} workers died {doing}, most likely for want of memory; {self.words.died}")
        self.start()
        return [task for task in (slot.now, slot.then) if task is not None]

    def close(self) -> None:
        """End every worker."""
        for slot in [*self.slots.values(), *self.ready]:
            self.ray.kill(slot.actor)


@contextmanager
def spread(
    opened: Callable[[], Worker[Task, Told]],
    words: Words,
    workers: int = 1,
    address: str | None = None,
    threads: int | None = None,
    device: str | None = None,
) -> Iterator[Spread[Task, Told]]:
    """Workers of a Ray cluster at an address, or of this machine; each calls `opened` in a process of its own."""
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
    gpus = gpus_each(ray.cluster_resources(), device, workers)
    found: Spread[Task, Told] = Spread(ray, ray.put(opened), words, threads, gpus)
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


def how_many(asked: int | None, address: str | None, device: str | None) -> int:
    """How many workers, 0 for this process alone: as asked; where nobody says, one for each GPU, if these are several and each may
    be taken by itself; at an address at least one.

    >>> how_many(3, None, None), how_many(None, "auto", "cpu"), how_many(None, None, "cpu")
    (3, 1, 0)
    """
    import torch

    several = 0 if (device or "cuda") != "cuda" or torch.cuda.device_count() < 2 else torch.cuda.device_count()
    wanted = several if asked is None else asked
    return max(wanted, 1) if address is not None else wanted


def set_threads(threads: int | None) -> None:
    """So many threads for this process, where it works alone; where nobody says, torch's own number."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def _join(ray: Any, address: str | None) -> None:
    try:
        ray.init(
            address=address, include_dashboard=None if address else False, log_to_driver=False, logging_level="error"
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RheoscopeError(
            f"cannot reach Ray at {address}: {str(error).splitlines()[0]}; type --address auto or none"
        ) from error

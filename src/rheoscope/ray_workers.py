"""Ray workers: one actor per slot holds a model or a device and works through tasks one after the other.

Ray schedules and restarts actors; the files in a folder record which tasks are done. A worker has one current task and knows
the next one, so no queue builds up. If a worker dies, its tasks go to the others and a new worker starts.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

MAX_DEATHS = 3
"""How many workers may die on one task, or before any worker is ready."""

Task = TypeVar("Task")
TaskInput = TypeVar("TaskInput", contravariant=True)
Result = TypeVar("Result")
ResultOutput = TypeVar("ResultOutput", covariant=True)


class Worker(Protocol[TaskInput, ResultOutput]):
    """The object that an actor holds."""

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that must be equal for all workers; otherwise their numbers would differ."""
        ...

    def work(self, shared: Any, task: TaskInput, next_task: TaskInput | None) -> ResultOutput:
        """Do one task with the data that all tasks share; `next_task` is the one after it."""
        ...


@dataclass(frozen=True)
class WorkerMessages:
    """The texts of errors about workers."""

    opening_text: str
    """What a worker does before it is ready, such as "opening the model"."""
    describe_task: Callable[[Any], str]
    """The name of a task."""
    death_advice: Advice
    """The next step after several workers died."""
    mismatch_error: str
    """The problem if the facts of two workers differ."""
    mismatch_advice: Advice
    """The next step if the facts of two workers differ."""


@dataclass(frozen=True)
class UserMistake:
    """A user's mistake, as an actor sends it back to the driver."""

    message: str
    advice: Advice | None


class Actor:
    """Holds a worker in its own process. A user's mistake comes back as a value."""

    def __init__(self, open_worker: Callable[[], Worker[Any, Any]], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.open_worker = open_worker
        self.worker: Worker[Any, Any] | None = None

    def open(self) -> dict[str, Any] | UserMistake:
        """Open the worker and return its facts, or the user's mistake."""
        try:
            self.worker = self.open_worker()
            return self.worker.facts
        except RheoscopeError as error:
            return UserMistake(error.message, error.advice)

    def work(self, shared: Any, task: Any, next_task: Any) -> Any:
        """Do one task."""
        assert self.worker is not None
        try:
            return self.worker.work(shared, task, next_task)
        except RheoscopeError as error:
            return UserMistake(error.message, error.advice)


@dataclass(eq=False)
class Slot(Generic[Task]):
    """A worker as the driver sees it: its actor, its current task and its next task."""

    actor: Any
    current_task: Task | None = None
    next_task: Task | None = None


@dataclass(eq=False)
class WorkerPool(Generic[Task, Result]):
    """The workers of a Ray cluster."""

    ray: Any
    open_worker: Any
    """The function that opens a worker, in Ray's object store: it is sent to each node once."""
    messages: WorkerMessages
    threads: int
    gpus: int
    """GPUs per worker."""
    busy_slots: dict[Any, Slot[Task]] = field(default_factory=dict)
    idle_slots: list[Slot[Task]] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)
    first_facts: dict[str, Any] | None = None

    def start(self) -> None:
        """Start one more worker; it is ready once it is open."""
        remote_actor = self.ray.remote(Actor).options(
            num_cpus=0 if self.gpus else 1,
            num_gpus=self.gpus,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(self.threads)}},
        )
        slot: Slot[Task] = Slot(remote_actor.remote(self.open_worker, self.threads))
        self.busy_slots[slot.actor.open.remote()] = slot

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the first worker that is ready; all others must equal them."""
        while self.first_facts is None:
            self.wait_for_worker()
        return self.first_facts

    def work(self, shared: Any, tasks: Sequence[Task]) -> Iterator[Result]:
        """Run every task on the next free worker and yield the results as they finish."""
        shared_ref, queue = self.ray.put(shared), deque(tasks)
        n_open = len(queue)
        while n_open:
            for slot in self.idle_slots:
                self.assign_task(slot, shared_ref, queue)
            self.idle_slots = [slot for slot in self.idle_slots if slot.current_task is None]
            results, returned_tasks = self.wait_for_worker()
            queue.extendleft(reversed(returned_tasks))
            n_open -= len(results)
            yield from results

    def assign_task(self, slot: Slot[Task], shared_ref: Any, queue: "deque[Task]") -> None:
        """Start the next task on a free worker, and announce the one after it."""
        slot.current_task = slot.next_task or (queue.popleft() if queue else None)
        if slot.current_task is not None:
            slot.next_task = queue.popleft() if len(queue) >= len(self.busy_slots) + len(self.idle_slots) else None
            self.busy_slots[slot.actor.work.remote(shared_ref, slot.current_task, slot.next_task)] = slot

    def wait_for_worker(self) -> tuple[list[Result], list[Task]]:
        """Wait for one worker: return its results, and the tasks of a worker that died."""
        (finished_ref, *_), _ = self.ray.wait(list(self.busy_slots), num_returns=1)
        slot = self.busy_slots.pop(finished_ref)
        try:
            result = self.ray.get(finished_ref)
        except self.ray.exceptions.RayTaskError:
            raise
        except self.ray.exceptions.RayError:
            return [], self.replace_dead_worker(slot)
        if isinstance(result, UserMistake):
            raise RheoscopeError(result.message, result.advice)
        self.idle_slots.append(slot)
        if slot.current_task is not None:
            slot.current_task = None
            return [result], []
        if self.first_facts not in (None, result):
            raise RheoscopeError(self.messages.mismatch_error, self.messages.mismatch_advice)
        self.first_facts = result
        return [], []

    def replace_dead_worker(self, slot: Slot[Task]) -> list[Task]:
        """Start a new worker and return the tasks of the dead one; raise after `MAX_DEATHS` deaths on the same task."""
        activity = (
            self.messages.opening_text
            if slot.current_task is None
            else Message("working on {task}", task=self.messages.describe_task(slot.current_task))
        )
        self.deaths[activity] += 1
        if self.deaths[activity] >= MAX_DEATHS:
            raise RheoscopeError(
                Message(
                    "{n} workers died while {activity}, probably because memory ran out",
                    n=MAX_DEATHS,
                    activity=activity,
                ),
                self.messages.death_advice,
            )
        self.start()
        return [task for task in (slot.current_task, slot.next_task) if task is not None]

    def close(self) -> None:
        """Stop every worker."""
        for slot in [*self.busy_slots.values(), *self.idle_slots]:
            self.ray.kill(slot.actor)


@contextmanager
def worker_pool(
    open_worker: Callable[[], Worker[Task, Result]],
    messages: WorkerMessages,
    workers: int = 1,
    address: str | None = None,
    threads: int | None = None,
    device: str | None = None,
) -> Iterator[WorkerPool[Task, Result]]:
    """Workers of the Ray cluster at `address`, or of this machine; each calls `open_worker` in its own process."""
    try:
        import ray
    except ImportError as error:
        raise RheoscopeError(
            Message("several workers need Ray, which is not installed"),
            Advice("", "pip install 'rheoscope[corpus]', or --workers 0"),
        ) from error
    started_ray = not ray.is_initialized()
    if started_ray:
        _connect_to_ray(ray, address)
    threads = threads or max(1, (os.cpu_count() or 1) // max(1, workers))
    gpus = gpus_per_worker(ray.cluster_resources(), device, workers)
    pool: WorkerPool[Task, Result] = WorkerPool(ray, ray.put(open_worker), messages, threads, gpus)
    try:
        for _ in range(workers):
            pool.start()
        yield pool
    finally:
        pool.close()
        if started_ray:
            ray.shutdown()


def gpus_per_worker(resources: Mapping[str, float], device: str | None, workers: int) -> int:
    """GPUs per worker: one, or an equal part of all GPUs if a model is spread over several (`auto`).

    >>> node = {"GPU": 8}
    >>> gpus_per_worker(node, None, 8), gpus_per_worker(node, "auto", 2), gpus_per_worker(node, "cpu", 8)
    (1, 4, 0)
    """
    n_gpus = int(resources.get("GPU", 0))
    if not n_gpus or (device or "cuda").startswith("cpu"):
        return 0
    return max(1, n_gpus // max(1, workers)) if device == "auto" else 1


def worker_count(n_requested: int | None, address: str | None, device: str | None) -> int:
    """The number of workers; 0 runs everything in this process. By default there is one worker per GPU if there are several.
    With an `address` there is at least one.

    >>> worker_count(3, None, None), worker_count(None, "auto", "cpu"), worker_count(None, None, "cpu")
    (3, 1, 0)
    """
    import torch

    n_gpus = 0 if (device or "cuda") != "cuda" or torch.cuda.device_count() < 2 else torch.cuda.device_count()
    count = n_gpus if n_requested is None else n_requested
    return max(count, 1) if address is not None else count


def set_threads(threads: int | None) -> None:
    """Set the number of torch threads of this process; None keeps torch's default."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def _connect_to_ray(ray: Any, address: str | None) -> None:
    try:
        ray.init(
            address=address, include_dashboard=None if address else False, log_to_driver=False, logging_level="error"
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RheoscopeError(
            Message(
                "cannot reach Ray at {address}: {reason}", address=address or "local", reason=str(error).splitlines()[0]
            ),
            Advice("address='auto'", "--address auto"),
        ) from error

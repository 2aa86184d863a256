"""The untrained models of a card. On a GPU, other processes measure them while this one measures the model itself."""

import os
import pickle
import subprocess
import sys
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from rheoscope.catalogue import all_claims
from rheoscope.messages.message import Message
from rheoscope.opening import load
from rheoscope.pretrained.checkpoint import initial_network
from rheoscope.report.card_clouds import CardCloud, clouds_of
from rheoscope.report.card_measurements import Measurements, OnTask, measure_untrained
from rheoscope.running.runner import RunnableModel
from rheoscope.space.claim import Claim

CORES_PER_PROCESS = 4
"""With more processes on a GPU, each waits for the kernels of all others."""
PROCESS_MEMORY = 12 * 2**30
"""Bytes of GPU memory that a process is given besides the weights."""
Started = list[Future[Measurements | None]]
"""The measurements of untrained models that other processes have begun, by the number of the model."""


@dataclass(frozen=True)
class ControlTask:
    """What a process needs to measure untrained models of one architecture."""

    network_class: type
    config: Any
    device: str
    dtype: str
    tokenizer: Any
    texts: Sequence[Any]
    seed: int
    folder: Path | None

    def measure(self, index: int) -> Measurements | None:
        """The measurements of the untrained model with this number. None if the memory does not suffice beside other processes."""
        try:
            network = initial_network(self.network_class, self.config, index)
            model = load(network.eval(), self.device, self.dtype, tokenizer=self.tokenizer)
            measured, _ = measure_untrained(
                clouds_of(model, self.texts), all_claims(), None, self.seed, self.folder, progress=None
            )
            return measured
        except torch.OutOfMemoryError:
            return None


class ControlProcess:
    """A process that measures untrained models, one after the other."""

    def __init__(self, task: ControlTask) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rheoscope.report.control_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ
            | {"OMP_NUM_THREADS": str(CORES_PER_PROCESS), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self.process.stdin is not None, "a pipe"
        assert self.process.stdout is not None, "a pipe"
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.task: bytes | None = pickle.dumps(task)

    def measure(self, index: int) -> Measurements | None:
        """The measurements of one untrained model. None if the process ended or has too little memory."""
        try:
            if self.task is not None:
                self.stdin.write(self.task)
                self.task = None
            self.stdin.write(f"{index}\n".encode())
            self.stdin.flush()
            measurements: Measurements | None = pickle.load(self.stdout)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):  # ValueError: the pipes are closed
            return None
        return measurements

    def end(self) -> None:
        """End the process, also in the middle of a measurement."""
        self.process.kill()
        self.process.wait()
        with suppress(BrokenPipeError):  # of a number that was not sent any more
            self.stdin.close()
        self.stdout.close()


def control_task(model: RunnableModel, texts: Sequence[Any], seed: int, folder: Path | None) -> ControlTask | None:
    """The untrained models of a card as a task for other processes. None for a network whose class they cannot import."""
    network = model.network
    if not type(network).__module__.startswith("transformers."):
        return None
    weight = next(network.parameters())
    dtype = str(weight.dtype).removeprefix("torch.")
    return ControlTask(type(network), network.config, str(weight.device), dtype, model.tokenizer, texts, seed, folder)


def process_count(model: RunnableModel, n_models: int) -> int:
    """The number of other processes that measure untrained models: none on the CPU, whose cores one process keeps busy.

    On a GPU, each has cores for itself, and the memory that it may need is free.
    """
    if model.device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(model.device)
    weights = sum(parameter.nbytes for parameter in model.network.parameters())
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(n_models, n_cores // CORES_PER_PROCESS, free // (PROCESS_MEMORY + 2 * weights))


@contextmanager
def start_controls(task: ControlTask | None, n_models: int, n_processes: int) -> Iterator[Started]:
    """Inside, other processes measure untrained models. They end with the block."""
    if task is None or n_processes < 1:
        yield []
        return
    processes = [ControlProcess(task) for _ in range(n_processes)]
    idle: SimpleQueue[ControlProcess] = SimpleQueue()
    for process in processes:
        idle.put(process)

    def measure(index: int) -> Measurements | None:
        process = idle.get()
        try:
            return process.measure(index)
        finally:
            idle.put(process)

    with ThreadPoolExecutor(n_processes) as executor:
        try:
            yield [executor.submit(measure, index) for index in range(n_models)]
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.end()


def untrained_model(model: RunnableModel, seed: int) -> RunnableModel:
    """The same architecture at initial weights."""
    return load(model.network, tokenizer=model.tokenizer, untrained=True, seed=seed)


@dataclass(frozen=True, eq=False)
class Controls:
    """The untrained models of a card, and the claims that it measures on them."""

    model: RunnableModel
    clouds: Sequence[CardCloud]
    claims: Sequence[Claim]
    count: int
    seed: int
    folder: Path | None
    progress: OnTask | None

    def mean_effects(self, names: Container[str], started: Started) -> dict[tuple[str, str], Tensor]:
        """(claim, part) → the mean effect of every untrained model, for the claims of these names."""
        means: dict[tuple[str, str], list[float]] = {}
        for measured in self._measurements(names, started):
            for name, parts in measured.items():
                for part, values in parts.items():
                    means.setdefault((name, part), []).append(float(values.effects.double().nanmean()))
        return {key: torch.tensor(values, dtype=torch.float64) for key, values in means.items()}

    def _measurements(self, names: Container[str], started: Started) -> Iterator[Measurements]:
        """The measurements of every untrained model. This process measures what no other one has measured."""
        rows = [claim.name for cloud in self.clouds for claim in cloud.claims(self.claims) if claim.name in names]
        on_progress = None if self.progress is None or not started else self.progress(Message("untrained models"))
        for index in range(self.count):
            measured = started[index].result() if started else None
            if measured is None or not set(rows) <= set(measured):
                measured = self._measure_here(index, rows)
            yield {name: measured[name] for name in rows}
            if on_progress is not None:
                on_progress(index + 1, self.count)

    def _measure_here(self, index: int, rows: Container[str]) -> Measurements:
        control = untrained_model(self.model, index)
        clouds = [cloud.in_model(control) for cloud in self.clouds]
        measured, errors = measure_untrained(clouds, self.claims, rows, self.seed, self.folder, self.progress)
        if errors:
            raise next(iter(errors.values()))
        return measured

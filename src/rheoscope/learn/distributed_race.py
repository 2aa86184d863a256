"""A race on Ray: every worker has a device and trains one pack after another to its last step."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rheoscope.learn import race_files
from rheoscope.learn.race import DEFAULT_MODE, OnProgress, PackTrainer, TrainingMode, pack_trainer, with_task_vocabulary
from rheoscope.learn.race_plan import Pack, Race
from rheoscope.learn.time_limit import TimeLimit
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.task import Task
from rheoscope.models.train import distributed_process
from rheoscope.models.training_state import LogMessage
from rheoscope.ray_workers import WorkerMessages, worker_pool

WORKER_MESSAGES = WorkerMessages(
    opening_text=Message("opening the data"),
    describe_task=lambda pack: pack.name,
    death_advice=Advice("", "--workers 1 --set batch=8"),
    mismatch_error=Message("the workers have different devices or different versions of torch"),
    mismatch_advice=Advice("device='cpu'", "--device cpu"),
)


@dataclass(frozen=True)
class FinishedPack:
    """A pack that reached its last step, with the log lines of its training."""

    pack: Pack
    log_lines: tuple[str, ...]


@dataclass(eq=False)
class RaceWorker:
    """The state of a Ray actor: a trainer on its own device. A compiled model serves every rate of an entrant."""

    trainer: PackTrainer
    log_lines: list[str]
    exit_stack: ExitStack = field(default_factory=ExitStack)

    @property
    def facts(self) -> dict[str, Any]:
        return {"device": self.trainer.device.type, "torch": torch.__version__.split("+")[0]}

    def work(self, shared: None, pack: Pack, next_pack: Pack | None) -> FinishedPack:
        self.trainer.run([pack], TimeLimit())
        log_lines = tuple(self.log_lines)
        self.log_lines.clear()
        return FinishedPack(pack, log_lines)


def open_worker(race: Race, task: Task, out: Path, device: str | None, mode: TrainingMode) -> RaceWorker:
    """A worker that trains packs until its `exit_stack` is closed or its process ends."""
    exit_stack, log_lines = ExitStack(), list[str]()
    process = exit_stack.enter_context(distributed_process(device))
    trainer = exit_stack.enter_context(pack_trainer(race, task, out, process, mode, log=log_lines.append))
    return RaceWorker(trainer, log_lines, exit_stack)


def run_distributed_race(
    race: Race,
    task: Task,
    out: Path,
    workers: int,
    address: str | None = None,
    threads: int | None = None,
    device: str | None = None,
    mode: TrainingMode = DEFAULT_MODE,
    on_progress: OnProgress = lambda tokens, total, pack_name: None,
    log: LogMessage = lambda line: None,
    time_limit: TimeLimit | None = None,
) -> bool:
    """Train every entrant at every rate with every seed on workers of a Ray cluster or of this machine.

    All machines must see `out` and the prepared data under the same paths.

    **Returns** Whether the race is finished. After the `time_limit` it stops as soon as a pack ends; packs that are
    then in training lose at most one interval.

    **Laws** On CPUs with the same number of threads, the files equal those of `run_race`, byte for byte. If a
    worker or node dies, at most one interval of its pack is lost and another worker continues it. If the driver
    dies, either function continues the folder. A second driver is refused.

    **See also** `run_race` runs in one process or under `torchrun`.
    """
    race, out, limit = with_task_vocabulary(race, task), out.resolve(), time_limit or TimeLimit()
    with race_files.race_lock(out):
        race_files.store_or_check_race(out, race.to_json(task))
        packs = race.packs()
        unfinished = [pack for pack in packs if not pack.is_finished(out)]
        if not unfinished:
            return True
        total_tokens = sum(pack.total_tokens for pack in packs)
        tokens_done = total_tokens - sum(pack.total_tokens for pack in unfinished)
        factory = partial(open_worker, race, task, out, device, mode)
        with worker_pool(factory, WORKER_MESSAGES, workers, address, threads, device) as pool:
            for finished in pool.work(None, unfinished):
                tokens_done += finished.pack.total_tokens
                for line in finished.log_lines:
                    log(line)
                on_progress(tokens_done, total_tokens, finished.pack.name)
                if not limit.allows_interval():
                    break
        return all(pack.is_finished(out) for pack in packs)

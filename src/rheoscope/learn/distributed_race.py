"""A race by many workers: each has a device, and trains one pack after the other, from where it stands to its last step."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rheoscope.learn import race_files
from rheoscope.learn.race import DEFAULT_MODE, OnProgress, PackTrainer, TrainingMode, pack_trainer, with_task_vocabulary
from rheoscope.learn.race_plan import Pack, Race
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
    """A pack that is at its end, and what was to be said on the way."""

    pack: Pack
    log_lines: tuple[str, ...]


@dataclass(eq=False)
class RaceWorker:
    """What an actor holds: the race at a place of its own. What it compiled serves every rate of an entrant."""

    trainer: PackTrainer
    log_lines: list[str]
    exit_stack: ExitStack = field(default_factory=ExitStack)

    @property
    def facts(self) -> dict[str, Any]:
        return {"device": self.trainer.device.type, "torch": torch.__version__.split("+")[0]}

    def work(self, shared: None, pack: Pack, next_pack: Pack | None) -> FinishedPack:
        self.trainer.run([pack])
        log_lines = tuple(self.log_lines)
        self.log_lines.clear()
        return FinishedPack(pack, log_lines)


def open_worker(race: Race, task: Task, out: Path, device: str | None, mode: TrainingMode) -> RaceWorker:
    """A place that trains packs until `kept_open` is closed, or its process ends."""
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
) -> None:
    """Train every entrant at every rate with every seed, as `race` does, by workers of a Ray cluster or of this machine.

    **Laws** the files are those of `race`, byte for byte on CPUs with as many threads each; a worker or a node that dies costs at
    most one turn of its pack, which another goes on with; a driver that dies leaves a folder that either goes on with; a second driver is
    refused.

    **Asks** that all machines see `out` and the prepared data under the same names.

    **Siblings** `race` in one process, or under `torchrun`.
    """
    race, out = with_task_vocabulary(race, task), out.resolve()
    with race_files.race_lock(out):
        race_files.store_or_check_race(out, race.to_json(task))
        packs = race.packs()
        unfinished = [pack for pack in packs if not is_finished(out, pack)]
        if not unfinished:
            return
        total_tokens = sum(pack.total_tokens for pack in packs)
        tokens_done = total_tokens - sum(pack.total_tokens for pack in unfinished)
        factory = partial(open_worker, race, task, out, device, mode)
        with worker_pool(factory, WORKER_MESSAGES, workers, address, threads, device) as pool:
            for finished in pool.work(None, unfinished):
                tokens_done += finished.pack.total_tokens
                for line in finished.log_lines:
                    log(line)
                on_progress(tokens_done, total_tokens, finished.pack.name)


def is_finished(out: Path, pack: Pack) -> bool:
    """Whether a pack is at its last step."""
    lines = race_files.read_log(race_files.pack_folder(out, pack.entrant, pack.recipe.rate))
    return race_files.last_step(lines) == pack.recipe.steps

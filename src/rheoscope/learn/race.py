"""The race: one budget, one data order and one stream of initial draws a seed, all entrants in turns.

    for every mark (a step at which all are measured):
        for every pack (all seeds of one entrant at one rate):
            fetch its state ─► train to the mark ─► measure ─► keep its state ─► leave the device, where others need it

So noise of the machine hits all alike, and what is killed loses at most one turn. A step is a function of (seed, step) alone: a race that
goes on ends with the numbers of one that nothing disturbed.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.learn import race_files
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.learner import Learner, SeedLosses, make_packed_learner, make_single_learner
from rheoscope.learn.pack_log import IntervalLosses, _prefixed_tensors, _tensors_of_learner, log_entries
from rheoscope.learn.packed_model import PackingError
from rheoscope.learn.race_plan import Pack, Race
from rheoscope.learn.torch_modes import deterministic_algorithms, raised_recompile_limit
from rheoscope.models.config import Config
from rheoscope.models.input_encoders import init_embedding
from rheoscope.models.task import Batch, Task
from rheoscope.models.train import Process, distributed_process
from rheoscope.models.training_state import LogMessage
from rheoscope.space.device_transfer import to_device

OnProgress = Callable[[int, int, str], object]
"""Told after every step of a pack: tokens trained now, by all seeds together, in all, and which pack it is."""
PackObserver = Callable[[Path, int, torch.nn.Module], object]
"""Shown the folder of a pack, a mark, and the model of its first seed there."""
COMPILE_PER_BLOCK = True
"""One graph of a block serves all of them: a race compiles every entrant anew, and trains many for less time than a whole graph takes."""
SeedBatch = tuple[Batch, Float[Tensor, " seeds"]]
"""A batch of some seeds, and how many tokens each predicts."""


def no_progress(tokens: int, total: int, pack_name: str) -> None:
    """Nobody watches."""


def no_log(line: str) -> None:
    """Nobody listens."""


def run_race(
    race: Race,
    task: Task,
    out: Path,
    device: str | None = None,
    compiled: bool | None = None,
    packed: bool = True,
    deterministic: bool = False,
    on_progress: OnProgress = no_progress,
    log: LogMessage = no_log,
    observe: PackObserver | None = None,
) -> None:
    """Train every entrant at every rate with every seed; the logs lie in `out`, `curves.read` and `rheoscope race --report` tell of them.

    **Fair** every entrant sees the same batches of a seed in the same order and starts from the same draws wherever it has the same
    parameters; all have the same steps, batch and schedule.

    **Laws** killed at any moment and called again, it ends with the same logs and weights, byte for byte on a CPU, and on a GPU where
    it is `deterministic`, which takes longer; packed seeds learn what each would alone, to rounding; a seed that diverges is logged as
    diverged and the others of its pack go on; a second driver of the same folder is refused.

    **Many GPUs** under `torchrun` every process takes its share of the entrants, on a device of its own, into one folder;
    `learn.spread.race_spread` gives one pack after the other to workers of a Ray cluster.

    **Siblings** `models.train.train` trains one model and keeps the best of it.
    """
    race = with_task_vocabulary(race, task)
    with distributed_process(device) as process, race_files.race_lock(out) if process.is_first else nullcontext():
        if process.is_first:
            race_files.store_or_check_race(out, race.to_json(task))
        process.barrier()
        mode = TrainingMode(compiled, packed, deterministic, observe)
        with pack_trainer(race, task, out, process, mode, on_progress, log) as trainer:
            trainer.run(packs_of_process(race.packs(), process))
        process.barrier()  # the first one holds the folder for all


def with_task_vocabulary(race: Race, task: Task) -> Race:
    """The race with models for the vocabulary of its task, which is checked."""
    race = replace(
        race, recipe=replace(race.recipe, config=race.recipe.config.with_changes(vocabulary=task.vocabulary))
    )
    task.check(race.recipe)
    return race


def packs_of_process(packs: Sequence[Pack], process: Process) -> list[Pack]:
    """Those of one process of several: entrants are dealt out, each with all its rates."""
    entrant_names = list(dict.fromkeys(pack.entrant for pack in packs))
    return [pack for pack in packs if entrant_names.index(pack.entrant) % process.world_size == process.rank]


@dataclass(frozen=True)
class TrainingMode:
    """How packs are trained, whatever they are: compiled (None: as `compiles` says), all seeds as one, with the same rounding each time."""

    compiled: bool | None = None
    packed: bool = True
    deterministic: bool = False
    observe: PackObserver | None = None
    """What looks at the first seed of every entrant where it is measured."""


DEFAULT_MODE = TrainingMode()


def compiles_by_default(device: torch.device, config: Config) -> bool:
    """Whether models are compiled where nobody says: on a GPU, but for sentence pairs, where nearly every step has a shape of its own.

    >>> compiles_by_default(torch.device("cuda"), Config(9)), compiles_by_default(torch.device("cuda"), Config(9, form="encoder-decoder"))
    (True, False)
    """
    return device.type == "cuda" and config.form != "encoder-decoder"


@contextmanager
def pack_trainer(
    race: Race,
    task: Task,
    out: Path,
    process: Process,
    mode: TrainingMode,
    on_progress: OnProgress = no_progress,
    log: LogMessage = no_log,
) -> "Iterator[PackTrainer]":
    """What trains packs of a race at one place, while torch is as the race needs it."""
    compiled = compiles_by_default(process.device, race.recipe.config) if mode.compiled is None else mode.compiled
    with (
        ThreadPoolExecutor(1) as writer,
        raised_recompile_limit(compiled),
        deterministic_algorithms(mode.deterministic),
    ):
        yield PackTrainer(race, task, out, process, compiled, mode.packed, on_progress, log, mode.observe, writer)


@dataclass(eq=False)
class PackTrainer:
    """Packs of a race on one device, all of them or some."""

    race: Race
    task: Task
    out: Path
    process: Process
    compiled: bool
    packed: bool
    on_progress: OnProgress
    log: LogMessage
    observe: PackObserver | None
    writer: ThreadPoolExecutor
    pending_write: "Future[None] | None" = None
    pending_folder: Path | None = None
    learners: dict[str, list[Learner]] = field(default_factory=dict)
    resident_packs: dict[str, tuple[Path, int]] = field(default_factory=dict)
    """Which pack of an entrant is on the device, and at which mark."""
    tokens_done: int = 0
    total_tokens: int = 0

    @property
    def device(self) -> torch.device:
        return self.process.device

    def run(self, packs: Sequence[Pack]) -> None:
        """Every one of these packs to every mark, in turns; one is kept while the next one trains."""
        pack_folders = [(pack, race_files.pack_folder(self.out, pack.entrant, pack.recipe.rate)) for pack in packs]
        start_steps = [race_files.last_step(race_files.read_log(folder)) or 0 for _, folder in pack_folders]
        self.tokens_done = sum(
            step * pack.tokens_per_step * len(pack.seeds)
            for step, (pack, _) in zip(start_steps, pack_folders, strict=True)
        )
        self.total_tokens = sum(pack.total_tokens for pack in packs)
        for eval_step in self.race.evaluation_steps():
            for pack, folder in pack_folders:
                if folder == self.pending_folder:
                    self._wait_for_write()
                lines = race_files.read_log(folder)
                step = race_files.last_step(lines)
                if step is None or step < eval_step:
                    self.advance_pack(pack, folder, lines, step, eval_step)
        self._wait_for_write()

    def advance_pack(
        self, pack: Pack, folder: Path, lines: list[race_files.JsonObject], step: int | None, eval_step: int
    ) -> None:
        """One pack from where it stands to a mark."""
        learners = self._get_learners(pack, is_new=step is None)
        if step is not None and self.resident_packs.get(pack.entrant) != (folder, step):
            state = race_files.load_state(folder, step)
            for learner in learners:
                learner.load_state(_tensors_of_learner(state, learner), self.device)
        interval_losses, seconds = self._train_to_step(pack, learners, lines, step or 0, eval_step)
        held_out_losses = torch.cat(
            [learner.evaluate(self._held_out_batches(), self.task.n_targets) for learner in learners]
        ).tolist()
        if self.observe is not None:
            self.observe(folder, eval_step, learners[0].first_model())
        lines = [*lines, *log_entries(pack, eval_step, interval_losses, held_out_losses, lines)]
        is_last = eval_step == self.race.recipe.steps
        tensors = {name: x for learner in learners for name, x in _prefixed_tensors(learner, not is_last).items()}
        self._wait_for_write()
        self.pending_write, self.pending_folder = (
            self.writer.submit(race_files.save_state, folder, eval_step, tensors, lines),
            folder,
        )
        if seconds:
            tokens_per_second = (eval_step - (step or 0)) * pack.tokens_per_step * len(pack.seeds) / seconds
            race_files.append_time(
                folder,
                {
                    "step": eval_step,
                    "seconds": seconds,
                    "tokens per second": tokens_per_second,
                    "learners": len(learners),
                },
            )
        self.resident_packs[pack.entrant] = (folder, eval_step)
        if not has_free_memory(self.device):
            del self.resident_packs[pack.entrant]
            for learner in learners:
                learner.release_device()

    def _wait_for_write(self) -> None:
        """Until what was handed over last is written; what went wrong with it goes wrong here."""
        if self.pending_write is not None:
            self.pending_write.result()

    def _get_learners(self, pack: Pack, is_new: bool) -> list[Learner]:
        """Those of an entrant, made once: what is compiled serves all its rates; fresh ones are at their initial weights."""
        if is_new or pack.entrant not in self.learners:
            models = [initial_model(pack.recipe.config, seed).to(self.device) for seed in pack.seeds]
            for model in models:
                init_embedding(model, self.task)
            self.learners[pack.entrant] = new_learners = self._make_learners(pack, models)
            for learner in new_learners if self.compiled else ():
                learner.compile(COMPILE_PER_BLOCK)
            for learner in new_learners:
                learner.enable_recording()
        return self.learners[pack.entrant]

    def _make_learners(self, pack: Pack, models: Sequence[torch.nn.Module]) -> list[Learner]:
        if self.packed:
            try:
                return [make_packed_learner(models, pack.seeds, pack.recipe, self.task)]
            except PackingError as error:
                self.log(f"{pack.entrant}: {error}; its seeds are trained one after another")
        return [
            make_single_learner(model, seed, pack.recipe, self.task)
            for model, seed in zip(models, pack.seeds, strict=True)
        ]

    def _train_to_step(
        self, pack: Pack, learners: list[Learner], lines: list[race_files.JsonObject], step: int, eval_step: int
    ) -> tuple["IntervalLosses", float]:
        """Losses of the way to a mark, and the seconds it took; nothing where no seed of the pack is left."""
        is_diverged = [line["diverged"] is not None for line in lines[-len(pack.seeds) :]]
        if step == eval_step or (is_diverged and all(is_diverged)):
            no_losses = [math.nan] * len(pack.seeds)
            return IntervalLosses(no_losses, [None] * len(pack.seeds)), 0.0
        start_time = time.perf_counter()
        results = [self._run_steps(pack, learner, step, eval_step) for learner in learners]
        losses, divergence_steps = (
            torch.cat(tensors).tolist() for tensors in zip(*results, strict=True)
        )  # waits for the device
        return IntervalLosses(
            losses, [int(diverged_step) if diverged_step else None for diverged_step in divergence_steps]
        ), time.perf_counter() - start_time

    def _run_steps(self, pack: Pack, learner: Learner, step: int, eval_step: int) -> tuple[SeedLosses, Tensor]:
        """Steps up to a mark: the mean loss of each seed on the way, and the step at which it was no number, 0 where it was one."""
        total = torch.zeros(len(learner.seeds), device=self.device, dtype=torch.float64)
        divergence_steps = torch.zeros(len(learner.seeds), device=self.device, dtype=torch.long)
        with ThreadPoolExecutor(1) as reader:
            for current_step, (batch, token_counts) in prefetch_batches(
                reader, lambda current_step: self._load_batch(pack, learner, current_step), step, eval_step
            ):
                losses = learner.step(pack.recipe, current_step, batch, token_counts)
                total += losses
                divergence_steps = torch.where(
                    (divergence_steps == 0) & ~losses.isfinite(), current_step + 1, divergence_steps
                )
                self.tokens_done += pack.tokens_per_step * len(learner.seeds)
                self.on_progress(self.tokens_done, self.total_tokens, pack.name)
        return (total / (eval_step - step)).float(), divergence_steps

    def _load_batch(self, pack: Pack, learner: Learner, step: int) -> SeedBatch:
        (x, y), token_counts = pack.batch(self.task, learner.seeds, step)
        return (to_device(x, self.device), to_device(y, self.device)), to_device(token_counts, self.device)

    def _held_out_batches(self) -> Iterator[Batch]:
        """The first held-out tokens, as many as are asked for, the same for all."""
        recipe = self.race.recipe
        tokens_per_batch = recipe.batch // recipe.accumulate * recipe.context
        return islice(self.task.held_out_batches(recipe), max(1, self.race.held_out // tokens_per_batch))


def has_free_memory(device: torch.device) -> bool:
    """Whether a pack may stay on the device while others train, with its recordings: more than half of it is free."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return 2 * free > total


def prefetch_batches(
    executor: ThreadPoolExecutor, read_batch: Callable[[int], SeedBatch], start_step: int, end_step: int
) -> Iterator[tuple[int, SeedBatch]]:
    """What is read for every step, one step ahead of whoever works on it."""
    pending = executor.submit(read_batch, start_step)
    for step in range(start_step, end_step):
        batch = pending.result()
        if step + 1 < end_step:
            pending = executor.submit(read_batch, step + 1)
        yield step, batch

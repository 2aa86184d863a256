"""Run a race: all entrants train in alternation with the same budget, data order and initial draws per seed.

    for every evaluation step:
        for every pack (all seeds of one entrant at one rate):
            load its state ─► train to the evaluation step ─► evaluate ─► save its state ─► free the device if others need it

Alternation spreads disturbances of the machine over all entrants, and a killed race loses at most one interval. A
step depends only on the seed and the step number, so a resumed race ends with the same numbers as an undisturbed
one.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.learn import race_files
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.learner import Learner, SeedLosses, make_packed_learner, make_single_learner
from rheoscope.learn.pack_log import IntervalLosses, log_entries, prefixed_tensors, tensors_of_learner
from rheoscope.learn.packed_model import PackingError
from rheoscope.learn.race_plan import Pack, Race
from rheoscope.learn.time_limit import TimeLimit
from rheoscope.learn.torch_modes import deterministic_algorithms, raised_recompile_limit
from rheoscope.messages.message import Message
from rheoscope.models.config import Config
from rheoscope.models.input_encoders import init_embedding
from rheoscope.models.task import Batch, Task
from rheoscope.models.train import Process, distributed_process
from rheoscope.models.training_state import LogMessage
from rheoscope.space.device_transfer import to_device

OnProgress = Callable[[int, int, str], object]
"""Called after every step of a pack with the tokens trained so far by all seeds, the total and the name of the pack."""
PackObserver = Callable[[Path, int, torch.nn.Module], object]
"""Called at every evaluation with the folder of the pack, the step and the model of the first seed."""
COMPILE_PER_BLOCK = True
"""Whether to compile one graph per block instead of the whole model.

A race compiles every entrant, and many train for less time than compiling a whole model takes.
"""
SeedBatch = tuple[Batch, Float[Tensor, " seeds"]]
"""A batch of several seeds and the number of targets of each."""


def no_progress(tokens: int, total: int, pack_name: str) -> None:
    """Ignore progress."""


def no_log(line: str) -> None:
    """Ignore log messages."""


@dataclass(frozen=True)
class TrainingMode:
    """How packs are trained.

    Compiled (None: as `compiles_by_default` decides), with seeds packed, deterministic, observed, and one pack after
    another (`sequential`) instead of in alternation.
    """

    compiled: bool | None = None
    packed: bool = True
    deterministic: bool = False
    observe: PackObserver | None = None
    """Called with the first seed of every entrant at every evaluation."""
    sequential: bool = False
    """Whether each pack is trained to its last step before the next one starts.

    The log of a finished pack is all that the race needs of it.
    """


DEFAULT_MODE = TrainingMode()


def run_race(
    race: Race,
    task: Task,
    out: Path,
    device: str | None = None,
    mode: TrainingMode = DEFAULT_MODE,
    on_progress: OnProgress = no_progress,
    log: LogMessage = no_log,
    time_limit: TimeLimit | None = None,
) -> bool:
    """Train every entrant at every rate with every seed. The logs are written to `out`.

    `curves.read_curves` reads them and `rheoscope race report` shows them.

    **Returns** Whether the race is finished. With a `time_limit` it may stop earlier, between two intervals.

    **Fairness** For each seed, every entrant sees the same batches in the same order and starts from the same draws
    wherever it has the same parameters. All have the same steps, batch size and schedule.

    **Laws** A race that is killed and run again ends with the same logs and weights. On a CPU they are equal byte
    for byte; on a GPU only with `deterministic`, which is slower. Packed seeds learn what each seed learns alone,
    up to rounding. A seed that diverges is logged and the rest of its pack continues. A second driver of the same
    folder is refused.

    **Several GPUs** Under `torchrun`, every process takes some of the entrants on its own device and writes to the
    same folder. `distributed_race.run_distributed_race` assigns packs to workers of a Ray cluster.

    **See also** `models.train.train` trains a single model and keeps its best checkpoint.
    """
    race = with_task_vocabulary(race, task)
    with distributed_process(device) as process, race_files.race_lock(out) if process.is_first else nullcontext():
        if process.is_first:
            race_files.store_or_check_race(out, race.to_json(task))
        process.barrier()
        packs = race.packs()
        with pack_trainer(race, task, out, process, mode, on_progress, log) as trainer:
            trainer.run(packs_of_process(packs, process), time_limit or TimeLimit())
        process.barrier()  # the first process holds the lock for all
        return all(pack.is_finished(out) for pack in packs)


def with_task_vocabulary(race: Race, task: Task) -> Race:
    """The race with the vocabulary of its task. Raises if the task does not fit the recipe."""
    race = replace(
        race, recipe=replace(race.recipe, config=race.recipe.config.with_changes(vocabulary=task.vocabulary))
    )
    task.check(race.recipe)
    return race


def packs_of_process(packs: Sequence[Pack], process: Process) -> list[Pack]:
    """The packs of one process of several: entrants are distributed, each with all its rates."""
    entrant_names = list(dict.fromkeys(pack.entrant for pack in packs))
    return [pack for pack in packs if entrant_names.index(pack.entrant) % process.world_size == process.rank]


def compiles_by_default(device: torch.device, config: Config) -> bool:
    """Whether models are compiled by default: on a GPU, except for sentence pairs, whose shapes change nearly every step.

    >>> decoder, translator = Config(9), Config(9, form="encoder-decoder")
    >>> compiles_by_default(torch.device("cuda"), decoder), compiles_by_default(torch.device("cuda"), translator)
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
    """A trainer of packs on one device, with torch set up as the race needs it."""
    compiled = compiles_by_default(process.device, race.recipe.config) if mode.compiled is None else mode.compiled
    with (
        ThreadPoolExecutor(1) as writer,
        raised_recompile_limit(compiled),
        deterministic_algorithms(mode.deterministic),
    ):
        yield PackTrainer(race, task, out, process, compiled, mode, on_progress, log, writer)


@dataclass(eq=False)
class PackTrainer:
    """Trains packs of a race on one device."""

    race: Race
    task: Task
    out: Path
    process: Process
    compiled: bool
    mode: TrainingMode
    on_progress: OnProgress
    log: LogMessage
    writer: ThreadPoolExecutor
    pending_write: "Future[None] | None" = None
    pending_folder: Path | None = None
    learners: dict[str, list[Learner]] = field(default_factory=dict)
    resident_packs: dict[str, tuple[Path, int]] = field(default_factory=dict)
    """For each entrant, the pack that is on the device and its step."""
    tokens_done: int = 0
    total_tokens: int = 0

    @property
    def device(self) -> torch.device:
        return self.process.device

    def run(self, packs: Sequence[Pack], time_limit: TimeLimit) -> None:
        """Train all packs to every evaluation step, within the time limit. One pack is saved while the next one trains."""
        pack_folders = [(pack, race_files.pack_folder(self.out, pack.entrant, pack.recipe.rate)) for pack in packs]
        start_steps = [race_files.last_step(race_files.read_log(folder)) or 0 for _, folder in pack_folders]
        self.tokens_done = sum(
            step * pack.tokens_per_step * len(pack.seeds)
            for step, (pack, _) in zip(start_steps, pack_folders, strict=True)
        )
        self.total_tokens = sum(pack.total_tokens for pack in packs)
        for (pack, folder), eval_step in self._intervals(pack_folders):
            if folder == self.pending_folder:
                self._wait_for_write()
            lines = race_files.read_log(folder)
            step = race_files.last_step(lines)
            if step is None or step < eval_step:
                if not time_limit.allows_interval():
                    break
                with time_limit.measure_interval():
                    self.advance_pack(pack, folder, lines, step, eval_step)
        self._wait_for_write()

    def _intervals(self, pack_folders: list[tuple[Pack, Path]]) -> Iterator[tuple[tuple[Pack, Path], int]]:
        """Every pack and evaluation step in the order in which they are trained."""
        steps = self.race.evaluation_steps()
        if self.mode.sequential:
            return product(pack_folders, steps)
        return ((pack_folder, step) for step, pack_folder in product(steps, pack_folders))

    def advance_pack(
        self, pack: Pack, folder: Path, lines: list[race_files.JsonObject], step: int | None, eval_step: int
    ) -> None:
        """Train one pack from its current step to an evaluation step."""
        learners = self._get_learners(pack, is_new=step is None)
        if step is not None and self.resident_packs.get(pack.entrant) != (folder, step):
            state = race_files.load_state(folder, step)
            for learner in learners:
                learner.load_state(tensors_of_learner(state, learner), self.device)
        interval_losses, seconds = self._train_to_step(pack, learners, lines, step or 0, eval_step)
        held_out_losses = torch.cat(
            [learner.evaluate(self._held_out_batches(), self.task.n_targets) for learner in learners]
        ).tolist()
        if self.mode.observe is not None:
            self.mode.observe(folder, eval_step, learners[0].first_model())
        lines = [*lines, *log_entries(pack, eval_step, interval_losses, held_out_losses, lines)]
        is_last = eval_step == self.race.recipe.steps
        tensors = {name: x for learner in learners for name, x in prefixed_tensors(learner, not is_last).items()}
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
        """Wait for the pending write and raise its error, if any."""
        if self.pending_write is not None:
            self.pending_write.result()

    def _get_learners(self, pack: Pack, is_new: bool) -> list[Learner]:
        """The learners of an entrant, created once because compiled graphs serve all its rates.

        New ones have initial weights.
        """
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
        if self.mode.packed:
            try:
                return [make_packed_learner(models, pack.seeds, pack.recipe, self.task)]
            except PackingError as error:
                self.log(
                    Message(
                        "{entrant}: seeds are trained one after another ({reason})",
                        entrant=pack.entrant,
                        reason=error.message,
                    )
                )
        return [
            make_single_learner(model, seed, pack.recipe, self.task)
            for model, seed in zip(models, pack.seeds, strict=True)
        ]

    def _train_to_step(
        self, pack: Pack, learners: list[Learner], lines: list[race_files.JsonObject], step: int, eval_step: int
    ) -> tuple["IntervalLosses", float]:
        """The losses up to an evaluation step and the seconds it took.

        Nothing is trained if all seeds have diverged.
        """
        is_diverged = [line["diverged"] is not None for line in lines[-len(pack.seeds) :]]
        if step == eval_step or (is_diverged and all(is_diverged)):
            no_losses = [math.nan] * len(pack.seeds)
            return IntervalLosses(no_losses, [None] * len(pack.seeds)), 0.0
        start_time = time.perf_counter()
        results = [self._run_steps(pack, learner, step, eval_step) for learner in learners]
        losses, divergence_steps = (
            torch.cat(tensors).tolist() for tensors in zip(*results, strict=True)
        )  # synchronises with the device
        return IntervalLosses(
            losses, [int(diverged_step) if diverged_step else None for diverged_step in divergence_steps]
        ), time.perf_counter() - start_time

    def _run_steps(self, pack: Pack, learner: Learner, step: int, eval_step: int) -> tuple[SeedLosses, Tensor]:
        """Train up to an evaluation step.

        Returns each seed's mean loss and the step at which it stopped being finite (0: never).
        """
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
        """The first `held_out` held-out tokens, the same for all."""
        recipe = self.race.recipe
        tokens_per_batch = recipe.batch // recipe.accumulate * recipe.context
        return islice(self.task.held_out_batches(recipe), max(1, self.race.held_out // tokens_per_batch))


def has_free_memory(device: torch.device) -> bool:
    """Whether a pack may stay on the device while others train: more than half of the memory is free."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return 2 * free > total


def prefetch_batches(
    executor: ThreadPoolExecutor, read_batch: Callable[[int], SeedBatch], start_step: int, end_step: int
) -> Iterator[tuple[int, SeedBatch]]:
    """The batches of all steps, each read while the previous one is used."""
    pending = executor.submit(read_batch, start_step)
    for step in range(start_step, end_step):
        batch = pending.result()
        if step + 1 < end_step:
            pending = executor.submit(read_batch, step + 1)
        yield step, batch

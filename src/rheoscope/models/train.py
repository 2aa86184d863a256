"""The training loop: the same seed gives the same weights, also after a kill and resume, on one machine or several.

loss = -Σ log p(token) / tokens + Σ λ · penalty    step: gradient of the whole batch, clipped, AdamW or Muon
the batch and the dropout of step t are functions of (seed, t)
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rheoscope.files import write_file
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.models import training_state
from rheoscope.models.config import set_fields
from rheoscope.models.cuda_graph_steps import Recorder, reset_accumulate_grad
from rheoscope.models.input_encoders import init_embedding
from rheoscope.models.interrupts import stop_between_steps
from rheoscope.models.optimiser import is_recordable, learning_rate, make_optimisers, set_rate
from rheoscope.models.penalty import NEEDS_HIDDEN_STATES, weighted_penalty
from rheoscope.models.qk_clip import clip_queries_keys
from rheoscope.models.recipes import Recipe
from rheoscope.models.run_directory import check_run_directory
from rheoscope.models.task import Batch, Objective, Task, autocast, evaluate, seed_generators
from rheoscope.models.training_schedules import set_schedules
from rheoscope.models.training_state import LogMessage, RunProgress
from rheoscope.models.transformer import build
from rheoscope.running.weight_files import default_device
from rheoscope.shapes import RheoscopeError
from rheoscope.space.device_transfer import to_device

Metrics = dict[str, float | int]
OnProgress = Callable[[Metrics], object]
"""Called after every step with its number and everything that was measured."""
Observer = Callable[[int, nn.Module], object]
"""Called with the model before the first step (0) and after every step, while the model is idle."""

MicroBatch = tuple[Int[Tensor, "_ s"], Int[Tensor, "_ t"]]
"""Some rows of a batch."""

LOSS_READ_INTERVAL = 10
"""Steps between two reads of the loss from a GPU, each of which waits for the device."""
SLOW_STEP_SECONDS = 2.0
"""The duration of a step from which Ctrl-C prints what the run waits for."""


@dataclass(frozen=True)
class Process:
    """The device of this process, its rank and the number of processes (set by `torchrun`)."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every process has arrived."""
        if self.world_size > 1:
            dist.barrier()

    def sum_over_processes(self, x: torch.Tensor) -> float:
        """The sum over all processes, equal in each of them."""
        if self.world_size > 1:
            dist.all_reduce(x)
        return float(x)


def train(
    recipe: Recipe,
    task: Task,
    out: Path,
    tokenizer: Path | None = None,
    device: str | None = None,
    compiled: bool | None = None,
    on_progress: OnProgress | None = None,
    log: LogMessage | None = None,
    observe: Observer | None = None,
) -> Metrics:
    """Train a model by a recipe and return the metrics of the best model on held-out data. The model is in `out`.

    **Returns** The held-out metrics of the best model and its `step`. `out/log.jsonl` has one line per evaluation.

    **Settings** A second call with the same `out` resumes the run from its last evaluation, or after Ctrl-C from the exact step.
    Another recipe or vocabulary raises. With other `steps` the run is extended, and the rate follows the schedule of the new number.
    `on_progress` receives the metrics of every step, `log` receives sentences for people, and `observe` receives the model before
    the first step and after every step.

    **Laws** A run that is killed at any moment and resumed ends with the same weights, bit for bit on a CPU. Two processes under
    `torchrun` take the same steps as one. `out` always holds the best complete model so far. An extended run equals a run planned
    with that many steps only if both schedules agree so far (`wsd` before its decay).

    >>> import tempfile, pathlib
    >>> from rheoscope.models.token_corpus import prepare
    >>> from rheoscope.models.recipes import tiny
    >>> from rheoscope.models.task import NextTokenTask
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("the cat sat on the mat. " * 400)
    >>> corpus = prepare([folder / "a.txt"], folder / "data", vocabulary="characters", held_out=0.1)
    >>> figures = train(tiny().with_changes(steps=2, batch=2, context=16), NextTokenTask(corpus), folder / "out", device="cpu")
    >>> sorted(figures)
    ['bits per byte', 'loss', 'step']
    """
    with distributed_process(device) as process:
        recipe = replace(recipe, config=recipe.config.with_changes(vocabulary=task.vocabulary))
        task.check(recipe)
        if recipe.config.qk_clip and process.world_size > 1:
            raise RheoscopeError(
                Message("qk_clip needs the scores of the whole batch, so it trains in one process, not in several"),
                set_fields(qk_clip=0.0),
            )
        seed_generators(recipe.seed, process.device)
        model = build(recipe.config).to(process.device)
        init_embedding(model, task)
        optimisers = make_optimisers(model, recipe)
        progress = _start_or_resume(recipe, out, model, optimisers, process, tokenizer, log or _ignore)
        run = Run(
            recipe,
            task,
            out,
            tokenizer,
            model,
            optimisers,
            process,
            on_progress or _ignore,
            log or _ignore,
            observe or _ignore,
        )
        return run.train_to_end(progress, compiled if compiled is not None else process.device.type == "cuda")


def _ignore(*_: object) -> None:
    """The default callback, which does nothing."""


def _start_or_resume(
    recipe: Recipe,
    out: Path,
    model: nn.Module,
    optimisers: list[torch.optim.Optimizer],
    process: Process,
    tokenizer: Path | None,
    log: LogMessage,
) -> RunProgress:
    """Check or store the run, then bring every process to the state of the last checkpoint."""
    planned_steps = recipe.steps
    if process.is_first:
        check_run_directory(out, recipe.to_dict())
        planned_steps = training_state.store_or_check_recipe(
            out, training_state.find_checkpoint(out, log), recipe.to_dict(), tokenizer
        )
        training_state.remove_partial_files(out)
    process.barrier()
    checkpoint_folder = training_state.find_checkpoint(out)
    progress = (
        RunProgress()
        if checkpoint_folder is None
        else training_state.restore(checkpoint_folder, model, optimisers, recipe.config)
    )
    if process.is_first and 0 < progress.step < recipe.steps:
        log(
            Message(
                "resuming {directory} at step {step:,} of {steps:,}",
                directory=str(out),
                step=progress.step,
                steps=recipe.steps,
            )
        )
    if process.is_first and planned_steps != recipe.steps:
        log(extension_message(replace(recipe, steps=planned_steps), recipe, progress.step))
    return progress


def extension_message(old_recipe: Recipe, new_recipe: Recipe, step: int) -> Message:
    """How another number of steps affects the learning rate of a run that is at a step.

    >>> from rheoscope.models.recipes import tiny
    >>> extension_message(tiny(), tiny().with_changes(steps=400), 200)[:68]
    'The run was planned for 200 steps and now has 400. Its learning rate'
    """
    if all(
        learning_rate(old_recipe, earlier_step) == learning_rate(new_recipe, earlier_step)
        for earlier_step in range(step)
    ):
        return Message(
            "the run was planned for {old:,} steps and now has {new:,}: both schedules agree so far, "
            "so it ends like a run of {new:,} steps",
            old=old_recipe.steps,
            new=new_recipe.steps,
        )
    return Message(
        "The run was planned for {old:,} steps and now has {new:,}. Its learning rate changes from "
        "{old_rate:.2g} to {new_rate:.2g}, so it differs from a run of {new:,} steps.",
        old=old_recipe.steps,
        new=new_recipe.steps,
        old_rate=learning_rate(old_recipe, step - 1),
        new_rate=learning_rate(new_recipe, step),
    )


@dataclass(frozen=True)
class Run:
    """One run: the model, the task, the optimisers and the output directory."""

    recipe: Recipe
    task: Task
    out: Path
    tokenizer: Path | None
    model: nn.Module
    optimisers: list[torch.optim.Optimizer]
    process: Process
    on_progress: OnProgress
    log: LogMessage
    observe: Observer
    recorder: Recorder = field(default_factory=Recorder)

    def train_to_end(self, progress: RunProgress, compiled: bool) -> Metrics:
        """Train to the last step. Ctrl-C keeps the current step."""
        metrics_log = MetricsLog(self.out, progress.step) if self.process.is_first else None
        objective = self._build_objective(compiled)
        self.recorder.enabled = compiled and self.process.world_size == 1 and is_recordable(self.optimisers)
        if progress.step == 0:
            self._observe(0)
        start_time, start_step, step = time.perf_counter(), progress.step, progress.step
        with stop_between_steps(lambda: self._announce_stop(start_time, step - start_step)) as stop_requested:
            for step in range(progress.step + 1, self.recipe.steps + 1):
                loss = self.step(objective, step - 1)
                self._observe(step)
                is_evaluation = step % self.recipe.evaluate_every == 0 or step == self.recipe.steps
                metrics: Metrics = {"step": step, **self._read_loss(loss, step, is_evaluation)}
                if is_evaluation:
                    seconds = time.perf_counter() - start_time
                    metrics["tokens per second"] = (
                        (step - start_step) * self.recipe.batch * self.recipe.context / seconds
                    )
                    metrics, progress = self._evaluate(metrics, progress, metrics_log)
                    start_time, start_step = time.perf_counter(), step
                self.on_progress(metrics)
                if stop_requested():
                    self._stop_early(step, progress)
        self.process.barrier()
        return training_state.read_best_metrics(self.out)

    def _observe(self, step: int) -> None:
        if self.process.is_first:
            self.observe(step, self.model)
        if self.recorder.enabled and self.observe is not _ignore:
            # the observer may tie parameters to a stream for which no recording may wait
            reset_accumulate_grad(self.model.parameters())

    def _stop_early(self, step: int, progress: RunProgress) -> None:
        """Store the step that was just taken, with the best loss so far, and raise KeyboardInterrupt."""
        if self.process.is_first and step > progress.step:
            training_state.save_checkpoint(
                self.out, self.model, self.optimisers, RunProgress(step, progress.best), self.tokenizer
            )
        raise KeyboardInterrupt

    def _announce_stop(self, start_time: float, n_steps: int) -> None:
        """If steps are slow, log that the current step is finished first."""
        if self.process.is_first and time.perf_counter() - start_time > SLOW_STEP_SECONDS * (n_steps + 1):
            self.log(Message("stopping after this step to keep it; press Ctrl-C again to stop at once"))

    def step(self, objective: nn.Module, step: int) -> torch.Tensor:
        """One optimiser step. Returns this process's part of the loss per token."""
        seed_generators(_step_seed(self.recipe.seed, step, self.process.rank), self.process.device)
        set_rate(self.optimisers, learning_rate(self.recipe, step))
        set_schedules(objective, self.recipe, step)
        batch = self.task.batch(step, self.recipe)
        inputs = *self._process_rows(batch), torch.tensor(float(self.task.n_targets(batch)))
        return self.recorder(
            partial(self._device_step, objective), *(to_device(tensor, self.process.device) for tensor in inputs)
        )

    def _device_step(self, objective: nn.Module, x: Tensor, y: Tensor, tokens: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The part of a step that runs on the device."""
        total = torch.zeros((), device=self.process.device)
        micro_batches = list(zip(x.chunk(self.recipe.accumulate), y.chunk(self.recipe.accumulate), strict=True))
        for index, micro_batch in enumerate(micro_batches, 1):
            with nullcontext() if index == len(micro_batches) or self.process.world_size == 1 else objective.no_sync():  # type: ignore[operator]
                with autocast(self.process.device):
                    nats, penalty = objective(*micro_batch)
                    loss = nats / tokens
                    total_loss = (
                        loss if penalty is None else loss + penalty / (len(micro_batches) * self.process.world_size)
                    )
                (total_loss * self.process.world_size).backward()  # DDP averages gradients, but the sum is needed
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        if self.recipe.config.qk_clip:
            clip_queries_keys(self.model, self.recipe.config.qk_clip)
        return total

    @torch.no_grad()
    def _penalty_metrics(self) -> Metrics:
        """Every penalty without its strength, on the first held-out texts."""
        if not self.recipe.penalty:
            return {}
        clouds: list[Tensor] = []
        self.model.eval()
        if NEEDS_HIDDEN_STATES.keys() & self.recipe.penalty.keys():
            ids = next(iter(self.task.held_out_batches(self.recipe)))[0]
            self.model(ids.to(self.process.device), hidden_states=clouds)
        metrics = {
            f"penalty {name}": float(weighted_penalty({name: 1.0}, self.model, clouds)) for name in self.recipe.penalty
        }
        self.model.train()
        return metrics

    def _process_rows(self, batch: Batch) -> MicroBatch:
        """The rows of the batch that this process takes."""
        x, y = (part[self.process.rank :: self.process.world_size] for part in batch)
        if not len(x):  # fewer rows than processes: this one takes part and predicts nothing
            x, y = batch[0][:1], torch.full_like(batch[1][:1], self.task.ignore_index)
        return x, y

    def _read_loss(self, loss: torch.Tensor, step: int, must_read: bool) -> Metrics:
        """The loss of a step over all processes, if reading it is free or due. Raises if it is not finite."""
        if not must_read and self.process.device.type == "cuda" and step % LOSS_READ_INTERVAL:
            return {}
        value = self.process.sum_over_processes(loss)
        self._check_finite(value, step)
        return {"train loss": value, "rate": learning_rate(self.recipe, step - 1)}

    def _check_finite(self, loss: float, step: int) -> None:
        if not abs(loss) < float("inf"):
            rate = float(f"{self.recipe.rate / 3:.2g}")
            raise RheoscopeError(
                Message("the loss is {loss} at step {step}, so the learning rate is too high", loss=loss, step=step),
                Advice(f"out='another_run', rate={rate}", f"--out another_run --set rate={rate}"),
            )

    def _build_objective(self, compiled: bool) -> nn.Module:
        objective: nn.Module = Objective(
            self.model, self.task, self.recipe.label_smoothing, self.recipe.penalty
        ).train()
        if compiled:
            objective.compile()
        return (
            objective if self.process.world_size == 1 else DistributedDataParallel(objective, broadcast_buffers=False)
        )

    def _evaluate(
        self, metrics: Metrics, progress: RunProgress, metrics_log: "MetricsLog | None"
    ) -> tuple[Metrics, RunProgress]:
        """Held-out metrics. The log, the best model and last the checkpoint are stored, so a kill in between is repeated."""
        step = int(metrics["step"])
        if metrics_log is None:
            return metrics, RunProgress(step)
        held_out_metrics = evaluate(self.model, self.task, self.recipe, self.process.device)
        self._check_finite(held_out_metrics["loss"], step)
        metrics = metrics | held_out_metrics | self._penalty_metrics()
        metrics_log.write(metrics)
        if held_out_metrics["loss"] < progress.best:
            training_state.save_best(self.out, self.model, self.tokenizer, step, held_out_metrics)
        progress = RunProgress(step, min(progress.best, held_out_metrics["loss"]))
        training_state.save_checkpoint(self.out, self.model, self.optimisers, progress, self.tokenizer)
        return metrics, progress


class MetricsLog:
    """One line of JSON per evaluation. Lines after the step from which a run resumes are dropped."""

    def __init__(self, out: Path, step: int) -> None:
        self.out = out
        lines = "".join(json.dumps(line) + "\n" for line in read_log(out) if line["step"] <= step)
        with training_state.explain_write_errors(out):
            write_file(out / training_state.LOG, lambda file: file.write_text(lines))

    def write(self, metrics: Metrics) -> None:
        with training_state.explain_write_errors(self.out), (self.out / training_state.LOG).open("a") as log:
            log.write(json.dumps(metrics) + "\n")


@contextmanager
def distributed_process(device: str | None) -> Iterator[Process]:
    """This process: one of several under `torchrun` (gloo on CPUs, nccl on GPUs), otherwise alone. Nested calls agree.

    >>> with distributed_process("cpu") as process:
    ...     process.device, process.is_first
    (device(type='cpu'), True)
    """
    device_name = device or default_device()
    rank, world_size, local_rank = (
        int(os.environ.get(key, default)) for key, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    try:
        torch_device = torch.empty(0, device=f"cuda:{local_rank}" if device_name == "cuda" else device_name).device
    except (RuntimeError, AssertionError) as error:
        raise RheoscopeError(
            Message("this machine has no device {device!r}", device=device_name), use(device="cpu")
        ) from error
    if world_size == 1 or dist.is_initialized():
        yield Process(torch_device, rank, world_size)
        return
    # The other processes wait while the first prepares a corpus, which may take hours.
    dist.init_process_group("nccl" if torch_device.type == "cuda" else "gloo", timeout=timedelta(hours=12))
    try:
        yield Process(torch_device, rank, world_size)
    finally:
        dist.destroy_process_group()


def _step_seed(seed: int, step: int, rank: int) -> int:
    """A seed for each step and process."""
    return (seed * 1_000_003 + step) * 1_009 + rank


def read_log(out: Path) -> list[dict[str, Any]]:
    """The evaluations of a run, in order. A line that a kill truncated is skipped."""
    entries = []
    for line in (out / training_state.LOG).read_text().splitlines() if (out / training_state.LOG).exists() else []:
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries

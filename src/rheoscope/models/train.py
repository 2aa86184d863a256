"""Training: the same weights from the same seed, killed and resumed or not, on one machine or many.

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
from rheoscope.models import training_state
from rheoscope.models.cuda_graph_steps import Recorder, forget_accumulate_grad
from rheoscope.models.input_encoders import start_known
from rheoscope.models.interrupts import between_steps
from rheoscope.models.optimiser import optimisers, rate_at, recordable, set_rate
from rheoscope.models.penalty import OF_CLOUDS, penalty
from rheoscope.models.recipes import Recipe
from rheoscope.models.run_directory import check_out
from rheoscope.models.task import Batch, Objective, Task, autocast, evaluate, seed_draws
from rheoscope.models.training_state import Progress, Say
from rheoscope.models.transformer import build
from rheoscope.running.weight_files import usual_device
from rheoscope.shapes import RheoscopeError
from rheoscope.space.device_transfer import to_device

Figures = dict[str, float | int]
Tell = Callable[[Figures], object]
"""Called after every step with its number, and with whatever was measured at it."""
Look = Callable[[int, nn.Module], object]
"""Called with the model before the first step (0) and after every step, while nothing else happens to it."""

Piece = tuple[Int[Tensor, "_ s"], Int[Tensor, "_ t"]]
"""Some rows of a batch."""

READ_EVERY = 10
"""Steps after which the loss is read from a GPU, which has to wait for it."""
SLOW = 2.0
"""Seconds of a step from which on a person who typed Ctrl-C is told what is waited for."""


@dataclass(frozen=True)
class Place:
    """Where this process computes, and which of how many it is (`torchrun` says)."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        """Until every process is here."""
        if self.world > 1:
            dist.barrier()

    def total(self, x: torch.Tensor) -> float:
        """Σ over the processes, the same in each."""
        if self.world > 1:
            dist.all_reduce(x)
        return float(x)


def train(
    recipe: Recipe,
    task: Task,
    out: Path,
    tokenizer: Path | None = None,
    device: str | None = None,
    compiled: bool | None = None,
    tell: Tell | None = None,
    say: Say | None = None,
    look: Look | None = None,
) -> Figures:
    """Train by a recipe; the figures of the best model on held-out data come back, the model lies in `out`.

    **Laws** a run that is killed at any moment and started again ends with the same weights, bit for bit on a CPU; two
    processes under `torchrun` take the same steps as one; `out` always holds the best whole model so far.

    **Resume** call it again with the same `out`; another recipe or vocabulary is refused. A run goes on from its last
    evaluation, after Ctrl-C from the very step. With other `steps` it is extended: from where it stands the rate follows the
    schedule of the new number, which `say` tells; it ends as a run of that many from the start would only where both schedules
    are the same so far (`wsd` before it falls). **Logs** `out/log.jsonl`, a line
    each time something is measured; `tell` gets the same and every step, `say` what a person should know, as a sentence; `look` is
    shown the model itself before the first step and after every one.

    >>> import tempfile, pathlib
    >>> from rheoscope.models.token_corpus import prepare
    >>> from rheoscope.models.recipes import tiny
    >>> from rheoscope.models.task import Prose
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("the cat sat on the mat. " * 400)
    >>> corpus = prepare([folder / "a.txt"], folder / "data", vocabulary="characters", held_out=0.1)
    >>> figures = train(tiny().but(steps=2, batch=2, context=16), Prose(corpus), folder / "out", device="cpu")
    >>> sorted(figures)
    ['bits per byte', 'loss', 'step']
    """
    with placed(device) as place:
        recipe = replace(recipe, config=recipe.config.but(vocabulary=task.vocabulary))
        task.check(recipe)
        seed_draws(recipe.seed, place.device)
        model = build(recipe.config).to(place.device)
        start_known(model, task)
        made = optimisers(model, recipe)
        progress = _begin(recipe, out, model, made, place, tokenizer, say or _silent)
        run = Run(recipe, task, out, tokenizer, model, made, place, tell or _silent, say or _silent, look or _silent)
        return run.go_on(progress, compiled if compiled is not None else place.device.type == "cuda")


def _silent(*_: object) -> None:
    """Nobody listens, nobody looks."""


def _begin(
    recipe: Recipe,
    out: Path,
    model: nn.Module,
    made: list[torch.optim.Optimizer],
    place: Place,
    tokenizer: Path | None,
    say: Say,
) -> Progress:
    """The run is checked or stored, then every process stands where it stood."""
    planned = recipe.steps
    if place.first:
        check_out(out, recipe.told())
        planned = training_state.same_run(out, training_state.found(out, say), recipe.told(), tokenizer)
        training_state.tidy(out)
    place.wait()
    held = training_state.found(out)
    progress = Progress() if held is None else training_state.restore(held, model, made, recipe.config)
    if place.first and 0 < progress.step < recipe.steps:
        say(f"going on with {out} at step {progress.step:,} of {recipe.steps:,}")
    if place.first and planned != recipe.steps:
        say(extended(replace(recipe, steps=planned), recipe, progress.step))
    return progress


def extended(before: Recipe, now: Recipe, step: int) -> str:
    """What another number of steps does to the rate of a run that stands at a step, in words.

    >>> from rheoscope.models.recipes import tiny
    >>> extended(tiny(), tiny().but(steps=400), 200)[:65]
    'planned for 200 steps, now for 400: the rate goes on by the sched'
    """
    told = f"planned for {before.steps:,} steps, now for {now.steps:,}: the rate goes on by the schedule of {now.steps:,} steps"
    if all(rate_at(before, at) == rate_at(now, at) for at in range(step)):
        return f"{told}, which is the same so far: it ends as if it had been planned so"
    was, will = rate_at(before, step - 1), rate_at(now, step)
    return f"{told}, at {will:.2g} after {was:.2g}, and ends elsewhere than {now.steps:,} steps from the start would"


@dataclass(frozen=True)
class Run:
    """One run: what is trained, on what, where it is kept."""

    recipe: Recipe
    task: Task
    out: Path
    tokenizer: Path | None
    model: nn.Module
    optimisers: list[torch.optim.Optimizer]
    place: Place
    tell: Tell
    say: Say
    look: Look
    recorder: Recorder = field(default_factory=Recorder)

    def go_on(self, progress: Progress, compiled: bool) -> Figures:
        """From where it stands to the last step; who types Ctrl-C keeps the step that is being made."""
        log = Log(self.out, progress.step) if self.place.first else None
        objective = self._objective(compiled)
        self.recorder.on = compiled and self.place.world == 1 and recordable(self.optimisers)
        if progress.step == 0:
            self._look(0)
        began, since, done = time.perf_counter(), progress.step, progress.step
        with between_steps(lambda: self._heard(began, done - since)) as asked:
            for done in range(progress.step + 1, self.recipe.steps + 1):
                loss = self.step(objective, done - 1)
                self._look(done)
                measured = done % self.recipe.evaluate_every == 0 or done == self.recipe.steps
                line: Figures = {"step": done, **self._read(loss, done, measured)}
                if measured:
                    seconds = time.perf_counter() - began
                    line["tokens per second"] = (done - since) * self.recipe.batch * self.recipe.context / seconds
                    line, progress = self._measured(line, progress, log)
                    began, since = time.perf_counter(), done
                self.tell(line)
                if asked():
                    self._stop(done, progress)
        self.place.wait()
        return training_state.best_figures(self.out)

    def _look(self, done: int) -> None:
        if self.place.first:
            self.look(done, self.model)
        if self.recorder.on and self.look is not _silent:
            # who looked may hold parameters to a stream that no recording may wait for
            forget_accumulate_grad(self.model.parameters())

    def _stop(self, done: int, progress: Progress) -> None:
        """Keep the step that was just made, with the best loss so far, and end."""
        if self.place.first and done > progress.step:
            training_state.keep(self.out, self.model, self.optimisers, Progress(done, progress.best), self.tokenizer)
        raise KeyboardInterrupt

    def _heard(self, began: float, steps: int) -> None:
        """Where a step takes long, a person hears that it is finished first."""
        if self.place.first and time.perf_counter() - began > SLOW * (steps + 1):
            self.say("stopping after this step, to keep it; Ctrl-C again stops at once")

    def step(self, objective: nn.Module, step: int) -> torch.Tensor:
        """One step of the optimisers; gives this process's share of the loss per token."""
        seed_draws(_seed(self.recipe.seed, step, self.place.rank), self.place.device)
        set_rate(self.optimisers, rate_at(self.recipe, step))
        batch = self.task.batch(step, self.recipe)
        given = *self._rows(batch), torch.tensor(float(self.task.count(batch)))
        return self.recorder(partial(self._step, objective), *(to_device(one, self.place.device) for one in given))

    def _step(self, objective: nn.Module, x: Tensor, y: Tensor, tokens: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """All of it that a device does."""
        total = torch.zeros((), device=self.place.device)
        pieces = list(zip(x.chunk(self.recipe.accumulate), y.chunk(self.recipe.accumulate), strict=True))
        for number, piece in enumerate(pieces, 1):
            with nullcontext() if number == len(pieces) or self.place.world == 1 else objective.no_sync():  # type: ignore[operator]
                with autocast(self.place.device):
                    nats, besides = objective(*piece)
                    loss = nats / tokens
                    asked = loss if besides is None else loss + besides / (len(pieces) * self.place.world)
                (asked * self.place.world).backward()  # processes average their gradients: the sum is wanted
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        for one in self.optimisers:
            one.step()
            one.zero_grad(set_to_none=True)
        return total

    @torch.no_grad()
    def _kept_small(self) -> Figures:
        """Every penalty by itself, without its strength, on the first held-out texts."""
        if not self.recipe.penalty:
            return {}
        clouds: list[Tensor] = []
        self.model.eval()
        if OF_CLOUDS.intersection(self.recipe.penalty):
            ids = next(iter(self.task.held_out(self.recipe)))[0]
            self.model(ids.to(self.place.device), hidden_states=clouds)
        found = {f"penalty {name}": float(penalty({name: 1.0}, self.model, clouds)) for name in self.recipe.penalty}
        self.model.train()
        return found

    def _rows(self, batch: Batch) -> Piece:
        """This process's rows of the batch."""
        x, y = (part[self.place.rank :: self.place.world] for part in batch)
        if not len(x):  # fewer rows than processes: this one computes along, and predicts nothing
            x, y = batch[0][:1], torch.full_like(batch[1][:1], self.task.ignored)
        return x, y

    def _read(self, loss: torch.Tensor, done: int, measured: bool) -> Figures:
        """The loss of a step over all processes, where reading it costs nothing or is due; no number ends the run."""
        if not measured and self.place.device.type == "cuda" and done % READ_EVERY:
            return {}
        read = self.place.total(loss)
        self._check(read, done)
        return {"train loss": read, "rate": rate_at(self.recipe, done - 1)}

    def _check(self, loss: float, done: int) -> None:
        if not abs(loss) < float("inf"):
            raise RheoscopeError(
                f"the loss is {loss} at step {done}, the rate is too high; type another --out and --set rate={self.recipe.rate / 3:.2g}"
            )

    def _objective(self, compiled: bool) -> nn.Module:
        objective: nn.Module = Objective(
            self.model, self.task, self.recipe.label_smoothing, self.recipe.penalty
        ).train()
        if compiled:
            objective.compile()
        return objective if self.place.world == 1 else DistributedDataParallel(objective, broadcast_buffers=False)

    def _measured(self, line: Figures, progress: Progress, log: "Log | None") -> tuple[Figures, Progress]:
        """Held-out figures; the log, the best model and, last, the state are kept: a kill in between is done over."""
        done = int(line["step"])
        if log is None:
            return line, Progress(done)
        figures = evaluate(self.model, self.task, self.recipe, self.place.device)
        self._check(figures["loss"], done)
        line = line | figures | self._kept_small()
        log.write(line)
        if figures["loss"] < progress.best:
            training_state.keep_best(self.out, self.model, self.tokenizer, done, figures)
        progress = Progress(done, min(progress.best, figures["loss"]))
        training_state.keep(self.out, self.model, self.optimisers, progress, self.tokenizer)
        return line, progress


class Log:
    """A line of JSON each time something is measured; lines after the step that a run resumes from are dropped."""

    def __init__(self, out: Path, step: int) -> None:
        self.out = out
        lines = "".join(json.dumps(line) + "\n" for line in read_log(out) if line["step"] <= step)
        with training_state.writing(out):
            write_file(out / training_state.LOG, lambda file: file.write_text(lines))

    def write(self, figures: Figures) -> None:
        with training_state.writing(self.out), (self.out / training_state.LOG).open("a") as log:
            log.write(json.dumps(figures) + "\n")


@contextmanager
def placed(device: str | None) -> Iterator[Place]:
    """This process's place: one of many under `torchrun` (gloo on CPUs, nccl on GPUs), else alone. Inside another `placed`, the same.

    >>> with placed("cpu") as place:
    ...     place.device, place.first
    (device(type='cpu'), True)
    """
    name = device or usual_device()
    rank, world, local = (
        int(os.environ.get(key, at)) for key, at in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    try:
        where = torch.empty(0, device=f"cuda:{local}" if name == "cuda" else name).device
    except (RuntimeError, AssertionError) as error:
        raise RheoscopeError(f"there is no device {name!r} here; type --device cpu") from error
    if world == 1 or dist.is_initialized():
        yield Place(where, rank, world)
        return
    # The others wait while the first prepares a corpus: hours, at worst.
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo", timeout=timedelta(hours=12))
    try:
        yield Place(where, rank, world)
    finally:
        dist.destroy_process_group()


def _seed(seed: int, step: int, rank: int) -> int:
    """Another stream of random numbers for every step and process, the same whenever it is asked for."""
    return (seed * 1_000_003 + step) * 1_009 + rank


def read_log(out: Path) -> list[dict[str, Any]]:
    """What was measured during a run, in order; a line that a kill cut short is left out."""
    told = []
    for line in (out / training_state.LOG).read_text().splitlines() if (out / training_state.LOG).exists() else []:
        try:
            told.append(json.loads(line))
        except ValueError:
            continue
    return told

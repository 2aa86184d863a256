"""The race: one budget, one data order and one stream of initial draws a seed, all entrants in turns.

    for every mark (a step at which all are measured):
        for every pack (all seeds of one entrant at one rate):
            fetch its state ─► train to the mark ─► measure ─► keep its state ─► leave the device, where others need it

So noise of the machine hits all alike, and what is killed loses at most one turn. A step is a function of (seed, step) alone: a race that
goes on ends with the numbers of one that nothing disturbed.
"""

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.learn import race_files
from rheoscope.learn.entrants import entrants, flops, penalties
from rheoscope.learn.initial_weights import drawn
from rheoscope.learn.learner import Learner, Losses, lone_learner, packed_learner
from rheoscope.learn.packed_model import CannotPack
from rheoscope.models.config import Config
from rheoscope.models.input_encoders import start_known
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Batch, Task
from rheoscope.models.train import Place, placed
from rheoscope.models.training_state import Say
from rheoscope.shapes import RheoscopeError
from rheoscope.space.device_transfer import to_device

Tell = Callable[[int, int, str], object]
"""Told after every step of a pack: tokens trained now, by all seeds together, in all, and which pack it is."""
Look = Callable[[Path, int, torch.nn.Module], object]
"""Shown the folder of a pack, a mark, and the model of its first seed there."""
BY_BLOCKS = True
"""One graph of a block serves all of them: a race compiles every entrant anew, and trains many for less time than a whole graph takes."""
Work = tuple[Batch, Float[Tensor, " seeds"]]
"""A batch of some seeds, and how many tokens each predicts."""


@dataclass(frozen=True)
class Race:
    """What is raced: a recipe, entrants by name, how many seeds, at which rates, and on how many held-out tokens it is measured.

    Every entrant races at every rate, or at the one that was `chosen` for it before, with other seeds (`screen.py`): then seeds are
    counted from `first_seed`, behind those.

    >>> from rheoscope.models.recipes import tiny
    >>> [f"{pack.entrant}@{pack.recipe.rate:g}" for pack in Race(tiny(), ("metric",), 2, (1e-3, 3e-3)).packs()]
    ['untied@0.001', 'untied@0.003', 'metric@0.001', 'metric@0.003']
    """

    recipe: Recipe
    mechanisms: tuple[str, ...]
    seeds: int = 12
    rates: tuple[float, ...] = ()
    held_out: int = 100_000
    first_seed: int = 0
    chosen: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise RheoscopeError(f"a race has 1 seed or more, got {self.seeds}; type --seeds 12")
        object.__setattr__(self, "rates", tuple(self.rates) or (self.recipe.rate,))

    def packs(self) -> list["Pack"]:
        """Every entrant at every rate, the baseline first."""
        return [
            Pack(name, self.recipe_of(name, config, rate), self.numbers())
            for name, config in entrants(self.mechanisms, self.recipe.config, self.recipe.context).items()
            for rate in race_files.rates_of(name, self.rates, self.chosen)
        ]

    def numbers(self) -> tuple[int, ...]:
        """The seeds that race."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    def recipe_of(self, name: str, config: Config, rate: float) -> Recipe:
        """How an entrant learns: as all do, but for its model, its rate, and what it keeps small besides."""
        return replace(self.recipe, config=config, rate=rate, penalty=self.recipe.penalty | penalties(name))

    def marks(self) -> list[int]:
        """The steps at which all are measured: the start, every `evaluate_every`, and the end."""
        every = range(0, self.recipe.steps, self.recipe.evaluate_every)
        return [*every, self.recipe.steps]

    def told(self, task: Task) -> dict[str, Any]:
        """As JSON keeps it, with a fingerprint of the data."""
        batches = (*task.batch(0, self.recipe), *next(iter(task.held_out(self.recipe))))
        seen = hashlib.sha256(b"".join(part.numpy().tobytes() for part in batches)).hexdigest()[:16]
        return {
            "recipe": {name: value for name, value in self.recipe.told().items() if name not in ("rate", "seed")},
            "seeds": self.seeds, "first_seed": self.first_seed, "held_out": self.held_out, "data": seen,
            "mechanisms": list(entrants(self.mechanisms, self.recipe.config)), "rates": list(self.rates), "chosen": dict(self.chosen),
        }  # fmt: skip


@dataclass(frozen=True)
class Pack:
    """All seeds of one entrant at one rate."""

    entrant: str
    recipe: Recipe
    seeds: tuple[int, ...]

    def batch(self, task: Task, seeds: Sequence[int], step: int) -> Work:
        """What these seeds read at a step, the rows of the first seed first: the same for every entrant and rate."""
        each = [task.batch(step, replace(self.recipe, seed=seed)) for seed in seeds]
        counts = torch.tensor([float(task.count(one)) for one in each])
        return task.together(each), counts

    @property
    def tokens(self) -> int:
        """What one seed reads in one step."""
        return self.recipe.batch * self.recipe.context

    @property
    def whole(self) -> int:
        """What all its seeds read in all steps."""
        return self.recipe.steps * self.tokens * len(self.seeds)

    @property
    def name(self) -> str:
        """As a person is told of it."""
        return f"{self.entrant} at {self.recipe.rate:g}"

    @cached_property
    def flops(self) -> int:
        """What that costs."""
        return self.tokens * flops(self.recipe.config, self.recipe.context)


def _untold(tokens: int, total: int, what: str) -> None:
    """Nobody watches."""


def _unsaid(line: str) -> None:
    """Nobody listens."""


def race(
    asked: Race,
    task: Task,
    out: Path,
    device: str | None = None,
    compiled: bool | None = None,
    packed: bool = True,
    deterministic: bool = False,
    tell: Tell = _untold,
    say: Say = _unsaid,
    look: Look | None = None,
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
    asked = fitting(asked, task)
    with placed(device) as place, race_files.alone_in(out) if place.first else nullcontext():
        if place.first:
            race_files.same_race(out, asked.told(task))
        place.wait()
        way = Way(compiled, packed, deterministic, look)
        with running(asked, task, out, place, way, tell, say) as here:
            here.run(share(asked.packs(), place))
        place.wait()  # the first one holds the folder for all


def fitting(asked: Race, task: Task) -> Race:
    """The race with models for the vocabulary of its task, which is checked."""
    asked = replace(asked, recipe=replace(asked.recipe, config=asked.recipe.config.but(vocabulary=task.vocabulary)))
    task.check(asked.recipe)
    return asked


def share(packs: Sequence[Pack], place: Place) -> list[Pack]:
    """Those of one process of several: entrants are dealt out, each with all its rates."""
    names = list(dict.fromkeys(pack.entrant for pack in packs))
    return [pack for pack in packs if names.index(pack.entrant) % place.world == place.rank]


@dataclass(frozen=True)
class Way:
    """How packs are trained, whatever they are: compiled (None: as `compiles` says), all seeds as one, with the same rounding each time."""

    compiled: bool | None = None
    packed: bool = True
    deterministic: bool = False
    look: Look | None = None
    """What looks at the first seed of every entrant where it is measured."""


USUAL = Way()


def compiles(device: torch.device, config: Config) -> bool:
    """Whether models are compiled where nobody says: on a GPU, but for sentence pairs, where nearly every step has a shape of its own.

    >>> compiles(torch.device("cuda"), Config(9)), compiles(torch.device("cuda"), Config(9, form="encoder-decoder"))
    (True, False)
    """
    return device.type == "cuda" and config.form != "encoder-decoder"


@contextmanager
def running(
    asked: Race, task: Task, out: Path, place: Place, way: Way, tell: Tell = _untold, say: Say = _unsaid
) -> "Iterator[Running]":
    """What trains packs of a race at one place, while torch is as the race needs it."""
    compiled = compiles(place.device, asked.recipe.config) if way.compiled is None else way.compiled
    with ThreadPoolExecutor(1) as writer, many_graphs(compiled), rounding_alike(way.deterministic):
        yield Running(asked, task, out, place, compiled, way.packed, tell, say, way.look, writer)


@dataclass(eq=False)
class Running:
    """Packs of a race on one device, all of them or some."""

    asked: Race
    task: Task
    out: Path
    place: Place
    compiled: bool
    packed: bool
    tell: Tell
    say: Say
    look: Look | None
    writer: ThreadPoolExecutor
    written: "Future[None] | None" = None
    writing: Path | None = None
    learners: dict[str, list[Learner]] = field(default_factory=dict)
    standing: dict[str, tuple[Path, int]] = field(default_factory=dict)
    """Which pack of an entrant is on the device, and at which mark."""
    done: int = 0
    whole: int = 0

    @property
    def device(self) -> torch.device:
        return self.place.device

    def run(self, some: Sequence[Pack]) -> None:
        """Every one of these packs to every mark, in turns; one is kept while the next one trains."""
        packs = [(pack, race_files.pack_folder(self.out, pack.entrant, pack.recipe.rate)) for pack in some]
        stand = [race_files.step_of(race_files.lines_of(folder)) or 0 for _, folder in packs]
        self.done = sum(step * pack.tokens * len(pack.seeds) for step, (pack, _) in zip(stand, packs, strict=True))
        self.whole = sum(pack.whole for pack in some)
        for mark in self.asked.marks():
            for pack, folder in packs:
                if folder == self.writing:
                    self._wait()
                lines = race_files.lines_of(folder)
                step = race_files.step_of(lines)
                if step is None or step < mark:
                    self.turn(pack, folder, lines, step, mark)
        self._wait()

    def turn(self, pack: Pack, folder: Path, lines: list[race_files.Line], step: int | None, mark: int) -> None:
        """One pack from where it stands to a mark."""
        learners = self._learners(pack, fresh=step is None)
        if step is not None and self.standing.get(pack.entrant) != (folder, step):
            held = race_files.state_of(folder, step)
            for learner in learners:
                learner.fill(_own(held, learner), self.device)
        trained, seconds = self._trained(pack, learners, lines, step or 0, mark)
        held_out = torch.cat([learner.evaluate(self._held_out(), self.task.count) for learner in learners]).tolist()
        if self.look is not None:
            self.look(folder, mark, learners[0].first())
        lines = [*lines, *measured(pack, mark, trained, held_out, lines)]
        ends = mark == self.asked.recipe.steps
        tensors = {name: x for learner in learners for name, x in _named(learner, not ends).items()}
        self._wait()
        self.written, self.writing = self.writer.submit(race_files.keep, folder, mark, tensors, lines), folder
        if seconds:
            speed = (mark - (step or 0)) * pack.tokens * len(pack.seeds) / seconds
            race_files.add_times(
                folder, {"step": mark, "seconds": seconds, "tokens per second": speed, "learners": len(learners)}
            )
        self.standing[pack.entrant] = (folder, mark)
        if not roomy(self.device):
            del self.standing[pack.entrant]
            for learner in learners:
                learner.leave()

    def _wait(self) -> None:
        """Until what was handed over last is written; what went wrong with it goes wrong here."""
        if self.written is not None:
            self.written.result()

    def _learners(self, pack: Pack, fresh: bool) -> list[Learner]:
        """Those of an entrant, made once: what is compiled serves all its rates; fresh ones are at their initial weights."""
        if fresh or pack.entrant not in self.learners:
            models = [drawn(pack.recipe.config, seed).to(self.device) for seed in pack.seeds]
            for model in models:
                start_known(model, self.task)
            self.learners[pack.entrant] = made = self._made(pack, models)
            for learner in made if self.compiled else ():
                learner.compile(BY_BLOCKS)
            for learner in made:
                learner.record()
        return self.learners[pack.entrant]

    def _made(self, pack: Pack, models: Sequence[torch.nn.Module]) -> list[Learner]:
        if self.packed:
            try:
                return [packed_learner(models, pack.seeds, pack.recipe, self.task)]
            except CannotPack as why:
                self.say(f"{pack.entrant}: {why}; its seeds are trained one after another")
        return [
            lone_learner(model, seed, pack.recipe, self.task) for model, seed in zip(models, pack.seeds, strict=True)
        ]

    def _trained(
        self, pack: Pack, learners: list[Learner], lines: list[race_files.Line], step: int, mark: int
    ) -> tuple["Trained", float]:
        """Losses of the way to a mark, and the seconds it took; nothing where no seed of the pack is left."""
        lost = [line["diverged"] is not None for line in lines[-len(pack.seeds) :]]
        if step == mark or (lost and all(lost)):
            nothing = [math.nan] * len(pack.seeds)
            return Trained(nothing, [None] * len(pack.seeds)), 0.0
        began = time.perf_counter()
        each = [self._learn(pack, learner, step, mark) for learner in learners]
        losses, broke = (torch.cat(part).tolist() for part in zip(*each, strict=True))  # waits for the device
        return Trained(losses, [int(at) if at else None for at in broke]), time.perf_counter() - began

    def _learn(self, pack: Pack, learner: Learner, step: int, mark: int) -> tuple[Losses, Tensor]:
        """Steps up to a mark: the mean loss of each seed on the way, and the step at which it was no number, 0 where it was one."""
        total = torch.zeros(len(learner.seeds), device=self.device, dtype=torch.float64)
        broke = torch.zeros(len(learner.seeds), device=self.device, dtype=torch.long)
        with ThreadPoolExecutor(1) as reader:
            for at, (batch, tokens) in ahead(reader, lambda at: self._work(pack, learner, at), step, mark):
                losses = learner.step(pack.recipe, at, batch, tokens)
                total += losses
                broke = torch.where((broke == 0) & ~losses.isfinite(), at + 1, broke)
                self.done += pack.tokens * len(learner.seeds)
                self.tell(self.done, self.whole, pack.name)
        return (total / (mark - step)).float(), broke

    def _work(self, pack: Pack, learner: Learner, step: int) -> Work:
        (x, y), tokens = pack.batch(self.task, learner.seeds, step)
        return (to_device(x, self.device), to_device(y, self.device)), to_device(tokens, self.device)

    def _held_out(self) -> Iterator[Batch]:
        """The first held-out tokens, as many as are asked for, the same for all."""
        recipe = self.asked.recipe
        rows = recipe.batch // recipe.accumulate * recipe.context
        return islice(self.task.held_out(recipe), max(1, self.asked.held_out // rows))


def roomy(device: torch.device) -> bool:
    """Whether a pack may stay on the device while others train, with its recordings: more than half of it is free."""
    if device.type != "cuda":
        return False
    free, whole = torch.cuda.mem_get_info(device)
    return 2 * free > whole


def ahead(reader: ThreadPoolExecutor, read: Callable[[int], Work], begin: int, end: int) -> Iterator[tuple[int, Work]]:
    """What is read for every step, one step ahead of whoever works on it."""
    waiting = reader.submit(read, begin)
    for step in range(begin, end):
        ready = waiting.result()
        if step + 1 < end:
            waiting = reader.submit(read, step + 1)
        yield step, ready


@dataclass(frozen=True)
class Trained:
    """The mean loss of every seed on the way to a mark, and the step at which it was no number."""

    losses: list[float]
    broke: list[int | None]


def measured(
    pack: Pack, mark: int, trained: Trained, held_out: list[float], before: list[race_files.Line]
) -> list[race_files.Line]:
    """A line for every seed; what has diverged stays so."""
    lost = {line["seed"]: line["diverged"] for line in before[-len(pack.seeds) :]}
    told, cost = [], pack.flops * mark
    for at, seed in enumerate(pack.seeds):
        diverged = lost.get(seed) or trained.broke[at] or (None if math.isfinite(held_out[at]) else mark)
        told.append(
            {
                "entrant": pack.entrant, "rate": pack.recipe.rate, "seed": seed, "step": mark, "tokens": mark * pack.tokens,
                "flops": cost, "train loss": _number(trained.losses[at]),
                "loss": None if diverged else _number(held_out[at]), "diverged": diverged,
            }
        )  # fmt: skip
    return told


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _named(learner: Learner, resumable: bool) -> dict[str, Tensor]:
    return {f"{learner.seeds[0]}.{name}": x for name, x in learner.tensors(resumable).items()}


def _own(held: dict[str, Tensor], learner: Learner) -> dict[str, Tensor]:
    mine = f"{learner.seeds[0]}."
    return {name.removeprefix(mine): x for name, x in held.items() if name.startswith(mine)}


@contextmanager
def rounding_alike(asked: bool) -> Iterator[None]:
    """Meanwhile a GPU adds numbers in the same order every time, where it is asked to; what cannot is refused by torch."""
    before = torch.are_deterministic_algorithms_enabled()
    if asked:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when a GPU is first used
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def many_graphs(compiled: bool) -> AbstractContextManager[object]:
    """One graph an entrant of the same source code, where torch stops at 8 without a word; past this it says so."""
    if not compiled:
        return nullcontext()
    from torch._dynamo import config

    return config.patch(recompile_limit=512, accumulated_recompile_limit=4096, fail_on_recompile_limit_hit=True)

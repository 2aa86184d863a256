"""A race by many workers: each has a device, and trains one pack after the other, from where it stands to its last step."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rheoscope.learn import race_files
from rheoscope.learn.race import USUAL, Pack, Race, Running, Tell, Way, fitting, running
from rheoscope.models.task import Task
from rheoscope.models.train import placed
from rheoscope.models.training_state import Say
from rheoscope.ray_workers import Words, spread

WORDS = Words(
    opening="opening the data",
    task=lambda pack: pack.name,
    died="type fewer --seeds, a smaller --set batch=…, or fewer --workers",
    differ="the workers have other devices or another torch; type --device, and install the same on every machine",
)


@dataclass(frozen=True)
class Ran:
    """A pack that is at its end, and what was to be said on the way."""

    pack: Pack
    said: tuple[str, ...]


@dataclass(eq=False)
class Racer:
    """What an actor holds: the race at a place of its own. What it compiled serves every rate of an entrant."""

    running: Running
    said: list[str]
    kept_open: ExitStack = field(default_factory=ExitStack)

    @property
    def facts(self) -> dict[str, Any]:
        return {"device": self.running.device.type, "torch": torch.__version__.split("+")[0]}

    def work(self, shared: None, pack: Pack, then: Pack | None) -> Ran:
        self.running.run([pack])
        said = tuple(self.said)
        self.said.clear()
        return Ran(pack, said)


def opened(asked: Race, task: Task, out: Path, device: str | None, way: Way) -> Racer:
    """A place that trains packs until `kept_open` is closed, or its process ends."""
    stack, said = ExitStack(), list[str]()
    place = stack.enter_context(placed(device))
    here = stack.enter_context(running(asked, task, out, place, way, say=said.append))
    return Racer(here, said, stack)


def race_spread(
    asked: Race,
    task: Task,
    out: Path,
    workers: int,
    address: str | None = None,
    threads: int | None = None,
    device: str | None = None,
    way: Way = USUAL,
    tell: Tell = lambda tokens, total, what: None,
    say: Say = lambda line: None,
) -> None:
    """Train every entrant at every rate with every seed, as `race` does, by workers of a Ray cluster or of this machine.

    **Laws** the files are those of `race`, byte for byte on CPUs with as many threads each; a worker or a node that dies costs at
    most one turn of its pack, which another goes on with; a driver that dies leaves a folder that either goes on with; a second driver is
    refused.

    **Asks** that all machines see `out` and the prepared data under the same names.

    **Siblings** `race` in one process, or under `torchrun`.
    """
    asked, out = fitting(asked, task), out.resolve()
    with race_files.alone_in(out):
        race_files.same_race(out, asked.told(task))
        packs = asked.packs()
        left = [pack for pack in packs if not ended(out, pack)]
        if not left:
            return
        whole = sum(pack.whole for pack in packs)
        done = whole - sum(pack.whole for pack in left)
        opening = partial(opened, asked, task, out, device, way)
        with spread(opening, WORDS, workers, address, threads, device) as found:
            for one in found.work(None, left):
                done += one.pack.whole
                for line in one.said:
                    say(line)
                tell(done, whole, one.pack.name)


def ended(out: Path, pack: Pack) -> bool:
    """Whether a pack is at its last step."""
    lines = race_files.lines_of(race_files.pack_folder(out, pack.entrant, pack.recipe.rate))
    return race_files.step_of(lines) == pack.recipe.steps

"""A race as a file: what is typed behind `rheoscope race`, as TOML, so that it can be read, kept and run again.

recipe = "tiny"
mechanisms = ["tied", "metric"]
data = ["book.txt"]            # seen from where the file lies
rates = [1e-3, 3e-3]
screen = "4x50"

[set]
steps = 200
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rheoscope.files import job_settings
from rheoscope.learn.race import Race
from rheoscope.learn.rate_screen import Screen
from rheoscope.models.recipes import Recipe, recipe
from rheoscope.shapes import RheoscopeError

FILES = ("data", "held_out")


@dataclass(frozen=True)
class Job:
    """Who races, on what, with which budget."""

    recipe: str
    mechanisms: tuple[str, ...]
    data: tuple[Path, ...] = ()
    seeds: int = 12
    rates: tuple[float, ...] = ()
    screen: str = ""
    held_out: tuple[Path, ...] = ()
    held_out_tokens: int = 100_000
    steps: int | None = None
    look: tuple[int, ...] = ()
    set: Mapping[str, Any] = field(default_factory=dict)

    def of(self) -> Recipe:
        """The recipe as it was changed."""
        changes = dict(self.set) | ({} if self.steps is None else {"steps": self.steps})
        try:
            return recipe(self.recipe).but(**changes)
        except RheoscopeError as error:  # what is typed in Python as name=value is typed here behind --set
            raise RheoscopeError(re.sub(r"; type (\w+=)", r"; type --set \1", str(error))) from error

    def race(self) -> Race:
        """What is raced."""
        asked = Race(self.of(), self.mechanisms, self.seeds, self.rates, self.held_out_tokens)
        strange = [step for step in self.look if step not in asked.marks()]
        if strange:
            raise RheoscopeError(
                f"a race is looked at where it is measured, {', '.join(map(str, asked.marks()))}; got --look {strange[0]}"
            )
        return asked

    def shorter(self) -> Screen | None:
        """The race before it in which rates are chosen, where there is one."""
        return Screen.of(self.screen) if self.screen else None


def from_mapping(told: Mapping[str, Any]) -> Job:
    """A job from what was typed and what a file says.

    >>> from_mapping({"recipe": "tiny", "mechanisms": ["tied"], "data": ["a.txt"]}).race().seeds
    12
    """
    known = {one.name: one.type for one in fields(Job)}
    for name, value in told.items():
        if name not in known:
            raise RheoscopeError(f"a race has no setting {name!r}; it has {', '.join(known)}")
        if isinstance(value, str) == (name not in ("recipe", "screen")):
            raise RheoscopeError(f"{name} is {_kind(name)}, got {value!r}; write it so")
    missing = next((name for name in ("recipe", "mechanisms") if not told.get(name)), None)
    if missing:
        raise RheoscopeError(
            f"a race needs a {missing}; type rheoscope race RECIPE --mechanisms A,B --data FILE… --out DIR"
        )
    rows = {name: tuple(value) for name, value in told.items() if isinstance(value, list | tuple)}
    return Job(**(dict(told) | rows | {name: tuple(map(Path, rows[name])) for name in FILES if name in rows}))


def _kind(name: str) -> str:
    """How a setting is written in TOML."""
    return "a word" if name in ("recipe", "screen") else "a table" if name == "set" else "a list or a number"


def from_toml(path: Path) -> dict[str, Any]:
    """The settings of a TOML file; names of files in it are seen from where it lies."""
    told = job_settings(path)
    return told | {name: [path.parent / one for one in told[name]] for name in FILES if name in told}

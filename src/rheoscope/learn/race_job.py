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

from rheoscope.files import read_job_file
from rheoscope.learn.race_plan import Race
from rheoscope.learn.rate_screen import RateScreen
from rheoscope.models.recipes import Recipe, recipe_by_name
from rheoscope.shapes import RheoscopeError

PATH_SETTINGS = ("data", "held_out")


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

    def build_recipe(self) -> Recipe:
        """The recipe as it was changed."""
        changes = dict(self.set) | ({} if self.steps is None else {"steps": self.steps})
        try:
            return recipe_by_name(self.recipe).with_changes(**changes)
        except RheoscopeError as error:  # what is typed in Python as name=value is typed here behind --set
            raise RheoscopeError(re.sub(r"; type (\w+=)", r"; type --set \1", str(error))) from error

    def build_race(self) -> Race:
        """What is raced."""
        race = Race(self.build_recipe(), self.mechanisms, self.seeds, self.rates, self.held_out_tokens)
        unknown_steps = [step for step in self.look if step not in race.evaluation_steps()]
        if unknown_steps:
            raise RheoscopeError(
                f"a race is looked at where it is measured, {', '.join(map(str, race.evaluation_steps()))}; got --look {unknown_steps[0]}"
            )
        return race

    def build_screen(self) -> RateScreen | None:
        """The race before it in which rates are chosen, where there is one."""
        return RateScreen.parse(self.screen) if self.screen else None


def job_from_mapping(settings: Mapping[str, Any]) -> Job:
    """A job from what was typed and what a file says.

    >>> job_from_mapping({"recipe": "tiny", "mechanisms": ["tied"], "data": ["a.txt"]}).build_race().seeds
    12
    """
    field_types = {job_field.name: job_field.type for job_field in fields(Job)}
    for name, value in settings.items():
        if name not in field_types:
            raise RheoscopeError(f"a race has no setting {name!r}; it has {', '.join(field_types)}")
        if isinstance(value, str) == (name not in ("recipe", "screen")):
            raise RheoscopeError(f"{name} is {_toml_type(name)}, got {value!r}; write it so")
    missing = next((name for name in ("recipe", "mechanisms") if not settings.get(name)), None)
    if missing:
        raise RheoscopeError(
            f"a race needs a {missing}; type rheoscope race RECIPE --mechanisms A,B --data FILE… --out DIR"
        )
    lists = {name: tuple(value) for name, value in settings.items() if isinstance(value, list | tuple)}
    return Job(
        **(dict(settings) | lists | {name: tuple(map(Path, lists[name])) for name in PATH_SETTINGS if name in lists})
    )


def _toml_type(name: str) -> str:
    """How a setting is written in TOML."""
    return "a word" if name in ("recipe", "screen") else "a table" if name == "set" else "a list or a number"


def settings_from_toml(path: Path) -> dict[str, Any]:
    """The settings of a TOML file; names of files in it are seen from where it lies."""
    settings = read_job_file(path)
    return settings | {
        name: [path.parent / file_name for file_name in settings[name]] for name in PATH_SETTINGS if name in settings
    }

"""The settings of a race, from the command line or from a TOML file.

    recipe = "tiny"
    mechanisms = ["tied", "metric"]
    data = ["book.txt"]            # relative to the folder of the file
    rates = [1e-3, 3e-3]
    screen = "4x50"                # or curves = 4

    [set]
    steps = 200

Options on the command line take precedence over the file. Errors therefore advise an option, which works with both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rheoscope.files import read_job_file
from rheoscope.learn.entrants import entrant_configs
from rheoscope.learn.own_entrants import is_own_entrant, register_own_entrant
from rheoscope.learn.race_plan import Race
from rheoscope.learn.rate_curves import RateCurves
from rheoscope.learn.rate_screen import RateScreen
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.models.projections import WITHOUT_M
from rheoscope.models.recipes import Recipe, recipe_by_name
from rheoscope.shapes import RheoscopeError

PATH_SETTINGS = ("data", "held_out")
STRING_SETTINGS = ("recipe", "screen")


@dataclass(frozen=True)
class Job:
    """The entrants, the data and the budget of a race."""

    recipe: str
    mechanisms: tuple[str, ...]
    data: tuple[Path, ...] = ()
    seeds: int = 12
    rates: tuple[float, ...] = ()
    screen: str = ""
    curves: int = 0
    held_out: tuple[Path, ...] = ()
    held_out_tokens: int = 100_000
    steps: int | None = None
    look: tuple[int, ...] = ()
    set: Mapping[str, Any] = field(default_factory=dict)

    def build_recipe(self) -> Recipe:
        """The recipe with the changes of this job."""
        changes = dict(self.set) | ({} if self.steps is None else {"steps": self.steps})
        return recipe_by_name(self.recipe).with_changes(**changes)

    def build_race(self) -> Race:
        """The race of this job."""
        recipe = self.build_recipe()
        names = [
            register_own_entrant(name, recipe.config) if is_own_entrant(name) else name for name in self.mechanisms
        ]
        race = Race(recipe, tuple(names), self.seeds, self.rates, self.held_out_tokens)
        if self.look:
            check_observable(race)
        evaluation_steps = race.evaluation_steps()
        unknown_steps = [step for step in self.look if step not in evaluation_steps]
        if unknown_steps:
            raise RheoscopeError(
                Message(
                    "look must be an evaluation step ({steps}), got {step}",
                    steps=", ".join(map(str, evaluation_steps)),
                    step=unknown_steps[0],
                ),
                use(look=evaluation_steps[:: max(1, len(evaluation_steps) - 1)]),
            )
        return race

    def build_rate_choice(self) -> RateScreen | RateCurves | None:
        """The screen or the rate curves that choose the rates, if there are any."""
        if self.screen and self.curves:
            raise RheoscopeError(
                Message("rates are chosen by a screen or by curves, got both; leave out --screen or --curves")
            )
        if self.curves:
            return RateCurves(self.curves)
        return RateScreen.parse(self.screen) if self.screen else None


def check_observable(race: Race) -> None:
    """Raise for an entrant whose heads have no M and F to look at."""
    for name, config in entrant_configs(race.mechanisms, race.recipe.config).items():
        if config.attention or config.projection in WITHOUT_M:
            raise RheoscopeError(
                Message("{entrant} has no description as M and F to look at; leave out --look", entrant=name)
            )


def job_from_mapping(settings: Mapping[str, Any]) -> Job:
    """A job from the settings of a file and of the command line.

    >>> job_from_mapping({"recipe": "tiny", "mechanisms": ["tied"], "data": ["a.txt"]}).build_race().seeds
    12
    """
    setting_names = [job_field.name for job_field in fields(Job)]
    for name, value in settings.items():
        if name not in setting_names:
            raise RheoscopeError(
                Message(
                    "a race has no setting {setting!r}; its settings are {settings}",
                    setting=name,
                    settings=", ".join(setting_names),
                )
            )
        if isinstance(value, str) == (name not in STRING_SETTINGS):
            raise RheoscopeError(
                Message(
                    "{setting} must be {kind} in a job, got {value!r}", setting=name, kind=_toml_kind(name), value=value
                )
            )
    missing = next((name for name in ("recipe", "mechanisms") if not settings.get(name)), None)
    if missing:
        raise RheoscopeError(
            Message("a race needs the setting {setting}", setting=missing),
            Advice("", "rheoscope race run tiny --mechanisms tied,metric --data FILE --out DIR"),
        )
    lists = {name: tuple(value) for name, value in settings.items() if isinstance(value, list | tuple)}
    return Job(
        **(dict(settings) | lists | {name: tuple(map(Path, lists[name])) for name in PATH_SETTINGS if name in lists})
    )


def _toml_kind(name: str) -> Message:
    """The TOML type of a setting."""
    if name in STRING_SETTINGS:
        return Message("a string")
    return Message("a table") if name == "set" else Message("a list or a number")


def settings_from_toml(path: Path) -> dict[str, Any]:
    """The settings of a TOML file. File names in it are relative to its folder."""
    settings = read_job_file(path)
    return settings | {
        name: [path.parent / file_name for file_name in settings[name]] for name in PATH_SETTINGS if name in settings
    }

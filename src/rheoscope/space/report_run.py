"""One run of an analysis in a report: its place, and the settings that it takes from options and earlier results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rheoscope.space.results import Results

Settings = dict[str, Any]
SettingsByKey = Callable[["Results"], dict[str, Settings]]
"""From the results so far to the settings of each run, by a suffix of the result's key ("" for a single run)."""


@dataclass(frozen=True, eq=False)
class ReportRun:
    """A run of an analysis in the report `report`, at the place `order`.

    **Settings** `options` are the command-line options that the run takes over if they are given. `settings` are added to
    them. `settings_by_key` replaces both: it runs the analysis once for each key.

    `for_files` runs happen only if a file is written. A run with `only_with` needs that option.

    >>> ReportRun("covers", 0, options=("draws",)).chosen_settings({"draws": 8, "control": None})
    {'draws': 8}
    """

    report: str
    order: int
    options: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_by_key: SettingsByKey | None = None
    for_files: bool = False
    only_with: str = ""

    def chosen_settings(self, options: Mapping[str, Any]) -> Settings:
        """The settings of a single run under these options."""
        settings = {name: options[name] for name in self.options if options.get(name) is not None}
        return settings | dict(self.settings)

    def applies(self, options: Mapping[str, Any]) -> bool:
        """Whether the report runs it under these options."""
        return not self.only_with or options.get(self.only_with) is not None

"""Which models may be opened: the one that ships, what was named at the start, what the hub's cache holds, what lies under a root."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rheoscope.files import write_file
from rheoscope.report.hub_cache import cached_hub_names
from rheoscope.shapes import RheoscopeError

DEFAULT_SOURCE = "default"
MAX_NAME_CHARS, MAX_REMEMBERED = 512, 12
"""Characters of a name, and how many names are remembered."""


@dataclass(frozen=True)
class ModelSources:
    """`named` were typed by whoever started the server; below `roots` any directory with a config.json is a model.

    `memory` is a file in which models that were opened are remembered, newest first; without one nothing is.
    """

    named_models: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()
    history_file: Path | None = None

    def available_names(self) -> list[str]:
        """Everything that can be opened, by the name under which it is."""
        return list(
            dict.fromkeys([DEFAULT_SOURCE, *self.named_models, *self._names_under_roots(), *cached_hub_names()])
        )

    def recent_names(self) -> list[str]:
        """Models that were opened before and may be opened now."""
        allowed = self.available_names()
        return [name for name in self._remembered_names() if name in allowed]

    def remember(self, source: str) -> None:
        """Keep a name for the next time; a file that cannot be written is none."""
        if self.history_file is None:
            return
        names = list(dict.fromkeys([source, *self._remembered_names()]))[:MAX_REMEMBERED]
        with suppress(RheoscopeError):
            write_file(
                self.history_file, lambda temporary_file: temporary_file.write_text(json.dumps(names), encoding="utf-8")
            )

    def _remembered_names(self) -> list[str]:
        try:
            names = json.loads(self.history_file.read_text(encoding="utf-8")) if self.history_file is not None else []
        except (OSError, ValueError):
            return []
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    def _names_under_roots(self) -> Iterator[str]:
        for root in self.roots:
            for file in sorted([*root.glob("config.json"), *root.glob("*/config.json")]):
                if self._is_under_roots(str(file.parent)):
                    yield str(file.parent)

    def resolve(self, source: str) -> str | None:
        """What `load` takes for a name; one that is not allowed is refused without a look at what it names."""
        if source == DEFAULT_SOURCE:
            return None
        if source in self.named_models or source in cached_hub_names():
            return source
        if len(source) <= MAX_NAME_CHARS and "\0" not in source and self._is_under_roots(source):
            return str(Path(source).resolve())
        raise RheoscopeError(
            f"{source[:80]!r} is no model that this server may open; choose one of the list, or start it with --model or --root"
        )

    def _is_under_roots(self, source: str) -> bool:
        """Whether it is a directory of a model below a root, links followed."""
        try:
            path = Path(source).resolve()
            is_below = any(path.is_relative_to(root.resolve()) for root in self.roots)
            return is_below and (path / "config.json").is_file()
        except (OSError, RuntimeError):
            return False


def default_history_file() -> Path:
    """Where models that were opened are remembered on this machine."""
    return Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "rheoscope" / "studio.json"

"""The models that the page may open: the default, named models, the hub cache and folders below a root."""

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rheoscope.files import write_file
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.opening import DEFAULT_NAME
from rheoscope.report.hub_cache import cached_hub_names
from rheoscope.shapes import RheoscopeError

MAX_NAME_CHARS, MAX_REMEMBERED = 512, 12
"""The longest name of a model, and the number of recent names that are stored."""


@dataclass(frozen=True)
class ModelSources:
    """The allowed models. Below `roots` every directory with a config.json is a model.

    `named_models` come from the command line. `history_file` stores the names of opened models, newest first.
    """

    named_models: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()
    history_file: Path | None = None

    def available_names(self) -> list[str]:
        """The names of all models that can be opened."""
        return list(dict.fromkeys([DEFAULT_NAME, *self.named_models, *self._names_under_roots(), *cached_hub_names()]))

    def recent_names(self) -> list[str]:
        """Names of earlier models that may still be opened, newest first."""
        allowed = self.available_names()
        return [name for name in self._remembered_names() if name in allowed]

    def remember(self, source: str) -> None:
        """Add a name to the history. A history file that cannot be written is ignored."""
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
        """The argument of `load` for a name. A name that is not allowed is refused before any file is read."""
        if source == DEFAULT_NAME:
            return None
        if source in self.named_models or source in cached_hub_names():
            return source
        if len(source) <= MAX_NAME_CHARS and "\0" not in source and self._is_under_roots(source):
            return str(Path(source).resolve())
        raise RheoscopeError(
            Message("this server may not open the model {name!r}", name=source[:80]),
            Advice("", f"rheoscope studio --model {shlex.quote(source[:80])}"),
        )

    def _is_under_roots(self, source: str) -> bool:
        """Whether the path, with links resolved, is a model directory below a root."""
        try:
            path = Path(source).resolve()
            is_below = any(path.is_relative_to(root.resolve()) for root in self.roots)
            return is_below and (path / "config.json").is_file()
        except (OSError, RuntimeError):
            return False


def default_history_file() -> Path:
    """The file of the current user that stores the names of opened models."""
    return Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "rheoscope" / "studio.json"

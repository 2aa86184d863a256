"""Which models may be opened: the one that ships, what was named at the start, what the hub's cache holds, what lies under a root."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rheoscope.files import write_file
from rheoscope.shapes import RheoscopeError

DEFAULT = "default"
LONGEST, REMEMBERED = 512, 12
"""Characters of a name, and how many names are remembered."""


@dataclass(frozen=True)
class Sources:
    """`named` were typed by whoever started the server; below `roots` any directory with a config.json is a model.

    `memory` is a file in which models that were opened are remembered, newest first; without one nothing is.
    """

    named: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()
    memory: Path | None = None

    def listed(self) -> list[str]:
        """Everything that can be opened, by the name under which it is."""
        return list(dict.fromkeys([DEFAULT, *self.named, *self._under_roots(), *cached_names()]))

    def recent(self) -> list[str]:
        """Models that were opened before and may be opened now."""
        allowed = self.listed()
        return [one for one in self._remembered() if one in allowed]

    def remember(self, source: str) -> None:
        """Keep a name for the next time; a file that cannot be written is none."""
        if self.memory is None:
            return
        names = list(dict.fromkeys([source, *self._remembered()]))[:REMEMBERED]
        with suppress(RheoscopeError):
            write_file(self.memory, lambda temporary: temporary.write_text(json.dumps(names), encoding="utf-8"))

    def _remembered(self) -> list[str]:
        try:
            names = json.loads(self.memory.read_text(encoding="utf-8")) if self.memory is not None else []
        except (OSError, ValueError):
            return []
        return [one for one in names if isinstance(one, str)] if isinstance(names, list) else []

    def _under_roots(self) -> Iterator[str]:
        for root in self.roots:
            for file in sorted([*root.glob("config.json"), *root.glob("*/config.json")]):
                if self._inside(str(file.parent)):
                    yield str(file.parent)

    def checked(self, source: str) -> str | None:
        """What `load` takes for a name; one that is not allowed is refused without a look at what it names."""
        if source == DEFAULT:
            return None
        if source in self.named or source in cached_names():
            return source
        if len(source) <= LONGEST and "\0" not in source and self._inside(source):
            return str(Path(source).resolve())
        raise RheoscopeError(
            f"{source[:80]!r} is no model that this server may open; choose one of the list, or start it with --model or --root"
        )

    def _inside(self, source: str) -> bool:
        """Whether it is a directory of a model below a root, links followed."""
        try:
            place = Path(source).resolve()
            below = any(place.is_relative_to(root.resolve()) for root in self.roots)
            return below and (place / "config.json").is_file()
        except (OSError, RuntimeError):
            return False


def cached_names() -> list[str]:
    """Hub names whose files are on this machine already."""
    home = os.environ.get("HF_HOME", str(Path.home() / ".cache" / "huggingface"))
    folder = Path(os.environ.get("HF_HUB_CACHE", str(Path(home) / "hub")))
    found = sorted(folder.glob("models--*")) if folder.is_dir() else []
    return [one.name.removeprefix("models--").replace("--", "/") for one in found if any(one.glob("snapshots/*"))]


def memory_file() -> Path:
    """Where models that were opened are remembered on this machine."""
    return Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "rheoscope" / "studio.json"

"""Which models may be opened: the one that ships, what was named at the start, what the hub's cache holds, what lies under a root."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rheoscope.shapes import RheoscopeError

DEFAULT = "default"
LONGEST = 512
"""Characters of a name."""


@dataclass(frozen=True)
class Sources:
    """`named` were typed by whoever started the server; below `roots` any directory with a config.json is a model."""

    named: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()

    def listed(self) -> list[str]:
        """Everything that can be opened, by the name under which it is."""
        return list(dict.fromkeys([DEFAULT, *self.named, *self._under_roots(), *cached_names()]))

    def _under_roots(self) -> Iterator[str]:
        for root in self.roots:
            for file in sorted([*root.glob("config.json"), *root.glob("*/config.json")]):
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

"""The stored example: answers about one text of the default model, as an export wrote them, for a page that opens at once."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rheoscope.studio.jobs import Log

STATIC = Path(__file__).parent / "static"
"""The built page; `make studio` makes it."""
EXAMPLE = "example"
"""The folder of it with the stored example."""


@dataclass(frozen=True, eq=False)
class Stored:
    """An export of one text: `folder` has its files, `model` what is told of the model, before it is open."""

    folder: Path
    id: str
    text: str
    model: dict[str, Any]

    def answer(self, path: str, kind: str) -> bytes | None:
        """An answer below api/traces as it would travel, or None where it was not stored."""
        file = (self.folder / "api" / "traces" / f"{path}.{kind}").resolve()
        if not path.startswith(self.id) or not file.is_relative_to(self.folder.resolve()) or not file.is_file():
            return None
        return inflated(file.read_bytes())

    def told(self) -> Log:
        """What was told while it was asked, as far as an export keeps it."""
        log, own = Log(), self.folder / "api" / "traces" / self.id
        log.tell("head", **json.loads(own.with_suffix(".json").read_text(encoding="utf-8")))
        found = json.loads((own / "verdicts.json").read_text(encoding="utf-8"))
        for one in found.pop("verdicts"):
            log.tell("verdict", **one)
        log.tell("findings", **found)
        for file in sorted((own / "analyses").glob("*.bin")):
            log.tell("known", name=file.stem)
        log.tell("done")
        return log


def inflated(data: bytes) -> bytes:
    """A file of an export as it would travel: most are compressed as a whole, and say so in their first two bytes."""
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def stored_in(folder: Path) -> Stored | None:
    """The example in a folder, or None where there is none that can be read."""
    try:
        state = json.loads((folder / "api" / "state.json").read_text(encoding="utf-8"))
        head = json.loads((folder / "api" / "traces" / f"{state['example']}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError):
        return None
    return Stored(folder, state["example"], head["text"], state["models"][0] | {"ready": False})

"""The stored example: answers about one text of the default model, as an export wrote them, for a page that opens at once."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rheoscope.studio.jobs import EventLog

PAGE_FOLDER = Path(__file__).parent / "static"
"""The built page; `make studio` makes it."""
EXAMPLE_FOLDER = "example"
"""The folder of it with the stored example."""


@dataclass(frozen=True, eq=False)
class StoredExample:
    """An export of one text: `folder` has its files, `model` what is told of the model, before it is open."""

    folder: Path
    id: str
    text: str
    model_json: dict[str, Any]

    def read_response(self, path: str, extension: str) -> bytes | None:
        """An answer below api/traces as it would travel, or None where it was not stored."""
        file = (self.folder / "api" / "traces" / f"{path}.{extension}").resolve()
        if not path.startswith(self.id) or not file.is_relative_to(self.folder.resolve()) or not file.is_file():
            return None
        return decompress(file.read_bytes())

    def replay_log(self) -> EventLog:
        """What was told while it was asked, as far as an export keeps it."""
        log, trace_folder = EventLog(), self.folder / "api" / "traces" / self.id
        log.publish("head", **json.loads(trace_folder.with_suffix(".json").read_text(encoding="utf-8")))
        verdicts = json.loads((trace_folder / "verdicts.json").read_text(encoding="utf-8"))
        for verdict in verdicts.pop("verdicts"):
            log.publish("verdict", **verdict)
        log.publish("findings", **verdicts)
        for file in sorted((trace_folder / "analyses").glob("*.bin")):
            log.publish("known", name=file.stem)
        log.publish("done")
        return log


def decompress(data: bytes) -> bytes:
    """A file of an export as it would travel: most are compressed as a whole, and say so in their first two bytes."""
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def load_example(folder: Path) -> StoredExample | None:
    """The example in a folder, or None where there is none that can be read."""
    try:
        state = json.loads((folder / "api" / "state.json").read_text(encoding="utf-8"))
        header = json.loads((folder / "api" / "traces" / f"{state['example']}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError):
        return None
    return StoredExample(folder, state["example"], header["text"], state["models"][0] | {"ready": False})

"""The stored example: an export of one text, which the page shows before a model is loaded."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.jobs import EventLog

PAGE_FOLDER = Path(__file__).parent / "static"
"""The page that `make studio` builds."""
EXAMPLE_FOLDER = "example"
"""Name of the folder, inside the page, that contains the stored example."""


def check_page(page_folder: Path) -> None:
    """Refuse to go on without the built page."""
    if not (page_folder / "index.html").is_file():
        raise RheoscopeError(Message("the studio's page is not built"), Advice("", "make studio"))


@dataclass(frozen=True, eq=False)
class StoredExample:
    """An export of one text. `model_json` describes its model until the model is loaded."""

    folder: Path
    id: str
    text: str
    model_json: dict[str, Any]

    def read_response(self, path: str, extension: str) -> bytes | None:
        """The stored response for a path below api/traces, or None."""
        file = (self.folder / "api" / "traces" / f"{path}.{extension}").resolve()
        if not path.startswith(self.id) or not file.is_relative_to(self.folder.resolve()) or not file.is_file():
            return None
        return decompress(file.read_bytes())

    def read_card(self, model_id: str) -> bytes | None:
        """The stored card of the example's model, or None for any other model."""
        file = self.folder / "api" / "cards" / f"{self.model_json['id']}.json"
        return decompress(file.read_bytes()) if model_id == self.model_json["id"] and file.is_file() else None

    def replay_log(self) -> EventLog:
        """The events of the finished job, rebuilt from the stored files."""
        log, trace_folder = EventLog(), self.folder / "api" / "traces" / self.id
        log.publish("head", **json.loads(trace_folder.with_suffix(".json").read_text(encoding="utf-8")))
        story = json.loads((trace_folder / "story.json").read_text(encoding="utf-8"))
        for line in story.pop("story"):
            log.publish("line", **line)
        log.publish("card", **story.pop("card", {"sentence": None}))
        log.publish("findings", **story)
        for file in sorted((trace_folder / "analyses").glob("*.bin")):
            log.publish("known", name=file.stem)
        log.publish("done")
        return log


def decompress(data: bytes) -> bytes:
    """The contents of a file of an export. Gzip is recognised by its first two bytes."""
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def load_example(folder: Path) -> StoredExample | None:
    """The example in a folder, or None if the folder has no readable example."""
    try:
        state = json.loads((folder / "api" / "state.json").read_text(encoding="utf-8"))
        header = json.loads((folder / "api" / "traces" / f"{state['example']}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError):
        return None
    return StoredExample(folder, state["example"], header["text"], state["models"][0] | {"ready": False})

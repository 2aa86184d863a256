"""Training runs and races in a folder, live while they run."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rheoscope.learn.race_files import SCREEN_FOLDER
from rheoscope.learn.run_state import RunState, run_files, run_reader
from rheoscope.messages.message import Message
from rheoscope.picture.token_labels import printable
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.jobs import MissingError
from rheoscope.studio.report_blocks import block_json

RunVersion = tuple[tuple[str, int, int], ...]
"""The files of a run with their times and sizes. A run with the same version has the same state."""


class TrainingRuns:
    """The runs of a folder: the folder itself, or the folders in it. A run is read again when one of its files has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock, self._states = threading.Lock(), dict[str, tuple[RunVersion, dict[str, Any]]]()

    def folders(self) -> dict[str, Path]:
        """The folder of every run by its id, which is its name."""
        return {printable(folder.name): folder for folder in self._run_folders()} | {
            f"{printable(folder.name)}/{SCREEN_FOLDER}": folder / SCREEN_FOLDER
            for folder in self._run_folders(with_screen=True)
        }

    def _run_folders(self, with_screen: bool = False) -> Iterator[Path]:
        root = self.folder.resolve()
        for folder in [root, *sorted(path for path in root.iterdir() if path.is_dir())]:
            if run_reader(folder / SCREEN_FOLDER if with_screen else folder) is not None:
                yield folder

    def model_roots(self) -> tuple[Path, ...]:
        """The folders whose models and checkpoints may be opened: that of the runs, and each run."""
        return tuple(dict.fromkeys([self.folder, *self._run_folders()]))

    def list_json(self) -> dict[str, Any]:
        """The name of the folder and the ids of its runs."""
        return {"name": printable(self.folder.resolve().name), "runs": list(self.folders())}

    def run_json(self, run_id: str) -> dict[str, Any]:
        """The state of a run as blocks. `live`: whether more evaluations are planned."""
        folder = self.folders().get(run_id)
        reader = None if folder is None else run_reader(folder)
        if folder is None or reader is None:
            raise MissingError(
                Message("there is no run {run!r} in {folder}", run=run_id[:80], folder=printable(str(self.folder)))
            )
        version = run_version(folder)
        with self._lock:
            stored = self._states.get(run_id)
        if stored is not None and stored[0] == version:
            return stored[1]
        try:
            state = state_json(reader(folder))
        except (OSError, ValueError, KeyError) as error:  # a file that another program wrote, or one that is damaged
            raise RheoscopeError(
                Message(
                    "cannot read the run {run}: {reason}",
                    run=run_id,
                    reason=str(error).splitlines()[0] if str(error) else type(error).__name__,
                )
            ) from error
        with self._lock:
            self._states[run_id] = version, state
        return state


def run_version(folder: Path) -> RunVersion:
    """The files of a run with their times and sizes."""
    statistics = [(file.relative_to(folder).as_posix(), file.stat()) for file in run_files(folder)]
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in statistics)


def state_json(state: RunState) -> dict[str, Any]:
    """A state as the page reads it."""
    return {
        "step": state.step,
        "steps": state.steps,
        "live": not state.is_finished,
        "sentence": state.sentence,
        "blocks": list(map(block_json, state.blocks)),
    }

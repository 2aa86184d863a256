"""Checks of the output directory of a training run: files of others and other runs are never overwritten."""

import json
import os
from pathlib import Path
from typing import Any

from rheoscope.files import check_directory
from rheoscope.messages.message import Message
from rheoscope.models import checkpoint, training_state
from rheoscope.shapes import RheoscopeError

RUN_FILES = (
    checkpoint.WEIGHTS, checkpoint.CONFIG, checkpoint.TOKENIZER, checkpoint.CARD,
    training_state.RECIPE, training_state.FIGURES, training_state.LOG, training_state.LAST, training_state.PREVIOUS, training_state.PARTIAL,
)  # fmt: skip
"""The files that a run writes in addition to its data."""


def check_run_directory(out: Path, recipe: dict[str, Any]) -> None:
    """Raise if a directory cannot hold this run: a file, files of others under a run's names, or another run.

    All settings of an existing run are compared except the vocabulary, which depends only on the data.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> check_run_directory(folder, {}), (folder / "log.jsonl").write_text("mine") and None
    (None, None)
    >>> check_run_directory(folder, {})
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: ... contains log.jsonl, which no run of Rheoscope wrote; type out='another_run'
    """
    if os.path.isfile(out):  # Path.is_file would raise without read permission
        raise RheoscopeError(
            Message("{path} is a file, expected a directory for the run", path=str(out)), training_state.ANOTHER_OUT
        )
    check_directory(out)
    stored_recipe = _read_recipe(out)
    has_checkpoint = any(
        training_state.checkpoint_damage(out / name) is None for name in (training_state.LAST, training_state.PREVIOUS)
    )
    if stored_recipe is not None and has_checkpoint:
        data_fields = {"vocabulary": stored_recipe["config"].get("vocabulary")}
        training_state.check_same_recipe(out, stored_recipe, recipe | {"config": recipe["config"] | data_fields})
    if stored_recipe is None and not has_checkpoint:
        foreign = next((name for name in RUN_FILES if os.path.lexists(out / name)), None)
        if foreign is not None:
            raise RheoscopeError(
                Message(
                    "{directory} contains {file}, which no run of Rheoscope wrote", directory=str(out), file=foreign
                ),
                training_state.ANOTHER_OUT,
            )


def _read_recipe(out: Path) -> dict[str, Any] | None:
    """The recipe of the run in a directory, or None if no run stored one."""
    try:
        content = json.loads((out / training_state.RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_recipe = (
        isinstance(content, dict) and isinstance(content.get("config"), dict) and "vocabulary" in content["config"]
    )
    return content if is_recipe else None

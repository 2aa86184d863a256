"""Whose directory a run is written to: an empty one, or one that holds the same run; never over the files of others."""

import json
import os
from pathlib import Path
from typing import Any

from rheoscope.files import check_directory
from rheoscope.models import checkpoint, training_state
from rheoscope.shapes import RheoscopeError

RUN_FILES = (
    checkpoint.WEIGHTS, checkpoint.CONFIG, checkpoint.TOKENIZER, checkpoint.CARD,
    training_state.RECIPE, training_state.FIGURES, training_state.LOG, training_state.LAST, training_state.PREVIOUS, training_state.PARTIAL,
)  # fmt: skip
"""What a run writes beside its data."""


def check_run_directory(out: Path, recipe: dict[str, Any]) -> None:
    """Refuse a place where no run can be, one that holds others' files under the names of a run's, and another run.

    Of another run all settings are compared but the vocabulary, which only the data say.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> check_run_directory(folder, {}), (folder / "log.jsonl").write_text("mine") and None
    (None, None)
    >>> check_run_directory(folder, {})
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: ... holds a log.jsonl that no run of Rheoscope wrote; type another --out
    """
    if os.path.isfile(out):  # a Path would raise where it may not be looked at
        raise RheoscopeError(f"{out} is a file, expected a directory for the run; type another --out")
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
            raise RheoscopeError(f"{out} holds a {foreign} that no run of Rheoscope wrote; type another --out")


def _read_recipe(out: Path) -> dict[str, Any] | None:
    """The recipe of the run in a directory; None where no run stored one."""
    try:
        content = json.loads((out / training_state.RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_recipe = (
        isinstance(content, dict) and isinstance(content.get("config"), dict) and "vocabulary" in content["config"]
    )
    return content if is_recipe else None

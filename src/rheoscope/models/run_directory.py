"""Whose directory a run is written to: an empty one, or one that holds the same run; never over the files of others."""

import json
import os
from pathlib import Path
from typing import Any

from rheoscope.files import check_directory
from rheoscope.models import checkpoint, training_state
from rheoscope.shapes import RheoscopeError

OWN = (
    checkpoint.WEIGHTS, checkpoint.CONFIG, checkpoint.TOKENIZER, checkpoint.CARD,
    training_state.RECIPE, training_state.FIGURES, training_state.LOG, training_state.LAST, training_state.BEFORE, training_state.PARTIAL,
)  # fmt: skip
"""What a run writes beside its data."""


def check_out(out: Path, recipe: dict[str, Any]) -> None:
    """Refuse a place where no run can be, one that holds others' files under the names of a run's, and another run.

    Of another run all settings are compared but the vocabulary, which only the data say.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> check_out(folder, {}), (folder / "log.jsonl").write_text("mine") and None
    (None, None)
    >>> check_out(folder, {})
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: ... holds a log.jsonl that no run of Rheoscope wrote; type another --out
    """
    if os.path.isfile(out):  # a Path would raise where it may not be looked at
        raise RheoscopeError(f"{out} is a file, expected a directory for the run; type another --out")
    check_directory(out)
    held = _recipe_in(out)
    kept = any(training_state.damage(out / name) is None for name in (training_state.LAST, training_state.BEFORE))
    if held is not None and kept:
        of_the_data = {"vocabulary": held["config"].get("vocabulary")}
        training_state.same_recipe(out, held, recipe | {"config": recipe["config"] | of_the_data})
    if held is None and not kept:
        strange = next((name for name in OWN if os.path.lexists(out / name)), None)
        if strange is not None:
            raise RheoscopeError(f"{out} holds a {strange} that no run of Rheoscope wrote; type another --out")


def _recipe_in(out: Path) -> dict[str, Any] | None:
    """The recipe of the run in a directory; None where no run stored one."""
    try:
        told = json.loads((out / training_state.RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    ours = isinstance(told, dict) and isinstance(told.get("config"), dict) and "vocabulary" in told["config"]
    return told if ours else None

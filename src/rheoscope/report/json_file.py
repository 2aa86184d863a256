"""A Dataset for people and for programs: JSON of every number, with its definitions and its provenance."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.files import signature, write_report

if TYPE_CHECKING:
    import xarray


def as_json(dataset: "xarray.Dataset") -> dict[str, Any]:
    """Dimensions, coordinates, values and attrs; NaN and infinity become null."""
    return plain(dataset.to_dict())


def save_json(
    datasets: dict[str, "xarray.Dataset"], path: Path, compared: dict[str, "xarray.Dataset"] | None = None
) -> str:
    """Datasets under their analyses' names; those of a second text the same way, under "compared"."""
    told: dict[str, Any] = {name: as_json(dataset) for name, dataset in datasets.items()}
    if compared is not None:
        told["compared"] = {name: as_json(dataset) for name, dataset in compared.items()}
    return write_json(told, path)


def write_json(told: dict[str, Any], path: Path) -> str:
    """A signed file: the first name says who wrote it, the others are those of `told`."""
    text = json.dumps({"written_by": signature()} | told, ensure_ascii=False, indent=1)
    return write_report(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def plain(value: Any) -> Any:
    """The same as JSON can hold it: NaN and infinity become null, what is no number, word or list becomes text."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)

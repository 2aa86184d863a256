"""A Dataset for people and for programs: JSON of every number, with its definitions and its provenance."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.files import signature, write_report

if TYPE_CHECKING:
    import xarray


def dataset_to_json(dataset: "xarray.Dataset") -> dict[str, Any]:
    """Dimensions, coordinates, values and attrs; NaN and infinity become null."""
    return to_plain_json(dataset.to_dict())


def save_json(
    datasets: dict[str, "xarray.Dataset"], path: Path, compared_datasets: dict[str, "xarray.Dataset"] | None = None
) -> str:
    """Datasets under their analyses' names; those of a second text the same way, under "compared"."""
    content: dict[str, Any] = {name: dataset_to_json(dataset) for name, dataset in datasets.items()}
    if compared_datasets is not None:
        content["compared"] = {name: dataset_to_json(dataset) for name, dataset in compared_datasets.items()}
    return write_json(content, path)


def write_json(content: dict[str, Any], path: Path) -> str:
    """A signed file: the first name says who wrote it, the others are those of `told`."""
    text = json.dumps({"written_by": signature()} | content, ensure_ascii=False, indent=1)
    return write_report(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def to_plain_json(value: Any) -> Any:
    """The same as JSON can hold it: NaN and infinity become null, what is no number, word or list becomes text."""
    if isinstance(value, dict):
        return {str(key): to_plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return to_plain_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)

"""Datasets as JSON: every number with its definition and its provenance."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.files import signature, write_report

if TYPE_CHECKING:
    import xarray


def dataset_to_json(dataset: "xarray.Dataset") -> dict[str, Any]:
    """Dimensions, coordinates, values and attributes. NaN and infinity become null."""
    return to_plain_json(dataset.to_dict())


def save_json(
    datasets: dict[str, "xarray.Dataset"], path: Path, compared_datasets: dict[str, "xarray.Dataset"] | None = None
) -> str:
    """Write each Dataset under the name of its analysis. Those of a second text go under "compared"."""
    content: dict[str, Any] = {name: dataset_to_json(dataset) for name, dataset in datasets.items()}
    if compared_datasets is not None:
        content["compared"] = {name: dataset_to_json(dataset) for name, dataset in compared_datasets.items()}
    return write_json(content, path)


def write_json(content: dict[str, Any], path: Path) -> str:
    """Write a signed file: the first entry is the signature, the others are those of `content`."""
    text = json.dumps({"written_by": signature()} | content, ensure_ascii=False, indent=1)
    return write_report(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def to_plain_json(value: Any) -> Any:
    """A value as JSON can hold it. NaN and infinity become null, and other types become text.

    >>> to_plain_json({"loss": float("nan"), "shape": (2, 3)})
    {'loss': None, 'shape': [2, 3]}
    """
    if isinstance(value, dict):
        return {str(key): to_plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return to_plain_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)

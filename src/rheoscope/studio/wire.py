"""How answers travel: arrays in one binary envelope, pictures and everything else as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.picture.picture import Cells, Line, Picture, Shape, Word
from rheoscope.report.json_file import plain
from rheoscope.space.analysis import Analysis

if TYPE_CHECKING:
    import xarray

MAGIC = b"RHEO"
EDGE = 8
"""Arrays begin at multiples of so many bytes, as typed arrays of a browser want it."""
MISSING, FINE, COARSE = 255, 254, 31
"""The byte that stands for no value, and steps from the least to the largest value of a map; the coarse one compresses well."""
LARGEST = 4_000_000
"""Bytes of one field beyond which it is named and not sent."""
MARKS: dict[type, str] = {Line: "lines", Shape: "shapes", Cells: "cells", Word: "words"}


@dataclass(frozen=True, eq=False)
class Array:
    """One array of an envelope; a byte v of a quantised one stands for zero + v · scale, 255 for nothing where `missing`."""

    values: np.ndarray
    dims: Sequence[str]
    scale: float = 1.0
    zero: float = 0.0
    missing: bool = False

    @property
    def real(self) -> np.ndarray:
        """The numbers that are meant."""
        if self.values.dtype != np.uint8:
            return self.values
        found = self.zero + self.values.astype(np.float32) * np.float32(self.scale)
        return np.where(self.values == MISSING, np.nan, found) if self.missing else found


def as_array(values: Any, dims: Sequence[str]) -> Array:
    """Numbers as they travel: float32 (float16 as it is), int32, and truth as bytes."""
    values = np.asarray(values)
    if values.dtype == bool or values.dtype == np.uint8:
        return Array(values.astype(np.uint8), dims)
    if np.issubdtype(values.dtype, np.integer):
        return Array(values.astype(np.int32), dims)
    return Array(values.astype(np.float16 if values.dtype == np.float16 else np.float32), dims)


def in_bytes(values: np.ndarray, dims: Sequence[str], steps: int = FINE) -> Array:
    """Numbers in one byte each, evenly from the least (0 where none is below) to the largest; what is not finite is missing.

    >>> one = in_bytes(np.array([0.0, 0.5, np.nan]), ["x"])
    >>> one.values.tolist(), one.real.round(3).tolist()
    ([0, 254, 255], [0.0, 0.5, nan])
    """
    there = np.isfinite(values)
    known = values[there] if there.any() else np.zeros(1)
    low, high = min(0.0, float(known.min())), max(0.0, float(known.max()))
    scale = (high - low) / steps or 1.0
    each = np.rint((np.where(there, values, low) - low) / scale).astype(np.uint8)
    return Array(np.where(there, each, np.uint8(MISSING)), dims, scale, low, missing=True)


def packed(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """The envelope: RHEO, the length of the header, the header (JSON), the arrays one after the other."""
    entries, at = [], 0
    for name, one in arrays.items():
        entry = {"name": name, "dtype": str(one.values.dtype), "shape": list(one.values.shape), "dims": list(one.dims)}
        entries.append(entry | {"offset": at, "scale": one.scale, "zero": one.zero, "missing": one.missing})
        at += -(-one.values.nbytes // EDGE) * EDGE
    text = written(dict(header) | {"arrays": entries})
    text += b" " * (-(8 + len(text)) % EDGE)
    parts = [MAGIC, len(text).to_bytes(4, "little"), text]
    for one in arrays.values():
        data = np.ascontiguousarray(one.values).astype(one.values.dtype.newbyteorder("<")).tobytes()
        parts.append(data + bytes(-len(data) % EDGE))
    return b"".join(parts)


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays of an envelope, as the page reads them."""
    assert data[:4] == MAGIC
    begin = 8 + int.from_bytes(data[4:8], "little")
    header = json.loads(data[8:begin])
    found = {}
    for one in header["arrays"]:
        many = int(np.prod(one["shape"]))
        values = np.frombuffer(data, np.dtype(one["dtype"]).newbyteorder("<"), many, begin + one["offset"])
        found[one["name"]] = Array(values.reshape(one["shape"]), one["dims"], one["scale"], one["zero"], one["missing"])
    return header, found


def written(value: Any) -> bytes:
    """JSON in UTF-8; NaN and infinity are null."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def of_dataset(dataset: "xarray.Dataset", analysis: Analysis, pictures: Sequence[Picture]) -> bytes:
    """The answer of an analysis: every field, what it means, its pictures; a field too large to send is named."""
    large = [str(name) for name, one in dataset.data_vars.items() if one.nbytes > LARGEST]
    sent = {str(name): one for name, one in dataset.data_vars.items() if name not in large}
    words = {name: one for name, one in sent.items() if one.dtype.kind in "OUS"}
    header = {
        "name": analysis.name,
        "question": analysis.question,
        "attrs": dataset.attrs,
        "coords": {
            str(name): {"dims": list(one.dims), "values": one.values.tolist()} for name, one in dataset.coords.items()
        },
        "fields": {name: of_field(analysis, name) for name in sent},
        "texts": {name: one.values.tolist() for name, one in words.items()},
        "pictures": [of_picture(one) for one in pictures],
        "left_out": large,
    }
    numbers = {name: as_array(one.values, list(map(str, one.dims))) for name, one in sent.items() if name not in words}
    return packed(header, numbers)


def of_field(analysis: Analysis, name: str) -> dict[str, Any]:
    """What a field of an answer means."""
    one = analysis.fields[name]
    return {item.name: getattr(one, item.name) for item in fields(one)} | {"dims": list(one.dims)}


def of_picture(picture: Picture) -> dict[str, Any]:
    """A picture as JSON, key by key what its dataclasses hold; a mark says which kind it is."""
    return {"kind": "picture"} | _of_value(picture)


def _of_value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        kind = {"mark": MARKS[type(value)]} if type(value) in MARKS else {}
        return kind | {item.name: _of_value(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, frozenset):
        return sorted(_of_value(part) for part in value)
    if isinstance(value, list | tuple | range):
        return [_of_value(part) for part in value]
    return value

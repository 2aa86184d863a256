"""The wire format: arrays in a binary envelope, everything else as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.catalogue import words_by_name
from rheoscope.messages.message import Command, Message
from rheoscope.picture.picture import Cells, Label, Line, Picture, Shape
from rheoscope.report.json_file import to_plain_json
from rheoscope.space.analysis import Analysis

if TYPE_CHECKING:
    import xarray

MAGIC = b"RHEO"
ALIGNMENT = 8
"""Arrays start at multiples of this many bytes, as typed arrays in a browser require."""
MISSING_BYTE, FINE_LEVELS, COARSE_LEVELS = 255, 254, 31
"""The byte for a missing value, and the number of quantisation levels. The coarse one compresses well."""
MAX_FIELD_BYTES = 4_000_000
"""A larger field is listed by name but not sent."""
MARK_TAGS: dict[type, str] = {Line: "lines", Shape: "shapes", Cells: "cells", Label: "words"}


@dataclass(frozen=True, eq=False)
class WireArray:
    """One array of an envelope. A byte v of a quantised array means zero + v · scale; 255 is missing if `has_missing`."""

    values: np.ndarray
    dims: Sequence[str]
    scale: float = 1.0
    zero: float = 0.0
    has_missing: bool = False

    @property
    def decoded_values(self) -> np.ndarray:
        """The values after undoing the quantisation."""
        if self.values.dtype != np.uint8:
            return self.values
        decoded = self.zero + self.values.astype(np.float32) * np.float32(self.scale)
        return np.where(self.values == MISSING_BYTE, np.nan, decoded) if self.has_missing else decoded


def to_wire_array(values: Any, dims: Sequence[str]) -> WireArray:
    """Values in a dtype of the wire: float32, float16, int32, or bytes for booleans."""
    values = np.asarray(values)
    if values.dtype == bool or values.dtype == np.uint8:
        return WireArray(values.astype(np.uint8), dims)
    if np.issubdtype(values.dtype, np.integer):
        return WireArray(values.astype(np.int32), dims)
    return WireArray(values.astype(np.float16 if values.dtype == np.float16 else np.float32), dims)


def quantise(values: np.ndarray, dims: Sequence[str], n_levels: int = FINE_LEVELS) -> WireArray:
    """Values in one byte each, on an even grid that includes 0. Values that are not finite are missing.

    >>> array = quantise(np.array([0.0, 0.5, np.nan]), ["x"])
    >>> array.values.tolist(), array.decoded_values.round(3).tolist()
    ([0, 254, 255], [0.0, 0.5, nan])
    """
    is_finite = np.isfinite(values)
    finite_values = values[is_finite] if is_finite.any() else np.zeros(1)
    low, high = min(0.0, float(finite_values.min())), max(0.0, float(finite_values.max()))
    scale = (high - low) / n_levels or 1.0
    levels = np.rint((np.where(is_finite, values, low) - low) / scale).astype(np.uint8)
    return WireArray(np.where(is_finite, levels, np.uint8(MISSING_BYTE)), dims, scale, low, has_missing=True)


def pack_envelope(header: Mapping[str, Any], arrays: Mapping[str, WireArray]) -> bytes:
    """The envelope: RHEO, the length of the header, the header as JSON, then the arrays."""
    entries, offset = [], 0
    for name, array in arrays.items():
        entry = {
            "name": name,
            "dtype": str(array.values.dtype),
            "shape": list(array.values.shape),
            "dims": list(array.dims),
        }
        entries.append(
            entry | {"offset": offset, "scale": array.scale, "zero": array.zero, "missing": array.has_missing}
        )
        offset += -(-array.values.nbytes // ALIGNMENT) * ALIGNMENT
    header_bytes = encode_json(dict(header) | {"arrays": entries})
    header_bytes += b" " * (-(8 + len(header_bytes)) % ALIGNMENT)
    parts = [MAGIC, len(header_bytes).to_bytes(4, "little"), header_bytes]
    for array in arrays.values():
        data = np.ascontiguousarray(array.values).astype(array.values.dtype.newbyteorder("<")).tobytes()
        parts.append(data + bytes(-len(data) % ALIGNMENT))
    return b"".join(parts)


def unpack_envelope(data: bytes) -> tuple[dict[str, Any], dict[str, WireArray]]:
    """The header and the arrays of an envelope."""
    assert data[:4] == MAGIC
    arrays_start = 8 + int.from_bytes(data[4:8], "little")
    header = json.loads(data[8:arrays_start])
    arrays = {}
    for entry in header["arrays"]:
        n_values = int(np.prod(entry["shape"]))
        values = np.frombuffer(
            data, np.dtype(entry["dtype"]).newbyteorder("<"), n_values, arrays_start + entry["offset"]
        )
        arrays[entry["name"]] = WireArray(
            values.reshape(entry["shape"]), entry["dims"], entry["scale"], entry["zero"], entry["missing"]
        )
    return header, arrays


def encode_json(value: Any) -> bytes:
    """JSON in UTF-8. NaN and infinity become null. A Message keeps its template, so that the page can translate it."""
    plain = to_plain_json(message_values(value))
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def message_values(value: Any) -> Any:
    """The same value with every Message replaced by its template and parameters, and every Command marked as one.

    >>> message_values([Message("{n} heads", n=3), "text"])
    [{'template': '{n} heads', 'parameters': {'n': 3}}, 'text']
    """
    if isinstance(value, Message):
        parameters = {name: message_values(part) for name, part in value.parameters.items()}
        return {"template": value.template, "parameters": parameters} if parameters else str(value)
    if isinstance(value, Command):
        return {"command": str(value)}
    if isinstance(value, dict):
        return {key: message_values(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [message_values(part) for part in value]
    return value


def pack_dataset(dataset: "xarray.Dataset", analysis: Analysis, pictures: Sequence[Picture]) -> bytes:
    """The result of an analysis: its main sentence, its fields, their definitions and its pictures.

    Fields that are too large are only named.
    """
    omitted = [str(name) for name, variable in dataset.data_vars.items() if variable.nbytes > MAX_FIELD_BYTES]
    sent_fields = {str(name): variable for name, variable in dataset.data_vars.items() if name not in omitted}
    text_fields = {name: variable for name, variable in sent_fields.items() if variable.dtype.kind in "OUS"}
    header = {
        "name": analysis.name,
        "question": analysis.question,
        "sentence": words_by_name(analysis.name).result_sentence(dataset) or "",
        "attrs": dataset.attrs,
        "coords": {
            str(name): {"dims": list(coordinate.dims), "values": coordinate.values.tolist()}
            for name, coordinate in dataset.coords.items()
        },
        "fields": {name: field_json(analysis, name) for name in sent_fields},
        "texts": {name: variable.values.tolist() for name, variable in text_fields.items()},
        "pictures": [picture_json(picture) for picture in pictures],
        "left_out": omitted,
    }
    arrays = {
        name: to_wire_array(variable.values, list(map(str, variable.dims)))
        for name, variable in sent_fields.items()
        if name not in text_fields
    }
    return pack_envelope(header, arrays)


def field_json(analysis: Analysis, name: str) -> dict[str, Any]:
    """The declaration of a field: definition, unit, dimensions and null."""
    field_spec = analysis.fields[name]
    return {item.name: getattr(field_spec, item.name) for item in fields(field_spec)} | {"dims": list(field_spec.dims)}


def picture_json(picture: Picture) -> dict[str, Any]:
    """A picture as JSON, with the fields of its dataclasses as keys. Each mark names its kind."""
    return {"kind": "picture"} | value_json(picture)


def value_json(value: Any) -> Any:
    """A value of dataclasses, arrays, sets and mappings as plain JSON. A mapping becomes pairs, because its keys may be messages."""
    if is_dataclass(value) and not isinstance(value, type):
        tag = {"mark": MARK_TAGS[type(value)]} if type(value) in MARK_TAGS else {}
        return tag | {item.name: value_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return [[name, value_json(item)] for name, item in value.items()]
    if isinstance(value, frozenset):
        return sorted(value_json(element) for element in value)
    if isinstance(value, list | tuple | range):
        return [value_json(element) for element in value]
    return value

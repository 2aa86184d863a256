"""The gallery of models: their size and family, read from their files, and whether each is certified or refused."""

import json
import math
from pathlib import Path
from typing import Any

from rheoscope.messages.message import Message
from rheoscope.opening import DEFAULT_MODEL, DEFAULT_NAME
from rheoscope.picture.token_labels import printable
from rheoscope.report.hub_cache import cached_snapshot
from rheoscope.shapes import RheoscopeError
from rheoscope.studio import descriptions
from rheoscope.studio.content_ids import make_model_id
from rheoscope.studio.session import OpenedModel, Session

MAX_HEADER_BYTES = 64_000_000
"""Longest header of a weight file that is read."""
SIZE_KEYS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "depth", "layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "heads"),
}
"""Names of sizes in a config.json."""


def gallery_json(session: Session) -> list[dict[str, Any]]:
    """An entry for each model that can be opened.

    `status` is unopened, loading, open or refused. `note` is the certificate of an open model and the reason for a refusal.
    """
    return [_entry_json(session, source) for source in session.sources.available_names()]


def _entry_json(session: Session, source: str) -> dict[str, Any]:
    model_id = make_model_id(source)
    opened_model = session.models.get(model_id)
    entry = {"source": source, "id": model_id} | _describe_files(source) | {"tokens_per_second": None}
    if opened_model is None:
        return entry | {"status": "unopened", "note": ""}
    return entry | _describe_opened(opened_model) | {"tokens_per_second": session.tokens_per_second.get(model_id)}


def _describe_opened(opened_model: OpenedModel) -> dict[str, Any]:
    facts = descriptions.model_json(opened_model.id, opened_model.id, opened_model.model)
    if opened_model.model is not None:
        names = ("layers", "heads", "parameters", "certificate")
        opened = {name: facts[name] for name in names}
        return {"status": "open", "note": opened.pop("certificate")} | opened
    result = opened_model.job.result
    error = result.exception() if result.done() and not result.cancelled() else None
    if error is None:
        return {"status": "loading", "note": ""}
    if isinstance(error, RheoscopeError):
        return _refused(error)
    return _refused(
        RheoscopeError(Message("loading failed ({kind}); the terminal shows details", kind=type(error).__name__))
    )


def _refused(error: RheoscopeError) -> dict[str, Any]:
    return {"status": "refused", "note": error.on("page")}


def _describe_files(source: str) -> dict[str, Any]:
    """What the files of a model say about it, before it is opened. Facts that are not there are None."""
    folder = _model_folder(source)
    config = _read_config(folder)
    sizes = {
        name: next((config[key] for key in keys if isinstance(config.get(key), int)), None)
        for name, keys in SIZE_KEYS.items()
    }
    family = config.get("model_type")
    return {
        "name": Message("the default model") if source == DEFAULT_NAME else printable(Path(source).name),
        "family": printable(family) if isinstance(family, str) else None,
        "parameters": _count_parameters(folder),
    } | sizes


def _model_folder(source: str) -> Path | None:
    if source == DEFAULT_NAME:
        return DEFAULT_MODEL
    return Path(source) if Path(source).is_dir() else cached_snapshot(source)


def _read_config(folder: Path | None) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _count_parameters(folder: Path | None) -> int | None:
    """The number of values in the safetensors files of a folder, read from their headers."""
    files = sorted(folder.glob("*.safetensors")) if folder else []
    try:
        return sum(map(_count_values, files)) or None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _count_values(file: Path) -> int:
    with file.open("rb") as stream:
        n_bytes = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(n_bytes)) if n_bytes <= MAX_HEADER_BYTES else {}
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")

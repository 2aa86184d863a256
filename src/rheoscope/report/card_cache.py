"""Measurements of claims on disk, so that an interrupted card resumes and a finished one is not measured again."""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from rheoscope.files import atomic_file
from rheoscope.space.claim import Claim, ClaimSample, Measured
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

SHIPPED_CARDS = Path(__file__).parent / "cards"
"""Cards that come with the package, by the digest of the weights."""
FIELDS = ("observed", "reference", "draws")


def cache_folder() -> Path:
    """The folder of measurements in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "rheoscope" / "cards"


def find_card(view: View) -> "xarray.Dataset | None":
    """The card of a model: the one that comes with the package, or the last one in the user's cache. None without one."""
    names = dict.fromkeys((str(view.facts.get("pair_weights", view.facts.get("weights"))), card_name(view.facts)))
    for path in (folder / f"{name}.json" for name in names for folder in (SHIPPED_CARDS, cache_folder())):
        if path.is_file():
            return read_card(path)
    return None


def stored_cards() -> "list[xarray.Dataset]":
    """Every stored card: those of the package, then those of the user's cache, by file name. Damaged files are left out."""
    shipped = sorted(SHIPPED_CARDS.glob("*.json"))
    names = {path.name for path in shipped}
    cards = []
    for path in [*shipped, *(path for path in sorted(cache_folder().glob("*.json")) if path.name not in names)]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            cards.append(read_card(path))
    return cards


def card_name(facts: Mapping[str, object]) -> str:
    """The name of a stored card: the digest of the weights, and the side for the card of one side of an encoder-decoder.

    >>> card_name({"weights": "12ab"}), card_name({"weights": "12ab", "side": "source"})
    ('12ab', '12ab-source')
    """
    return "-".join(str(facts[name]) for name in ("weights", "side") if name in facts)


def store_card(card: "xarray.Dataset") -> None:
    """Store a card in the user's cache, where stories of the same model find it."""
    path = cache_folder() / f"{card_name({str(key): value for key, value in card.attrs.items()})}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(card.to_dict()), encoding="utf-8")


def read_card(path: Path) -> "xarray.Dataset":
    """A stored card."""
    import xarray as xr

    return xr.Dataset.from_dict(json.loads(path.read_text(encoding="utf-8")))


def cached_measurement(claim: Claim, sample: ClaimSample, folder: Path | None, version: str) -> Mapping[str, Measured]:
    """The measurement of a claim, from disk if the same weights, texts, settings and version were measured before."""
    if folder is None:
        return claim.measure(sample)
    path = folder / f"{measurement_key(claim, sample, version)}.npz"
    if path.is_file():
        return _read(path)
    measured = claim.measure(sample)
    _write(measured, path)
    return measured


def measurement_key(claim: Claim, sample: ClaimSample, version: str) -> str:
    """A name of the weights, the token ids or first points, the claim, its words and settings, and the version of the package."""
    view = sample.model.view
    parts: list[object] = [version, claim.name, view.facts.get("weights"), view.facts.get("dtype")]
    digest = hashlib.sha256(repr([*parts, sample.draws, sample.seed]).encode())
    if claim.word_file is not None:
        digest.update(claim.word_file.read_bytes())
    for traces in sample.batches:
        for memory in traces.memories:
            digest.update(memory.cpu().numpy().tobytes())
        digest.update(repr(traces.ids.shape).encode() + traces.ids.cpu().numpy().tobytes())
        if not view.reads_tokens:  # ids of patches are the same in all images
            digest.update(traces.points[:, 0].float().cpu().numpy().tobytes())
    return f"{claim.name}-{digest.hexdigest()[:24]}"


def _write(measured: Mapping[str, Measured], path: Path) -> None:
    arrays = {
        f"{part}.{name}": value.cpu().numpy()
        for part, values in measured.items()
        for name in FIELDS
        if (value := getattr(values, name)) is not None
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def _read(path: Path) -> dict[str, Measured]:
    fields: dict[str, dict[str, torch.Tensor]] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            part, _, name = key.rpartition(".")
            fields.setdefault(part, {})[name] = torch.from_numpy(arrays[key])
    return {part: Measured(**values) for part, values in fields.items()}

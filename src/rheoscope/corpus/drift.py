"""How far two corpora differ, field by field and head by head: effect sizes, and how sure after all these tests."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rheoscope.catalogue import analysis
from rheoscope.corpus.corpus_result import Corpus, places
from rheoscope.corpus.merged_summary import Kept
from rheoscope.shapes import RheoscopeError
from rheoscope.statistics.nulls import q_values, two_sided

if TYPE_CHECKING:
    import xarray

ENOUGH = 30
"""Documents on each side from which on the difference of two means is near a normal law."""
LEVEL = 0.05
"""Share of false finds that is put up with."""


def drift(one: Corpus, other: Corpus) -> "dict[str, xarray.Dataset]":
    """Every analysis that two runs share, with how far each field moved from the first to the second.

    **Formula** effect d = (m₂ − m₁)/√((s₁² + s₂²)/2) (Cohen); z = (m₂ − m₁)/√(e₁² + e₂²) of means over texts, whose standard
    errors e take the pieces of one document together (Welch's, where a document is one text). q corrects for all fields and places of both
    runs together.

    **Gives** by analysis: `field` (the second mean less the first), `field_effect`, `field_q_value`, each with the axes of the field.
    """
    if one.manifest.model["weights"] != other.manifest.model["weights"]:
        raise RheoscopeError(
            f"drift is between two corpora in one model, got {one.manifest.model['weights']} and "
            f"{other.manifest.model['weights']}; type runs of the same --model"
        )
    shared = [key for key in one.summaries if key in other.summaries and _alike(one, other, key)]
    if not shared:
        raise RheoscopeError(f"{one.folder} and {other.folder} share no analysis; type runs of the same --analyses")
    found = {key: _compared(one.summaries[key], other.summaries[key]) for key in shared}
    p = torch.cat([torch.from_numpy(values["p_value"]) for values in found.values()])
    q = dict(zip(found, q_values(p).split([len(values["p_value"]) for values in found.values()]), strict=True))
    return {
        name: _dataset(one, name, {key[1]: found[key] | {"q_value": q[key].numpy()} for key in found if key[0] == name})
        for name in dict.fromkeys(key[0] for key in shared)
    }


def _alike(one: Corpus, other: Corpus, key: tuple[str, str]) -> bool:
    """The same settings and the same places; what chance gives is no field of its own here."""
    name, field = key
    asked = [corpus.manifest.job.analyses.get(name) for corpus in (one, other)]
    nulls = {part for told in analysis(name).fields.values() for part in (told.null, told.null_sd)}
    return asked[0] == asked[1] and one.summaries[key].shape == other.summaries[key].shape and field not in nulls


def _compared(one: Kept, other: Kept) -> dict[str, np.ndarray]:
    """Difference, effect and p of every cell; NaN where there are too few documents, or no spread."""
    (m1, s1), (m2, s2) = one.summary.moments(), other.summary.moments()
    n1, n2 = one.summary.documents.count, other.summary.documents.count
    pooled, error = np.sqrt((s1**2 + s2**2) / 2), np.hypot(one.summary.errors(), other.summary.errors())
    usable = (np.minimum(n1, n2) >= ENOUGH) & (error > 0)
    effect, z = (np.where(usable, (m2 - m1) / np.where(usable, by, 1), np.nan) for by in (pooled, error))
    return {"": m2 - m1, "effect": effect, "p_value": two_sided(torch.from_numpy(z)).numpy()}


def _dataset(corpus: Corpus, name: str, fields: dict[str, dict[str, np.ndarray]]) -> "xarray.Dataset":
    import xarray as xr

    data: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for field, values in fields.items():
        one = corpus.summaries[name, field]
        sizes |= dict(zip(one.dims, one.shape, strict=True))
        for part in ("", "effect", "q_value"):
            data["_".join(word for word in (field, part) if word)] = one.dims, values[part].reshape(one.shape)
    coords = {dim: places(name, dim, size, corpus.manifest.model) for dim, size in sizes.items()}
    return xr.Dataset(data, coords, {"analysis": name})

"""Drift between two corpora, per field and cell: effect sizes and q values."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rheoscope.catalogue import analysis_by_name
from rheoscope.corpus.corpus_result import CorpusRun, axis_labels
from rheoscope.corpus.merged_summary import FieldSummary
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.statistics.nulls import normal_two_sided_p, q_values

if TYPE_CHECKING:
    import xarray

MIN_DOCUMENTS = 30
"""The number of documents per corpus from which the difference of means is close to normal."""
FALSE_DISCOVERY_RATE = 0.05
"""The accepted share of false discoveries."""


def drift(first: CorpusRun, second: CorpusRun) -> "dict[str, xarray.Dataset]":
    """The differences between two runs of the same model, for every analysis that both have.

    **Formula** Effect d = (m₂ − m₁)/√((s₁² + s₂²)/2) (Cohen). z = (m₂ − m₁)/√(e₁² + e₂²) for means over texts. The
    standard errors e treat the segments of a document as one unit (Welch's if every document is one text). q is
    corrected over all fields and cells of both runs.

    **Returns** By analysis: `field` (second mean − first mean), `field_effect` and `field_q_value`, with the axes
    of the field.
    """
    if first.manifest.model["weights"] != second.manifest.model["weights"]:
        raise RheoscopeError(
            Message(
                "drift needs two runs of the same model, got weights {first} and {second}",
                first=first.manifest.model["weights"],
                second=second.manifest.model["weights"],
            )
        )
    shared = [key for key in first.summaries if key in second.summaries and _is_comparable(first, second, key)]
    if not shared:
        raise RheoscopeError(
            Message(
                "{first} and {second} have no analysis with the same settings in common",
                first=str(first.folder),
                second=str(second.folder),
            )
        )
    comparisons = {key: _compare(first.summaries[key], second.summaries[key]) for key in shared}
    p = torch.cat([torch.from_numpy(values["p_value"]) for values in comparisons.values()])
    q = dict(
        zip(comparisons, q_values(p).split([len(values["p_value"]) for values in comparisons.values()]), strict=True)
    )
    return {
        name: _dataset(
            first,
            name,
            {key[1]: comparisons[key] | {"q_value": q[key].numpy()} for key in comparisons if key[0] == name},
        )
        for name in dict.fromkeys(key[0] for key in shared)
    }


def _is_comparable(first: CorpusRun, second: CorpusRun, key: tuple[str, str]) -> bool:
    """Whether both runs have the same settings and cells. Null fields are not compared."""
    name, field = key
    settings = [corpus.manifest.job.analyses.get(name) for corpus in (first, second)]
    nulls = {
        null_field
        for declared_field in analysis_by_name(name).fields.values()
        for null_field in (declared_field.null, declared_field.null_sd)
    }
    return (
        settings[0] == settings[1] and first.summaries[key].shape == second.summaries[key].shape and field not in nulls
    )


def _compare(first: FieldSummary, second: FieldSummary) -> dict[str, np.ndarray]:
    """The difference, effect and p value of every cell. NaN for too few documents or without spread."""
    (m1, s1), (m2, s2) = first.summary.moments(), second.summary.moments()
    n1, n2 = first.summary.documents.count, second.summary.documents.count
    pooled, error = (
        np.sqrt((s1**2 + s2**2) / 2),
        np.hypot(first.summary.standard_errors(), second.summary.standard_errors()),
    )
    usable = (np.minimum(n1, n2) >= MIN_DOCUMENTS) & (error > 0)
    effect, z = (
        np.where(usable, (m2 - m1) / np.where(usable, denominator, 1), np.nan) for denominator in (pooled, error)
    )
    return {"": m2 - m1, "effect": effect, "p_value": normal_two_sided_p(torch.from_numpy(z)).numpy()}


def _dataset(corpus: CorpusRun, name: str, fields: dict[str, dict[str, np.ndarray]]) -> "xarray.Dataset":
    import xarray as xr

    data: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for field, values in fields.items():
        field_summary = corpus.summaries[name, field]
        sizes |= dict(zip(field_summary.dims, field_summary.shape, strict=True))
        for suffix in ("", "effect", "q_value"):
            data["_".join(name_part for name_part in (field, suffix) if name_part)] = (
                field_summary.dims,
                values[suffix].reshape(field_summary.shape),
            )
    coords = {dim: axis_labels(name, dim, size, corpus.manifest.model) for dim, size in sizes.items()}
    return xr.Dataset(data, coords, {"analysis": name})

"""Text about retained geometry, compared with untrained models."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_fixed
from rheoscope.space.results import Results
from rheoscope.space.words import Words
from rheoscope.statistics.statement import Statement, from_draws

if TYPE_CHECKING:
    import xarray


def geometry_retention(results: Results) -> Statement | None:
    if not results.has("geometry_kept"):
        return None
    value = _final_rsa(results.datasets["geometry_kept"])
    null = results.control_values("geometry_kept", _final_rsa)
    if not null:
        return None
    comparison = (
        Message("The model keeps less of the embedding's geometry than untrained models do")
        if value < np.mean(null)
        else Message("The model keeps more of the embedding's geometry than untrained models do")
    )
    text = Message(
        "{comparison}: distances at the end correlate by {value} with those at the embedding (untrained {null}).",
        comparison=comparison,
        value=format_fixed(value),
        null=format_fixed(float(np.mean(null))),
    )
    return from_draws(text, "geometry_kept", value, null)


def _final_rsa(dataset: "xarray.Dataset") -> float:
    return float(dataset.sel(reference="embed").isel(point=-1).rsa)


WORDS = Words(findings=(geometry_retention,))

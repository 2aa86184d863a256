"""Text about distortion: do queries and keys read the same subspace?"""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_fixed, format_number
from rheoscope.space.results import Results
from rheoscope.space.training_quantity import TrainingQuantity
from rheoscope.space.words import Words
from rheoscope.statistics.statement import Statement, from_moments

if TYPE_CHECKING:
    import xarray


def query_key_mismatch(results: Results) -> Statement | None:
    distortion = results.datasets.get("distortion")
    if distortion is None:
        return None
    value, null, null_sd = (float(distortion[f"mean_mismatch{suffix}"]) for suffix in ("", "_null", "_null_sd"))
    comparison = (
        Message("Queries and keys read more similar subspaces than randomly rotated heads")
        if value < null
        else Message("Queries and keys read less similar subspaces than randomly rotated heads")
    )
    text = Message(
        "{comparison} (mean sin² of the principal angles {value}; null {null}).",
        comparison=comparison,
        value=format_fixed(value),
        null=format_fixed(null),
    )
    return from_moments(text, "distortion", value, null, null_sd)


def sampling_note(distortion: "xarray.Dataset") -> Message | None:
    """The sample of distances on a long text, and its error."""
    if "rsa_error" not in distortion:
        return None
    return Message(
        "Distortion samples the distances from {n} tokens (± {error} per head).",
        n=distortion.attrs["max_tokens"],
        error=format_number(float(distortion.rsa_error.mean())),
    )


TRAINING_QUANTITIES = (
    TrainingQuantity(
        4,
        "distortion",
        "distortion",
        "rsa",
        "rsa_null",
        Message("rank correlation of distances before and after projection, mean over heads and images"),
        {"draws": 2},
    ),
)


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How far each image keeps the distances."""
    means = {str(name): format_number(float(dataset.mean_rsa.sel(image=name))) for name in dataset.image.values}
    return Message(
        "Distances in E correlate by {query} with those between queries, by {key} between keys and by {content} between value outputs.",
        **means,
    )


WORDS = Words(
    sentence=main_sentence,
    training_quantities=TRAINING_QUANTITIES,
    findings=(query_key_mismatch,),
    sampling_note=sampling_note,
)

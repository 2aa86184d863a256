"""Text about distortion: do projections deform distances, and do queries and keys read the same subspace?"""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_fixed, format_number
from rheoscope.space.questions import Question
from rheoscope.space.results import Results
from rheoscope.space.training_quantity import TrainingQuantity
from rheoscope.space.words import Words
from rheoscope.statistics.statement import Statement, from_draws, from_moments
from rheoscope.statistics.verdict import Verdict, control_text, null_text

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


def judge(results: Results, question: Question) -> Verdict:
    distortion = results.datasets["distortion"]
    statement = from_draws(
        "", "distortion", float(distortion.mean_rsa.mean()), distortion.mean_rsa_null_draws.mean("image").values
    )
    deformation_claim = question.claim(statement, statement.value < statement.null, 0.05)
    if not deformation_claim.statement.is_significant:
        comparison = Message("Projections deform distances as much as random rotations do")
    elif statement.value < statement.null:
        comparison = Message("Projections deform distances more than random rotations do")
    else:
        comparison = Message("Projections deform distances less than random rotations do")
    per_image = {
        f"as_{name}": format_number(float(distortion.mean_rsa.sel(image=name))) for name in distortion.image.values
    }
    untrained = results.control_values("distortion", lambda dataset: float(dataset.mean_rsa.mean()))
    line = Message(
        "{comparison}: distances before and after correlate by {value} (query {as_query}, key {as_key}, content {as_content}; "
        "randomly rotated heads {null}{control}).",
        comparison=comparison,
        value=format_number(statement.value),
        null=null_text(statement),
        control=control_text(untrained),
        **per_image,
    )
    return question.from_claims([deformation_claim], line)


QUESTION = Question(
    order=2,
    name="deformation",
    question=Message("Do the projections deform the geometry?"),
    needs=("distortion",),
    deeper="rheoscope analyse distortion",
    judge=judge,
)


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
WORDS = Words(
    training_quantities=TRAINING_QUANTITIES,
    findings=(query_key_mismatch,),
    question=QUESTION,
    sampling_note=sampling_note,
)

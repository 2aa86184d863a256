"""The claim that scores track similarity."""

from rheoscope.covers.agreement.analysis import batch
from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured
from rheoscope.space.traces import Traces


def measure(sample: ClaimSample) -> dict[str, Measured]:
    def measure_batch(traces: Traces) -> Measured:
        values = batch(traces, draws=sample.draws, seed=sample.seed)
        return Measured(values["mean_agreement"], draws=values["mean_agreement_null_draws"].mT)

    return {"similarity": sample.over_batches(measure_batch)}


CLAIMS = (
    Claim(
        order=1,
        name="similarity",
        statement=Message("Scores track similarity in the space that the head reads"),
        parts=(
            ClaimPart(
                "similarity",
                Message(
                    "partial rank correlation of the score with the cosine of centred x̂, controlling for distance and key length; "
                    "mean over queries and heads"
                ),
                0.05,
                bounds=(-2.0, 2.0),
            ),
        ),
        reason=Message("below a correlation of .05, similarity explains less than .3 % of the order of the scores"),
        null=Message("random M with the same singular values"),
        random_models="rotated",
        measure=measure,
        document="A",
    ),
)

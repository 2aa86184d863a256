"""Text about fixed points: the residual that is followed while a model trains."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number, format_percent
from rheoscope.space.training_quantity import TrainingQuantity
from rheoscope.space.words import Words
from rheoscope.statistics.field_summaries import median_of

if TYPE_CHECKING:
    import xarray

TRAINING_QUANTITIES = (
    TrainingQuantity(
        5,
        "fixed_point",
        "residual",
        "residual",
        "",
        Message("‖T(X) − X‖/‖X‖ of a layer, mean over layers"),
        {"applications": 1, "iterations": 0, "draws": 0},
    ),
)


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How far a layer moves the cloud, and whether repetition brings it to rest."""
    repeated = dataset.repeated_rotation_angle.isel(application=-1)
    return Message(
        "In the median, a layer moves the cloud by {residual} of its norm; application {n} turns directions by {angle} rad.",
        residual=format_percent(median_of(dataset.residual)),
        n=int(dataset.application[-1]),
        angle=format_number(median_of(repeated)),
    )


WORDS = Words(sentence=main_sentence, training_quantities=TRAINING_QUANTITIES)

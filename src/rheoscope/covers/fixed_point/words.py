"""Text about fixed points: the residual that is followed while a model trains."""

from rheoscope.messages.message import Message
from rheoscope.space.training_quantity import TrainingQuantity
from rheoscope.space.words import Words

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
WORDS = Words(training_quantities=TRAINING_QUANTITIES)

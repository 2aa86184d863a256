"""Text about the types of heads: the quantities that are followed during training."""

from rheoscope.messages.message import Message
from rheoscope.space.training_quantity import TrainingQuantity, maximum
from rheoscope.space.words import Words

TRAINING_QUANTITIES = (
    TrainingQuantity(
        8,
        "head_types",
        "itself",
        "self_weight",
        "self_weight_null",
        Message("mean weight of a token on itself, mean over heads"),
    ),
    TrainingQuantity(
        9, "head_types", "sink", "sink", "sink_null", Message("mean weight on the first token, mean over heads")
    ),
    TrainingQuantity(
        10,
        "head_types",
        "induction",
        "induction",
        "induction_null",
        Message("weight on the token after the previous occurrence, on repeated random tokens; maximum over heads"),
        reduce=maximum,
        uses_text=False,
    ),
)
WORDS = Words(
    training_quantities=TRAINING_QUANTITIES,
)

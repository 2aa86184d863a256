"""Text about the types of heads: what the heads behind a prediction read, and the quantities followed during training."""

from collections import Counter
from typing import TYPE_CHECKING

from rheoscope.covers.head_types import reading_arcs
from rheoscope.covers.head_types.head_list import TYPE_NAMES, blocks
from rheoscope.messages.message import Message, join
from rheoscope.messages.numbers import format_number
from rheoscope.picture.token_labels import quoted_token
from rheoscope.space.results import Results
from rheoscope.space.story_line import StoryLine, StoryPicture
from rheoscope.space.training_quantity import TrainingQuantity, maximum
from rheoscope.space.words import ReportSection, Words

if TYPE_CHECKING:
    import xarray


def heads_at_work(results: Results) -> Message:
    """The heads that contribute most to the prediction: the token that each reads from the predicting one, and its type."""
    tokens = results.required_trace.tokens
    sentences = [
        Message(
            "L{layer}.H{head} reads {text} at {key} ({weight} of its weight; {type})",
            layer=reading.layer,
            head=reading.head,
            text=quoted_token(tokens[reading.keys[0]]),
            key=reading.keys[0],
            weight=format_number(float(reading.weights.max())),
            type=TYPE_NAMES[reading.kind],
        )
        for reading in reading_arcs.readings(results)
    ]
    return Message(
        "{heads}; equal weights would be 1/{n}",
        heads=join(" · ", sentences),
        n=round(1 / reading_arcs.uniform_weight(results)),
    )


STORY = (
    StoryLine(
        3,
        "heads_at_work",
        Message("Heads at work"),
        ("head_types", "readout"),
        "rheoscope analyse head_types",
        heads_at_work,
        required_fields=("attribution",),
        picture=StoryPicture(3, reading_arcs.panels, reading_arcs.numbers),
    ),
)
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
NO_TYPE = ("mixed",)


def main_sentence(dataset: "xarray.Dataset") -> Message | None:
    """How many heads have a type."""
    types = dataset["type"].values
    counts = Counter(str(kind) for kind in types.ravel() if kind not in NO_TYPE)
    if not counts:
        return Message("None of the {total} heads has a single type on this text.", total=types.size)
    kind, n = counts.most_common(1)[0]
    return Message(
        "{typed} of {total} heads have a single type; the most common one is {kind} ({n}).",
        typed=counts.total(),
        total=types.size,
        kind=TYPE_NAMES.get(kind, kind),
        n=n,
    )


WORDS = Words(
    sentence=main_sentence,
    training_quantities=TRAINING_QUANTITIES,
    story=STORY,
    sections=(ReportSection("flow", 2, blocks),),
    tables=blocks,
    next_step=Message("the type of every head on this text"),
)

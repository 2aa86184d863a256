"""Text about the types of heads: what the heads behind a prediction read, and the quantities followed during training."""

from rheoscope.covers.head_types.head_list import TYPE_NAMES, blocks
from rheoscope.messages.message import Message, join
from rheoscope.messages.numbers import format_number
from rheoscope.picture.token_labels import display_token
from rheoscope.space.components import heads_by_contribution
from rheoscope.space.results import Results
from rheoscope.space.story_line import StoryLine
from rheoscope.space.training_quantity import TrainingQuantity, maximum
from rheoscope.space.words import ReportSection, Words

N_HEADS = 3
"""The number of heads that the story names."""


def heads_at_work(results: Results) -> Message:
    """The heads that contribute most to the prediction: the token that each reads from the predicting one, and its type."""
    trace, types, lens = results.required_trace, results.datasets["head_types"], results.datasets["readout"]
    token = int(lens.attrs["token"])
    sentences = []
    for layer, head in heads_by_contribution(lens.component.values, lens.attribution.values)[:N_HEADS]:
        weights = trace.weights(layer, head)[token]
        key = int(weights.argmax())
        sentences.append(
            Message(
                "L{layer}.H{head} reads {text} at {key} ({weight} of its weight; {type})",
                layer=layer,
                head=head,
                text=display_token(trace.tokens[key]),
                key=key,
                weight=format_number(float(weights[key])),
                type=TYPE_NAMES[str(types.type.values[layer, head])],
            )
        )
    return Message(
        "{heads}; equal weights would be {uniform}",
        heads=join(" · ", sentences),
        uniform=format_number(1 / (len(trace) if trace.view.is_bidirectional else token + 1)),
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
WORDS = Words(
    training_quantities=TRAINING_QUANTITIES, story=STORY, sections=(ReportSection("flow", 2, blocks),), tables=blocks
)

"""Text about transport: where tokens end, and whether they keep their identity."""

import math
from typing import TYPE_CHECKING

from rheoscope.flow.transport.next_token import embedding_condition
from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_fixed, format_percent, percent_range
from rheoscope.space.results import Results
from rheoscope.space.story_line import StoryLine, typical_range
from rheoscope.space.training_quantity import TrainingQuantity, last_point
from rheoscope.space.words import LayerColumn, Words
from rheoscope.statistics.statement import Statement, from_draws

if TYPE_CHECKING:
    import xarray


def kappa_from_embedding(results: Results) -> Statement | None:
    transport = results.datasets.get("transport")
    if transport is None or "kappa_null_draws" not in transport:
        return None
    value, null = float(transport.kappa_strided.values[-1, -1]), transport.kappa_null_draws.values
    comparison = (
        Message("Keeping every token's identity is less efficient than under the null")
        if value < null.mean()
        else Message("Keeping every token's identity is more efficient than under the null")
    )
    text = Message(
        "{comparison}: κ = {value} from the embedding to the last layer (permuted displacements {null}).",
        comparison=comparison,
        value=format_fixed(value),
        null=format_fixed(float(null.mean())),
    )
    return from_draws(text, "transport", value, null)


def destination(results: Results) -> Message:
    """Where tokens end: at their own place, or where their next token is."""
    transport = results.datasets["transport"]
    end_points = Message(
        "{moved} of the tokens end where their next token is (permuted partners {null}{typical}); {kept} keep their place "
        "(permuted displacements {kept_null})",
        moved=format_percent(float(transport.next_type_share)),
        null=percent_range(transport.next_type_share_null_draws.values),
        typical=typical_range(results, "destination", format_percent),
        kept=format_percent(float(transport.identity_share_strided.values[-1, -1])),
        kept_null=format_percent(float(transport.identity_share_null_strided.values[-1, -1])),
    )
    return Message("{first}; {second}", first=end_points, second=prediction_condition(transport))


def next_token_share(results: Results) -> float:
    return float(results.datasets["transport"].get("next_type_share", math.nan))


def prediction_condition(transport: "xarray.Dataset") -> Message:
    """The conditions of the share: tied or untied embeddings, the accuracy, and the share where the prediction is wrong.

    The last one is left out if no prediction is wrong, or if no permutation can change it, as that of a single token.
    """
    embeddings = embedding_condition(bool(transport.attrs["tied_embedding"]))
    if "next_token_accuracy" not in transport:
        return embeddings
    accuracy, null = float(transport.next_token_accuracy), float(transport.next_type_share_mispredicted_null)
    conditions = Message(
        "{embeddings}, {accuracy} of next tokens predicted", embeddings=embeddings, accuracy=format_percent(accuracy)
    )
    if not 0 < null < 1:
        return conditions
    beyond = Message(
        "where the prediction is wrong, {share} end at their next token (permuted partners {null})",
        share=format_percent(float(transport.next_type_share_mispredicted)),
        null=format_percent(null),
    )
    return Message("{first}; {second}", first=beyond, second=conditions)


STORY = (
    StoryLine(
        order=7,
        name="destination",
        title=Message("Destination"),
        needs=("transport",),
        deeper="rheoscope analyse transport",
        compose=destination,
        required_fields=("next_type_share_null_draws",),
        min_tokens=8,
        number=next_token_share,
    ),
)


KAPPA = LayerColumn(
    "transport",
    "κ",
    Message(
        "1 if keeping every token's identity is the cheapest way to reach the next cloud, 0 if it is no "
        "better than random pairing (null: permuted displacements)"
    ),
    lambda transport, layer: float(transport.kappa[layer]),
    lambda transport, layer: float(transport.kappa_null[layer]) if "kappa_null" in transport else float("nan"),
)


TRAINING_QUANTITIES = (
    TrainingQuantity(
        7,
        "transport",
        "toward_next",
        "toward_next",
        "toward_next_null",
        Message("mean cosine of a token's last point with the embedding of the next token"),
        {"strides": (1,), "draws": 20},
        last_point,
    ),
)


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How many tokens end where their next token is."""
    return Message(
        "{share} of the tokens end where their next token is; permuted partners would give {null}.",
        share=format_percent(float(dataset.next_type_share)),
        null=format_percent(float(dataset.next_type_share_null)),
    )


WORDS = Words(
    sentence=main_sentence,
    training_quantities=TRAINING_QUANTITIES,
    findings=(kappa_from_embedding,),
    story=STORY,
    layer_columns=(KAPPA,),
)

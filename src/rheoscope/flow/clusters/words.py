"""Text about clusters: their number, the effective rank and the dimension of the cloud after each layer."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from rheoscope.flow.clusters import patch_map
from rheoscope.flow.clusters.analysis import MIN_TOKENS
from rheoscope.messages.message import Message, Verbatim, join
from rheoscope.messages.numbers import format_number
from rheoscope.picture.token_labels import quoted_token
from rheoscope.space.results import Results
from rheoscope.space.story_line import StoryLine, StoryPicture, typical_range
from rheoscope.space.training_quantity import TrainingQuantity, last_point
from rheoscope.space.words import LayerColumn, Words

if TYPE_CHECKING:
    import xarray


def after_layer(name: str) -> Callable[["xarray.Dataset", int], float]:
    """A field of the cloud after a layer; NaN if the result does not have it."""
    return lambda cloud, layer: float(cloud[name][layer + 1]) if name in cloud else float("nan")


N_GROUPS, N_TYPES = 4, 4
"""The number of groups that the story names, and of token types in each."""


def groups(results: Results) -> Message:
    """The largest clusters after the last layer, by the texts of their tokens."""
    clusters = results.datasets["clusters"]
    labels, counts = clusters.label.values[-1], clusters.cluster_count.values
    texts = [quoted_token(str(text)) for text in clusters.token_text.values]
    members: dict[int, list[str]] = {}
    for label, text in zip(labels.tolist(), texts, strict=True):
        members.setdefault(int(label), []).append(text)
    largest = sorted((group for group in members.values() if len(group) > 1), key=len, reverse=True)[:N_GROUPS]
    described = [group_text(group) for group in largest] or [Message("no two tokens are close")]
    return Message(
        "{groups}; {n} clusters of {tokens} tokens ({before} at the embedding, shuffled coordinates {null}{typical})",
        groups=join(" ", described),
        n=int(counts[-1]),
        tokens=len(texts),
        before=int(counts[0]),
        null=format_number(float(clusters.cluster_count_null[-1])) if "cluster_count_null" in clusters else "none",
        typical=typical_range(results, "groups", lambda share: f"{share * len(texts):.0f}"),
    )


def clusters_per_token(results: Results) -> float:
    clusters = results.datasets["clusters"]
    return float(clusters.cluster_count.values[-1]) / clusters.sizes["token"]


def group_text(tokens: list[str]) -> str:
    """The token types of a group, the most frequent first.

    >>> group_text(["·the", "·the", "·a"])
    '{·the ×2, ·a}'
    """
    counts = Counter(tokens).most_common()
    names = [text if count == 1 else f"{text} ×{count}" for text, count in counts[:N_TYPES]]
    return Verbatim("{" + ", ".join(names + ["…"] * (len(counts) > N_TYPES)) + "}")


STORY = (
    StoryLine(
        9,
        "groups",
        Message("Groups"),
        ("clusters",),
        "rheoscope analyse clusters",
        groups,
        min_tokens=MIN_TOKENS,
        picture=StoryPicture(5, patch_map.panels),
        number=clusters_per_token,
    ),
)
LAYER_COLUMNS = (
    LayerColumn(
        "clusters",
        Message("clusters"),
        Message("clusters of tokens linked by angles below 45°; null: every coordinate shuffled among the tokens"),
        after_layer("cluster_count"),
        after_layer("cluster_count_null"),
    ),
    LayerColumn(
        "clusters",
        Message("eff. rank"),
        Message("effective rank of the cloud after the layer; null: every coordinate shuffled among the tokens"),
        after_layer("effective_rank"),
        after_layer("effective_rank_null"),
    ),
    LayerColumn(
        "clusters",
        Message("dim"),
        Message(
            "intrinsic dimension (TwoNN) of the cloud after the layer; null: every coordinate shuffled among the tokens"
        ),
        after_layer("intrinsic_dimension"),
        after_layer("intrinsic_dimension_null"),
    ),
)


TRAINING_QUANTITIES = (
    TrainingQuantity(
        6,
        "clusters",
        "effective_rank",
        "effective_rank",
        "effective_rank_null",
        Message("effective rank of the last cloud"),
        reduce=last_point,
    ),
)


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How many clusters there are at the end, compared with the embedding and with shuffled coordinates."""
    return Message(
        "{last} clusters at the end and {first} at the embedding; with shuffled coordinates there would be {null}.",
        last=int(dataset.cluster_count[-1]),
        first=int(dataset.cluster_count[0]),
        null=format_number(float(dataset.cluster_count_null[-1])),
    )


WORDS = Words(sentence=main_sentence, story=STORY, training_quantities=TRAINING_QUANTITIES, layer_columns=LAYER_COLUMNS)

"""Text about distorted pairs: two tokens that the head behind a prediction separates, and two that it merges."""

from typing import TYPE_CHECKING, NamedTuple

from rheoscope.covers.distorted_pairs.analysis import distorted_pairs, number_of_pairs
from rheoscope.messages.message import Message, Verbatim
from rheoscope.messages.numbers import format_percent
from rheoscope.picture.token_labels import quoted_token
from rheoscope.space.components import heads_by_contribution
from rheoscope.space.results import Results
from rheoscope.space.story_line import StoryLine
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray

IMAGE = "key"
N_CANDIDATES = 40
"""The number of pairs among which one of different tokens is sought."""


def seen_through(results: Results) -> Message:
    """The head that contributes most to the prediction, with the pair that its keys separate most and the one they merge most."""
    lens = results.datasets["readout"]
    layer, head = heads_by_contribution(lens.component.values, lens.attribution.values)[0]
    n_pairs = number_of_pairs(results.required_trace, layer)
    if not n_pairs:
        return Message("L{layer}.H{head} reads all tokens at the same point", layer=layer, head=head)
    pairs = distorted_pairs(results.required_trace, layer, head, IMAGE, min(N_CANDIDATES, n_pairs))
    separated, merged = (first_pair(pairs.sel(kind=kind)) for kind in ("separated", "merged"))
    return Message(
        "as keys of L{layer}.H{head}, {separated} are separated and {merged} merged; ranks of the distance in E and after: "
        "{separated_ranks} and {merged_ranks} of all pairs",
        layer=layer,
        head=head,
        separated=separated.names,
        merged=merged.names,
        separated_ranks=separated.ranks,
        merged_ranks=merged.ranks,
    )


class NamedPair(NamedTuple):
    """Two tokens, and the rank of their distance before and after, in percent of all pairs."""

    names: Message
    ranks: str


def first_pair(pairs: "xarray.Dataset") -> NamedPair:
    """The first pair of two different tokens; of two equal ones if there is no other."""
    texts = list(zip(pairs.earlier_token_text.values, pairs.later_token_text.values, strict=True))
    index = next((n for n, (a, b) in enumerate(texts) if str(a).strip() != str(b).strip()), 0)
    first, second = (quoted_token(str(text)) for text in texts[index])
    before, after = (float(pairs[f"distance_rank_{when}"][index]) for when in ("before", "after"))
    return NamedPair(
        Message("{first} / {second}", first=first, second=second),
        Verbatim(f"{format_percent(before)} → {format_percent(after)}"),
    )


STORY = (
    StoryLine(
        8,
        "seen_through",
        Message("Seen through"),
        ("readout",),
        "rheoscope analyse distorted_pairs",
        seen_through,
        required_fields=("attribution",),
        min_tokens=4,
    ),
)


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """The pair that the head separates most and the one that it merges most."""
    separated, merged = (first_pair(dataset.sel(kind=kind)) for kind in ("separated", "merged"))
    return Message(
        "L{layer}.H{head} separates {separated} most (rank of the distance {before}) and merges {merged} most ({after}).",
        layer=int(dataset.attrs["layer"]),
        head=int(dataset.attrs["head"]),
        separated=separated.names,
        before=separated.ranks,
        merged=merged.names,
        after=merged.ranks,
    )


WORDS = Words(sentence=main_sentence, story=STORY)

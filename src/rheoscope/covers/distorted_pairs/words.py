"""Text about distorted pairs: two tokens that the most deforming head separates, and two that it merges."""

import math
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.covers.distorted_pairs.analysis import distorted_pairs
from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.picture.token_labels import display_token
from rheoscope.space.results import Results
from rheoscope.space.story_line import StoryLine
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray

IMAGE = "key"
N_CANDIDATES = 40
"""The number of pairs among which one of different tokens is sought."""


def seen_through(results: Results) -> Message:
    """The head whose keys preserve distances least, with the pair that it separates most and the pair that it merges most."""
    distortion = results.datasets["distortion"].sel(image=IMAGE)
    rsa = distortion.rsa.values
    layer, head = np.unravel_index(int(np.nanargmin(rsa)), rsa.shape)
    n_pairs = math.comb(results.n_ordinary_tokens, 2)
    pairs = distorted_pairs(results.required_trace, int(layer), int(head), IMAGE, min(N_CANDIDATES, n_pairs))
    return Message(
        "as keys of L{layer}.H{head}, {torn} are separated (near in E) and {glued} merged (far in E); distances before and "
        "after correlate by {rsa}, in all heads by {mean}",
        layer=int(layer),
        head=int(head),
        torn=first_pair(pairs.sel(kind="torn")),
        glued=first_pair(pairs.sel(kind="glued")),
        rsa=format_number(float(rsa[layer, head])),
        mean=format_number(float(np.nanmean(rsa))),
    )


def first_pair(pairs: "xarray.Dataset") -> Message:
    """The first pair of two different tokens; of two equal ones if there is no other."""
    texts = list(zip(pairs.earlier_token_text.values, pairs.later_token_text.values, strict=True))
    first, second = next(((a, b) for a, b in texts if str(a).strip() != str(b).strip()), texts[0])
    return Message("{first} / {second}", first=display_token(str(first)), second=display_token(str(second)))


STORY = (
    StoryLine(
        6, "seen_through", Message("Seen through"), ("distortion",), "rheoscope analyse distorted_pairs", seen_through
    ),
)
WORDS = Words(story=STORY)

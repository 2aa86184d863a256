"""Text about massive tokens: the largest one as a sink of attention."""

import math
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, plural
from rheoscope.messages.numbers import format_number
from rheoscope.picture.token_labels import display_token, quoted_token
from rheoscope.space.results import Results
from rheoscope.space.words import Words
from rheoscope.statistics.statement import Statement, from_moments

if TYPE_CHECKING:
    import xarray


def massive_token_sink(results: Results) -> Statement | None:
    massive = results.datasets.get("massive_tokens")
    if massive is None or not massive.sizes["token"]:
        return None
    largest_index = int(np.argmax(massive.max_relative_norm.values))
    token_text, largest, null_sd = (
        massive.attrs["tokens"][largest_index],
        float(massive.max_relative_norm[largest_index]),
        float(massive.log_norm_sd[largest_index]),
    )
    sink_mass, uniform_mass = float(massive.sink_mass.isel(token=largest_index).max()), 1 / massive.attrs["n"]
    text = Message(
        "Token {position} {token} is a sink: {ratio:.0f} times the median norm, {percent:.0f} % of it in coordinate {coordinate}. "
        "It receives up to {mass:.0f} % of a layer's attention (uniform: {uniform:.0f} %).",
        position=int(massive.token[largest_index]),
        token=display_token(token_text),
        ratio=largest,
        percent=100 * float(massive.coordinate_share[largest_index, 0]),
        coordinate=int(massive.coordinate[largest_index, 0]),
        mass=100 * sink_mass,
        uniform=100 * uniform_mass,
    )
    tries = massive.attrs["n"] * massive.sizes["point"]
    return from_moments(text, "massive_tokens", math.log(largest), 0.0, null_sd, tries)


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How many tokens are massive, and how large the largest is."""
    if not dataset.sizes["token"]:
        return Message(
            "No token has a norm above {ratio:g} times the median.", ratio=float(dataset.attrs["norm_ratio"])
        )
    largest = int(dataset.max_relative_norm.values.argmax())
    return plural(
        "{n} token is massive: {token} has {ratio} times the median norm.",
        "{n} tokens are massive; the largest, {token}, has {ratio} times the median norm.",
        n=dataset.sizes["token"],
        token=quoted_token(str(dataset.token_text.values[largest])),
        ratio=format_number(float(dataset.max_relative_norm[largest])),
    )


WORDS = Words(sentence=main_sentence, findings=(massive_token_sink,))

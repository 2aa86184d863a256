"""The picture that goes with the line about heads at work: arcs on the text, from the predicting token to what each head reads."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

import numpy as np

from rheoscope.covers.head_types.head_list import TYPE_NAMES
from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.picture.picture import Axis, Label, Mark, Panel, Shape
from rheoscope.picture.token_labels import display_token
from rheoscope.space.components import heads_by_contribution
from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray

N_HEADS = 3
"""The number of heads that the story names."""
N_KEYS = 4
"""The number of arcs of each head."""
N_NEIGHBOURS = 3
"""How many tokens on each side of a token that is read are shown, if there is room."""
LINE_LENGTH = 50.0
"""The length of the line of text, in letters."""
GAP = 1.3
"""The space between two tokens, in letters."""
MAX_TOKEN_CHARS = 9
ELLIPSIS = "…"
MAX_THICKNESS = 0.055
"""Half the thickness of an arc of weight 1 at its top, relative to the height of the highest."""
SELF_RADIUS = 1.4
"""Half the width of the loop of a token that reads itself, in letters."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A head, and the weights with which the predicting token `query` reads every token."""

    layer: int
    head: int
    query: int
    weights: np.ndarray
    kind: str
    contribution: float

    @property
    def name(self) -> str:
        return f"L{self.layer}.H{self.head}"

    @property
    def keys(self) -> list[int]:
        """The tokens with the largest weights, the largest first. Masked tokens have none."""
        order = np.argsort(-self.weights, kind="stable")[:N_KEYS].tolist()
        return [key for key in order if self.weights[key] > 0] or order[:1]


def readings(results: Results) -> list[Reading]:
    """The heads that contribute most to the prediction."""
    trace, types, lens = results.required_trace, results.datasets["head_types"], results.datasets["readout"]
    query, contributions = (
        int(lens.attrs["token"]),
        dict(zip(lens.component.values, lens.attribution.values, strict=True)),
    )
    return [
        Reading(
            layer,
            head,
            query,
            trace.weights(layer, head)[query].float().cpu().numpy(),
            str(types.type.values[layer, head]),
            float(contributions[f"L{layer}.H{head}"]),
        )
        for layer, head in heads_by_contribution(lens.component.values, lens.attribution.values)[:N_HEADS]
    ]


def numbers(results: Results) -> "dict[str, xarray.DataArray]":
    """The weights of all readings, for files."""
    import xarray as xr

    rows = readings(results)
    definition = {"definition": Message("attention weight of a head at work, from the predicting token to every token")}
    names = {"reader": [row.name for row in rows]}
    return {
        "weight": xr.DataArray(np.stack([row.weights for row in rows]), names, ("reader", "token"), attrs=definition)
    }


def panels(results: Results) -> list[Panel]:
    """One panel per head."""
    texts = [shortened(display_token(token)) for token in results.required_trace.tokens]
    uniform = uniform_weight(results)
    target = display_token(results.token_strings([int(results.datasets["readout"].attrs["target"])])[0])
    return [head_panel(reading, texts, uniform, target) for reading in readings(results)]


def uniform_weight(results: Results) -> float:
    """The weight of every permitted token if all had the same."""
    trace = results.required_trace
    return 1 / (len(trace) if trace.view.is_bidirectional else int(results.datasets["readout"].attrs["token"]) + 1)


def head_panel(reading: Reading, texts: list[str], uniform: float, target: str) -> Panel:
    """The tokens that a head reads with some of their neighbours, and an arc to each of them."""
    centres, marks = line_of_text(reading, texts), list[Mark]()
    keys = keys_with_room(reading, texts)
    strong = {reading.query, *keys}
    start, widest = centres[reading.query], max(abs(centres[key] - centres[reading.query]) for key in keys)
    for key in reversed(keys):
        tip = Message(
            "{text} at {query} reads {other} at {key} with {weight} of its weight",
            text=texts[reading.query],
            query=reading.query,
            other=texts[key],
            key=key,
            weight=format_number(float(reading.weights[key])),
        )
        marks.append(arc(start, centres[key], max(widest, SELF_RADIUS), float(reading.weights[key]), tip))
    for index, x in centres.items():
        text = ELLIPSIS if isinstance(index, str) else texts[index]
        marks.append(Label(x, 0.0, text, "middle", strong=index in strong))
    first_key = keys[0]
    apex = (start + centres[first_key]) / 2, arc_height(centres[first_key] - start, max(widest, SELF_RADIUS))
    marks.append(Label(*apex, format_number(float(reading.weights[first_key])), "above"))
    about = Message(
        "What it reads from {token}: at most {weight} of its weight on one token (equal weights: {uniform}). It adds "
        "{contribution:+.1f} to the logit of {target}.",
        token=texts[reading.query],
        weight=format_number(float(reading.weights[first_key])),
        uniform=format_number(uniform),
        contribution=reading.contribution,
        target=target,
    )
    title = Message("{head}: {type}", head=reading.name, type=TYPE_NAMES[reading.kind])
    x_axis, y_axis = Axis(bare=True, low=0.0, high=LINE_LENGTH), Axis(bare=True, low=-0.1, high=1.25)
    return Panel(title, about, tuple(marks), x_axis, y_axis, height=0.6)


def keys_with_room(reading: Reading, texts: list[str]) -> list[int]:
    """The first keys of a reading that fit on the line next to the predicting token, at least one."""
    counts = range(len(reading.keys), 1, -1)
    fitting = (n for n in counts if line_length([reading.query, *reading.keys[:n]], texts) <= LINE_LENGTH)
    return reading.keys[: next(fitting, 1)]


def line_of_text(reading: Reading, texts: list[str]) -> dict[int | str, float]:
    """Index of every token that is shown → the middle of its place on the line. Gaps have names of their own.

    The predicting token and those that it reads come first, then their neighbours, as long as the line has room.
    """
    anchors = [reading.query, *keys_with_room(reading, texts)]
    shown = set(anchors)
    for distance in range(1, N_NEIGHBOURS + 1):
        for token in anchors:
            for neighbour in (token - distance, token + distance):
                if 0 <= neighbour < len(texts) and line_length([*shown, neighbour], texts) <= LINE_LENGTH:
                    shown.add(neighbour)
    items = with_gaps(sorted(shown), len(texts))
    widths = [letter_width(ELLIPSIS if isinstance(item, str) else texts[item]) for item in items]
    left = (LINE_LENGTH - sum(widths) - GAP * (len(widths) - 1)) / 2
    ends = left + np.cumsum([width + GAP for width in widths])
    return {item: float(end - GAP - width / 2) for item, width, end in zip(items, widths, ends, strict=True)}


def with_gaps(tokens: list[int], n_tokens: int) -> list[int | str]:
    """Tokens in order, with a gap wherever some are left out.

    >>> with_gaps([1, 2, 5], 7)
    ['gap before 1', 1, 2, 'gap before 5', 5, 'gap before 7']
    """
    items: list[int | str] = []
    for previous, token in zip([-1, *tokens], [*tokens, n_tokens], strict=True):
        items += [] if token == previous + 1 else [f"gap before {token}"]
        items += [token] if token < n_tokens else []
    return items


def line_length(tokens: list[int], texts: list[str]) -> float:
    """The length of a line with these tokens and its gaps, in letters."""
    items = with_gaps(sorted(set(tokens)), len(texts))
    return sum(letter_width(ELLIPSIS if isinstance(item, str) else texts[item]) + GAP for item in items) - GAP


def letter_width(text: str) -> float:
    """The width of a text in letters. A Chinese character has that of two.

    >>> letter_width("on"), letter_width("上")
    (2.0, 2.0)
    """
    return float(sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text))


def shortened(text: str) -> str:
    return text if len(text) <= MAX_TOKEN_CHARS else text[: MAX_TOKEN_CHARS - 1] + ELLIPSIS


def arc_height(distance: float, widest: float) -> float:
    """The height of an arc over this distance, from 0.3 to 1 for the widest."""
    return 0.3 + 0.7 * min(abs(distance) / widest, 1.0)


def arc(start: float, end: float, widest: float, weight: float, tip: Message) -> Shape:
    """A half-ellipse between two places of the line. Its height follows the distance, its thickness the weight."""
    centre, radius = (start + end) / 2, max(abs(end - start) / 2, SELF_RADIUS / 2)
    height, thickness = arc_height(end - start, widest), MAX_THICKNESS * max(weight, 0.01) ** 0.5
    angles = np.linspace(0, np.pi, 25)
    letters = thickness * LINE_LENGTH / 2
    outline = [
        (
            centre + (radius + sign * letters / 2) * np.cos(angles),
            BASE + (height - BASE + sign * thickness) * np.sin(angles),
        )
        for sign in (1, -1)
    ]
    x, y = (np.concatenate([outer, inner[::-1]]) for outer, inner in zip(*outline, strict=True))
    return Shape("", x, y, "first", 0.55 + 0.35 * min(2 * weight, 1.0), tip)


BASE = 0.12
"""The height at which arcs start, above the text."""

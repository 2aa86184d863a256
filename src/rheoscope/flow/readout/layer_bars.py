"""The picture that goes with the line about the next token: the most likely words of some layers as bars."""

import numpy as np

from rheoscope.flow.readout.picture import layer_ends
from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_percent
from rheoscope.picture.picture import Axis, Label, Mark, Panel, Shape
from rheoscope.picture.token_labels import display_token, step_names
from rheoscope.space.results import Results

N_WORDS = 3
"""The number of words of each layer."""
MAX_LAYERS = 6
"""The largest number of layers. Of more layers, evenly spaced ones are shown."""
NAME_ROOM, LABEL_ROOM = 0.35, 1.6
"""The space for the names of layers on the left, and for the bars with their words, relative to the longest bar."""
BAR_HEIGHT, BAR_SPACING = 0.2, 0.26
"""In units of a layer."""


def panels(results: Results) -> list[Panel]:
    """One group of bars per layer, the first layer on top. Bars of the predicted token are coloured."""
    lens = results.datasets["readout"]
    ends = layer_ends(lens)[1:]
    points = [ends[round(place)] for place in np.linspace(0, len(ends) - 1, min(MAX_LAYERS, len(ends)))]
    names = step_names(lens.point.values[points])
    target, marks = int(lens.attrs["target"]), list[Mark]()
    longest = float(lens.top_probabilities.values[points].max())
    for row, (point, name) in enumerate(zip(reversed(points), reversed(names), strict=True)):
        marks.append(Label(0.0, row, name, "left"))
        ids = [int(token) for token in lens.top_tokens.values[point][:N_WORDS]]
        for place, (token, text) in enumerate(zip(ids, results.token_strings(ids), strict=True)):
            probability = float(lens.top_probabilities.values[point, place])
            label = Message("{token} {percent}", token=display_token(text), percent=format_percent(probability))
            y = row + BAR_SPACING * ((len(ids) - 1) / 2 - place)
            marks += word_bar(probability, y, label, is_target=token == target)
    target_text = display_token(results.token_strings([target])[0])
    about = Message(
        "The likeliest next tokens if the model stopped after each layer (logit lens). Coloured bars are the prediction {target}. "
        "Early layers need not use the directions that the lens reads.",
        target=target_text,
    )
    title = Message("How the prediction {target} forms", target=target_text)
    x_axis = Axis(bare=True, low=-NAME_ROOM * longest, high=LABEL_ROOM * longest)
    y_axis = Axis(bare=True, low=-0.5, high=len(points) - 0.5)
    return [Panel(title, about, tuple(marks), x_axis, y_axis, height=0.2 + 0.193 * len(points))]


def word_bar(probability: float, y: float, label: Message, is_target: bool) -> list[Mark]:
    """One bar, with its word on the right."""
    low, high = y - BAR_HEIGHT / 2, y + BAR_HEIGHT / 2
    colour, opacity = ("first", 0.9) if is_target else ("null", 0.55)
    bar = Shape("", [0.0, probability, probability, 0.0], [low, low, high, high], colour, opacity, label)
    return [bar, Label(probability, y, label, "right")]

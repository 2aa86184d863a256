"""The picture that goes with the line about movement: the cloud after the last layer, and the path of the predicting token."""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.flow.trajectory.picture import SOURCE_COLOURS, step_source, view_spans
from rheoscope.messages.message import Message
from rheoscope.picture.label_placement import LabelRequest, place_labels
from rheoscope.picture.picture import Axis, Line, Mark, Panel
from rheoscope.picture.token_labels import display_token, step_names
from rheoscope.space.results import Results
from rheoscope.space.step import Step

if TYPE_CHECKING:
    import xarray

PREDICTOR_COLOUR = "seventh"
MAX_LABELS = 16
"""The largest number of labels. Every token shows its text on hover."""
MIN_LABELLED_STEP = 0.12
"""The shortest move of a layer that is labelled, relative to the width of the map."""
ASPECT = 1.23
"""The width of the map relative to its height."""


def panels(results: Results) -> list[Panel]:
    """The cloud with the ringed token, or nothing if that token is massive and so not part of the cloud."""
    dataset, predictor = results.datasets["trajectory"], len(results.required_trace) - 1
    places = np.flatnonzero(dataset.token.values == predictor)
    return [path_panel(dataset, int(places[0]))] if len(places) else []


def path_panel(dataset: "xarray.Dataset", predictor: int) -> Panel:
    """The tokens after the last layer as dots, and the half-layers of the token at index `predictor` as a line."""
    xy, steps = dataset.plane_position.values, [Step.parse(str(step)) for step in dataset.step.values]
    token_texts = [display_token(str(text)) for text in dataset.token_text.values]
    path, cloud = xy[:, predictor], xy[-1]
    spans = view_spans(np.concatenate([cloud, path])[None], ASPECT)
    tips = [
        Message("token {position} {token}", position=int(position), token=text)
        for position, text in zip(dataset.token.values, token_texts, strict=True)
    ]
    marks: list[Mark] = [
        Line("", cloud[:, 0], cloud[:, 1], "alone", "dots", tips=tips),
        *half_layer_lines(path, steps),
        Line("", path[:1, 0], path[:1, 1], PREDICTOR_COLOUR, "dots"),
        Line("", path[-1:, 0], path[-1:, 1], PREDICTOR_COLOUR, "rings"),
    ]
    requests = [
        label_request(path[-1], token_texts[predictor], strong=True),
        *step_requests(dataset, path, MIN_LABELLED_STEP * (spans[0][1] - spans[0][0])),
        *token_requests(cloud, token_texts, predictor),
    ]
    marks += place_labels(requests, np.concatenate([cloud, path]), spans, MAX_LABELS)
    about = Message(
        "Every dot is a token after the last layer, as a direction from the mean of the cloud. The ring is the predicting token "
        "{token}. The line is its path from the embedding, one piece per half-layer.",
        token=token_texts[predictor],
    )
    x, y = (Axis(bare=True, low=low, high=high) for low, high in spans)
    title = Message("The path of the predicting token {token}", token=token_texts[predictor])
    return Panel(title, about, tuple(marks), x, y, height=1.36, equal=True)


def half_layer_lines(path: np.ndarray, steps: list[Step]) -> list[Line]:
    """The path in one series per component that moves the token. Pieces of other components are missing values."""
    sources = [step_source(step, steps) for step in steps]
    lines = []
    for source, colour in SOURCE_COLOURS.items():
        pieces = [
            [path[index], path[index + 1], [np.nan, np.nan]] for index, name in enumerate(sources) if name == source
        ]
        if pieces:
            x, y = np.array(pieces, dtype=float).reshape(-1, 2).T
            lines.append(Line(source, x, y, colour))
    return lines


def step_requests(dataset: "xarray.Dataset", path: np.ndarray, min_length: float) -> list[LabelRequest]:
    """Labels of the embedding and of the ends of those layers that move the token at least this far on the map."""
    points, names = [Step.parse(str(point)) for point in dataset.point.values], step_names(dataset.point.values)
    ends = [index for index, step in enumerate(points) if step.is_embed or step.is_end_of_layer]
    far = [b for a, b in pairwise(ends) if np.linalg.norm(path[b] - path[a]) >= min_length and b < len(path) - 1]
    return [label_request(path[index], names[index]) for index in [ends[0], *far]]


def token_requests(cloud: np.ndarray, token_texts: list[str], predictor: int) -> list[LabelRequest]:
    """Labels of the outermost tokens, each text once. That of the predictor has a label."""
    outermost = np.argsort(-np.linalg.norm(cloud - cloud.mean(0), axis=-1), kind="stable").tolist()
    first_places = {
        token_texts[index]: index for index in reversed(outermost) if token_texts[index] != token_texts[predictor]
    }
    requested = sorted(first_places.values(), key=outermost.index)
    return [label_request(cloud[index], token_texts[index]) for index in requested]


def label_request(xy: np.ndarray, text: str, strong: bool = False) -> LabelRequest:
    x, y = map(float, xy)
    return LabelRequest(x, y, text, strong)

"""The plot of `frames`: the cloud at a few layers, with one colour per cluster."""

from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.flow.caption_notes import massive_tokens_note
from rheoscope.flow.clusters.picture import UNCLUSTERED, keep_largest, summarise_tokens, track_clusters
from rheoscope.messages.message import Message, join
from rheoscope.picture.label_placement import LabelRequest, place_labels
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Mark, Panel, Picture
from rheoscope.picture.token_labels import TokenLabels, display_token, step_names

if TYPE_CHECKING:
    import xarray

ViewSpans = tuple[tuple[float, float], tuple[float, float]]
"""The ranges of x and of y."""

PREDICTION_COLOUR = "seventh"
"""The colour of the predicting token and of its prediction. No cluster has it."""
CLUSTER_COLOURS = tuple(colour for colour in SERIES_COLOURS if colour != PREDICTION_COLOUR)
"""The colours of the largest clusters."""
MAX_LABELS = 26
"""The largest number of labels in a frame. Every token shows its text on hover."""
PADDING = 1.12
"""The width of the frame relative to the cloud, with space for labels."""
MAX_ASPECT, MIN_ASPECT = 1.1, 0.7
"""The largest and smallest height of a frame relative to its width."""
CIRCLE_ANGLES = np.linspace(0, 2 * np.pi, 241)


def picture(dataset: "xarray.Dataset", token_strings: TokenLabels | None = None) -> Picture:
    """One panel per frame, all on the same plane."""
    labels, spans, target_text = (
        colour_indices(dataset.label.values),
        shared_view(dataset),
        prediction_text(dataset, token_strings),
    )
    panels = tuple(frame_panel(dataset, index, labels, spans, target_text) for index in range(len(labels)))
    return Picture(Message("The cloud, layer by layer"), caption(dataset, target_text), panels)


def colour_indices(labels: np.ndarray) -> np.ndarray:
    """Number the largest clusters 0, 1, … consistently over all frames, one per colour; −1 for all other tokens.

    >>> colour_indices(np.array([[0, 0, 2, 2, 4], [0, 1, 2, 2, 2]])).tolist()
    [[0, 0, 1, 1, -1], [-1, -1, 1, 1, 1]]
    """
    largest_labels = keep_largest(track_clusters(labels), len(CLUSTER_COLOURS))
    names = [UNCLUSTERED, *np.setdiff1d(largest_labels, [UNCLUSTERED])]
    return np.searchsorted(names, largest_labels) - 1


def shared_view(dataset: "xarray.Dataset") -> ViewSpans:
    """The common range of all frames: every token of every frame and the prediction, within the allowed aspect ratio."""
    points = dataset.plane_position.values.reshape(-1, 2)
    if "prediction" in dataset:
        points = np.vstack([points, dataset.prediction.values])
    low, high = points.min(0), points.max(0)
    half = PADDING * np.maximum((high - low) / 2, 1e-3)
    half = np.maximum(half, [half[1] / MAX_ASPECT, half[0] * MIN_ASPECT])
    (left, floor), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    return (float(left), float(right)), (float(floor), float(top))


def caption(dataset: "xarray.Dataset", target_text: str) -> str:
    sentences = [
        Message(
            "Every dot is the direction of a token from the mean of the cloud, projected on the first two principal components of "
            "all layers. All frames share this plane. Titles show how much of the variance lies in it. A thin line leads from "
            "the token's position in the previous frame. Colours mark the {n_colours} largest clusters (single linkage below "
            "{angle:.0f}°); all other tokens are grey. The ring is the predicting token.",
            n_colours=len(CLUSTER_COLOURS),
            angle=float(np.degrees(dataset.attrs["angle"])),
        )
    ]
    if target_text:
        sentences.append(
            Message(
                "The star is the prediction {target}: the direction in which its logit is largest. The closer it is to the "
                "centre, the less of it lies in the plane.",
                target=target_text,
            )
        )
    return join(" ", [*sentences, massive_tokens_note(dataset.attrs["massive"])])


def prediction_text(dataset: "xarray.Dataset", token_strings: TokenLabels | None) -> str:
    """The text of the predicted token, its id if the texts are unknown, empty if there is no prediction."""
    if "prediction" not in dataset:
        return ""
    target_id = int(dataset.attrs["target"])
    return display_token(token_strings([target_id])[0]) if token_strings else Message("token {id}", id=target_id)


def frame_panel(dataset: "xarray.Dataset", index: int, labels: np.ndarray, spans: ViewSpans, target_text: str) -> Panel:
    """One layer: lines from the previous frame, dots, the ring, the star, and labels where they fit."""
    xy, frame_labels = dataset.plane_position.values[index], labels[index]
    step_name, explained = step_names(dataset.frame.values)[index], float(dataset.explained_variance[index])
    cosine = prediction_cosine(dataset, index)
    marks: list[Mark] = [
        sphere_rim(spans),
        *displacement_lines(dataset, index),
        *token_dots(dataset, index, frame_labels),
        *predictor_ring(dataset, index),
    ]
    marks += prediction_star(dataset, target_text)
    marks += place_labels(label_requests(dataset, index, frame_labels, target_text), xy, spans, MAX_LABELS)
    (left, right), (low, high) = spans
    x, y = Axis(bare=True, low=left, high=right), Axis(bare=True, low=low, high=high)
    description = Message(
        "The cloud after {step}. Percentage: {definition}.",
        step=step_name,
        definition=dataset.explained_variance.attrs["definition"],
    )
    title = Message("{step}: {share:.0f} % of the variance", step=step_name, share=100 * explained)
    if cosine is not None:
        title = Message(
            "{step}: {share:.0f} % of the variance, cos(ring, star) {cosine:.2f}",
            step=step_name,
            share=100 * explained,
            cosine=cosine,
        )
        definition = dataset.toward_prediction.attrs["definition"]
        description = join(" ", [description, Message("Cosine: {definition}.", definition=definition)])
    height = 0.2 + 1.43 * (high - low) / (right - left)  # the height of the plot area plus its title
    return Panel(title, description, tuple(marks), x, y, height=height, equal=True)


def prediction_cosine(dataset: "xarray.Dataset", index: int) -> float | None:
    """The cosine in E between the predicting token and its prediction; None if either is missing."""
    is_predictor = dataset.token.values == dataset.attrs["token"]
    if "prediction" not in dataset or not is_predictor.any():
        return None
    return float(dataset.toward_prediction.values[index][is_predictor][0])


def sphere_rim(spans: ViewSpans) -> Line:
    """The visible part of the unit circle."""
    x, y = np.cos(CIRCLE_ANGLES), np.sin(CIRCLE_ANGLES)
    (left, right), (low, high) = spans
    inside = (left < x) & (x < right) & (low < y) & (y < high)
    return Line("", np.where(inside, x, np.nan), np.where(inside, y, np.nan), "null", "hair")


def displacement_lines(dataset: "xarray.Dataset", index: int) -> list[Line]:
    """Lines from the position of every token in the previous frame."""
    if index == 0:
        return []
    previous, current = dataset.plane_position.values[index - 1 : index + 1]
    paths = np.stack([previous, current, np.full_like(current, np.nan)], 1).reshape(-1, 2)
    return [Line("", paths[:, 0], paths[:, 1], "null", "hair")]


def token_dots(dataset: "xarray.Dataset", index: int, frame_labels: np.ndarray) -> list[Line]:
    """All tokens. Unclustered tokens come first, so the others are drawn on top."""
    xy, token_texts, tokens = dataset.plane_position.values[index], _token_texts(dataset), dataset.token.values
    lines = []
    for cluster in np.unique(frame_labels):
        members = np.flatnonzero(frame_labels == cluster)
        tips = [Message("token {position} {token}", position=int(tokens[k]), token=token_texts[k]) for k in members]
        if cluster != UNCLUSTERED:
            cluster_note = Message(
                "in a cluster of {tokens}", tokens=summarise_tokens([token_texts[k] for k in members])
            )
            tips = [join("\n", [tip, cluster_note]) for tip in tips]
        colour = "alone" if cluster == UNCLUSTERED else CLUSTER_COLOURS[cluster]
        lines.append(Line("", xy[members, 0], xy[members, 1], colour, "dots", tips=tips))
    return lines


def predictor_ring(dataset: "xarray.Dataset", index: int) -> list[Line]:
    """A ring around the predicting token, unless it is massive."""
    xy = dataset.plane_position.values[index][dataset.token.values == dataset.attrs["token"]]
    return [Line("", xy[:, 0], xy[:, 1], PREDICTION_COLOUR, "rings")] if len(xy) else []


def prediction_star(dataset: "xarray.Dataset", target_text: str) -> list[Line]:
    """The prediction, and a line to it from the mean of the cloud."""
    if not target_text:
        return []
    x, y = dataset.prediction.values
    tips = [Message("prediction: {target}", target=target_text)]
    return [
        Line("", [0, x], [0, y], PREDICTION_COLOUR, "dashed", tips[0]),
        Line("", [x], [y], PREDICTION_COLOUR, "stars", tips=tips),
    ]


def label_requests(
    dataset: "xarray.Dataset", index: int, frame_labels: np.ndarray, target_text: str
) -> list[LabelRequest]:
    """Label requests by priority: predicting token, prediction, tokens of the largest clusters, outermost tokens."""
    xy, token_texts = dataset.plane_position.values[index], _token_texts(dataset)
    is_predictor = dataset.token.values == dataset.attrs["token"]
    requests = [label_request(xy[k], token_texts[k], strong=True) for k in np.flatnonzero(is_predictor)]
    if target_text:
        requests.append(
            label_request(dataset.prediction.values, Message("next: {target}", target=target_text), strong=True)
        )
    radii, sizes = (
        np.linalg.norm(dataset.plane_position.values, axis=-1).mean(0).tolist(),
        np.bincount(frame_labels - UNCLUSTERED),
    )
    sizes[0] = 0  # unclustered tokens come last
    for members in sorted(
        group_same_text(token_texts, frame_labels, is_predictor),
        key=lambda group: (-sizes[frame_labels[group[0]] - UNCLUSTERED], -len(group), -fmean(radii[k] for k in group)),
    ):
        central_token = most_central(xy, members)
        requests.append(
            label_request(xy[central_token], token_texts[central_token] + f" ×{len(members)}" * (len(members) > 1))
        )
    return requests


def most_central(xy: np.ndarray, members: list[int]) -> int:
    """The token that is closest to the mean of the group."""
    if len(members) == 1:
        return members[0]
    return members[np.linalg.norm(xy[members] - xy[members].mean(0), axis=-1).argmin()]


def group_same_text(token_texts: list[str], frame_labels: np.ndarray, excluded: np.ndarray) -> list[list[int]]:
    """Groups of tokens that share a label: equal texts within a coloured cluster. Every other token is its own group.

    >>> group_same_text(["a", "a", "b", "b"], np.array([0, 0, -1, -1]), np.zeros(4, dtype=bool))
    [[0, 1], [2], [3]]
    """
    groups: dict[tuple[int, str, int], list[int]] = {}
    for k in np.flatnonzero(~excluded):
        groups.setdefault(
            (int(frame_labels[k]), token_texts[k], int(k) if frame_labels[k] == UNCLUSTERED else 0), []
        ).append(int(k))
    return list(groups.values())


def label_request(xy: np.ndarray, text: str, strong: bool = False) -> LabelRequest:
    x, y = map(float, xy)
    return LabelRequest(x, y, text, strong)


def _token_texts(dataset: "xarray.Dataset") -> list[str]:
    return [display_token(str(token_text)) for token_text in dataset.token_text.values]

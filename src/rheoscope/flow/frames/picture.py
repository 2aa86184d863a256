"""The cloud as one watches it: a few layers side by side, tokens on the sphere seen from one side, clusters in colour."""

from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.flow.clusters.picture import UNCLUSTERED, keep_largest, summarise_tokens, track_clusters
from rheoscope.picture.label_placement import LabelRequest, place_labels
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Mark, Panel, Picture
from rheoscope.picture.token_labels import TokenLabels, display_token, step_names

if TYPE_CHECKING:
    import xarray

ViewSpans = tuple[tuple[float, float], tuple[float, float]]
"""The span of x, and that of y."""

PREDICTION_COLOUR = "seventh"
"""The colour of the token that predicts and of its prediction, which no cluster has."""
CLUSTER_COLOURS = tuple(colour for colour in SERIES_COLOURS if colour != PREDICTION_COLOUR)
"""As many clusters have a colour of their own."""
MAX_LABELS = 26
"""Names that one frame can hold; all tokens have theirs under the pointer."""
PADDING = 1.12
"""How much wider than the cloud its window is: room for names."""
MAX_ASPECT, MIN_ASPECT = 1.1, 0.7
"""Height of a window as a share of its width."""
CIRCLE_ANGLES = np.linspace(0, 2 * np.pi, 241)


def picture(dataset: "xarray.Dataset", token_strings: TokenLabels | None = None) -> Picture:
    """A panel a frame, all on one plane."""
    labels, spans, target_text = (
        colour_indices(dataset.label.values),
        shared_view(dataset),
        prediction_text(dataset, token_strings),
    )
    panels = tuple(frame_panel(dataset, index, labels, spans, target_text) for index in range(len(labels)))
    return Picture("The cloud, layer by layer", caption(dataset, target_text), panels)


def colour_indices(labels: np.ndarray) -> np.ndarray:
    """Names that stay, 0, 1, … for the largest clusters of all frames, each a colour of its own; −1 for everyone else.

    >>> colour_indices(np.array([[0, 0, 2, 2, 4], [0, 1, 2, 2, 2]])).tolist()
    [[0, 0, 1, 1, -1], [-1, -1, 1, 1, 1]]
    """
    largest_labels = keep_largest(track_clusters(labels), len(CLUSTER_COLOURS))
    names = [UNCLUSTERED, *np.setdiff1d(largest_labels, [UNCLUSTERED])]
    return np.searchsorted(names, largest_labels) - 1


def shared_view(dataset: "xarray.Dataset") -> ViewSpans:
    """What all frames show: every token of every frame, and the prediction, neither tall nor flat."""
    points = dataset.place.values.reshape(-1, 2)
    if "prediction" in dataset:
        points = np.vstack([points, dataset.prediction.values])
    low, high = points.min(0), points.max(0)
    half = PADDING * np.maximum((high - low) / 2, 1e-3)
    half = np.maximum(half, [half[1] / MAX_ASPECT, half[0] * MIN_ASPECT])
    (left, floor), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    return (float(left), float(right)), (float(floor), float(top))


def caption(dataset: "xarray.Dataset", target_text: str) -> str:
    angle = f"{np.degrees(dataset.attrs['angle']):.0f}°"
    massive = ", ".join(str(token) for token in dataset.attrs["massive"]) or "none"
    text = (
        "Every dot is a token: its direction from the middle of the cloud, a point on a sphere, seen on the two directions in "
        "which all layers together spread most. The plane is the same in every frame; titles say how much of a frame's spread "
        "is seen on it, and a hair leads from where a token was in the frame before. A colour is a cluster of that frame "
        f"(chains of steps below {angle}) and stays with it as long as most of its tokens do; grey are tokens alone, and "
        f"clusters beyond the {len(CLUSTER_COLOURS)} largest. The ring is the token that predicts. "
    )
    if target_text:
        text += (
            f"The star is the prediction {target_text}: the point of the sphere where its logit is largest, seen "
            "on the same plane; the nearer it is to the middle, the less of it the plane shows. "
        )
    return f"{text}Massive tokens, longer than five times the median, are left out: {massive}."


def prediction_text(dataset: "xarray.Dataset", token_strings: TokenLabels | None) -> str:
    """The text of the prediction, its id where texts are not known, nothing where nothing is predicted."""
    if "prediction" not in dataset:
        return ""
    target_id = int(dataset.attrs["target"])
    return display_token(token_strings([target_id])[0]) if token_strings else f"token {target_id}"


def frame_panel(dataset: "xarray.Dataset", index: int, labels: np.ndarray, spans: ViewSpans, target_text: str) -> Panel:
    """One layer: hairs from the frame before, dots, the ring, the star, and names where there is room."""
    xy, frame_labels = dataset.place.values[index], labels[index]
    step_name, explained_text, cosine_text = (
        step_names(dataset.frame.values)[index],
        f"{float(dataset.explained[index]):.0%} seen",
        prediction_cosine(dataset, index),
    )
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
    description = f"The cloud after {step_name}. Seen: {dataset.explained.attrs['definition']}."
    description += f" Cosine: {dataset.toward_prediction.attrs['definition']}." if cosine_text else ""
    height = 0.2 + 1.43 * (high - low) / (right - left)  # as high as the window is on a page, and its title
    return Panel(
        f"{step_name}: {explained_text}{cosine_text}", description, tuple(marks), x, y, height=height, equal=True
    )


def prediction_cosine(dataset: "xarray.Dataset", index: int) -> str:
    """How near the token that predicts is to its prediction, in all of E; nothing where there is no such pair."""
    is_predictor = dataset.token.values == dataset.attrs["token"]
    if "prediction" not in dataset or not is_predictor.any():
        return ""
    return f", cos(ring, star) {float(dataset.toward_prediction.values[index][is_predictor][0]):.2f}"


def sphere_rim(spans: ViewSpans) -> Line:
    """The rim of the sphere, as much of it as one sees."""
    x, y = np.cos(CIRCLE_ANGLES), np.sin(CIRCLE_ANGLES)
    (left, right), (low, high) = spans
    inside = (left < x) & (x < right) & (low < y) & (y < high)
    return Line("", np.where(inside, x, np.nan), np.where(inside, y, np.nan), "null", "hair")


def displacement_lines(dataset: "xarray.Dataset", index: int) -> list[Line]:
    """From every token's place in the frame before."""
    if index == 0:
        return []
    previous, current = dataset.place.values[index - 1 : index + 1]
    paths = np.stack([previous, current, np.full_like(current, np.nan)], 1).reshape(-1, 2)
    return [Line("", paths[:, 0], paths[:, 1], "null", "hair")]


def token_dots(dataset: "xarray.Dataset", index: int, frame_labels: np.ndarray) -> list[Line]:
    """All tokens, those alone first and so below the others."""
    xy, token_texts, tokens = dataset.place.values[index], _token_texts(dataset), dataset.token.values
    lines = []
    for cluster in np.unique(frame_labels):
        members = np.flatnonzero(frame_labels == cluster)
        cluster_note = (
            "" if cluster == UNCLUSTERED else f"\nin a cluster of {summarise_tokens([token_texts[k] for k in members])}"
        )
        tips = [f"token {tokens[k]} {token_texts[k]}{cluster_note}" for k in members]
        colour = "alone" if cluster == UNCLUSTERED else CLUSTER_COLOURS[cluster]
        lines.append(Line("", xy[members, 0], xy[members, 1], colour, "dots", tips=tips))
    return lines


def predictor_ring(dataset: "xarray.Dataset", index: int) -> list[Line]:
    """Around the token that predicts, where it is no massive one."""
    xy = dataset.place.values[index][dataset.token.values == dataset.attrs["token"]]
    return [Line("", xy[:, 0], xy[:, 1], PREDICTION_COLOUR, "rings")] if len(xy) else []


def prediction_star(dataset: "xarray.Dataset", target_text: str) -> list[Line]:
    """Where the prediction is, and a line to it from the middle of the cloud."""
    if not target_text:
        return []
    x, y = dataset.prediction.values
    tips = [f"the prediction {target_text}"]
    return [
        Line("", [0, x], [0, y], PREDICTION_COLOUR, "dashed", tips[0]),
        Line("", [x], [y], PREDICTION_COLOUR, "stars", tips=tips),
    ]


def label_requests(
    dataset: "xarray.Dataset", index: int, frame_labels: np.ndarray, target_text: str
) -> list[LabelRequest]:
    """Who wants a name, the most wanted first: who predicts, the prediction, clusters from the largest on, then the outermost."""
    xy, token_texts = dataset.place.values[index], _token_texts(dataset)
    is_predictor = dataset.token.values == dataset.attrs["token"]
    requests = [label_request(xy[k], token_texts[k], strong=True) for k in np.flatnonzero(is_predictor)]
    if target_text:
        requests.append(label_request(dataset.prediction.values, f"next: {target_text}", strong=True))
    radii, sizes = (
        np.linalg.norm(dataset.place.values, axis=-1).mean(0).tolist(),
        np.bincount(frame_labels - UNCLUSTERED),
    )
    sizes[0] = 0  # who is alone comes last
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
    """Who of them is nearest to their mean."""
    if len(members) == 1:
        return members[0]
    return members[np.linalg.norm(xy[members] - xy[members].mean(0), axis=-1).argmin()]


def group_same_text(token_texts: list[str], frame_labels: np.ndarray, excluded: np.ndarray) -> list[list[int]]:
    """Tokens that share one name: those of one text in one coloured cluster; everyone else for himself.

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

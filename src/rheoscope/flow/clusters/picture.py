"""The plot of `clusters`: ranks, dimension and numbers of clusters with their nulls, and an alluvial map."""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, join, plural
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture, Shape
from rheoscope.picture.token_labels import display_token, step_names

if TYPE_CHECKING:
    import xarray

MAX_CLUSTERS = 20
"""The largest number of clusters in the flow map. Tokens of smaller clusters are drawn as unclustered."""
CAPTION = Message(
    "The null shuffles every coordinate of the cloud among the tokens. Values below it mean that tokens share directions. Clusters are "
    "connected by links below the angle. Clusters of types have one point per distinct token, since equal tokens start at equal "
    "points. In the flow map the height of a band is a number of tokens, and a colour follows a cluster. Tokens outside the "
    "{n} largest clusters are grey.",
    n=MAX_CLUSTERS,
)
PANEL_FIELDS = {
    Message("Rank of the cloud"): {"effective_rank": "first", "participation_ratio": "fourth"},
    Message("Intrinsic dimension"): {"intrinsic_dimension": "third"},
    Message("Number of clusters"): {"cluster_count": "second"},
}
FIELD_LABELS = {
    "effective_rank": (Message("effective rank"), Message("effective rank, null")),
    "participation_ratio": (Message("participation ratio"), Message("participation ratio, null")),
    "intrinsic_dimension": (Message("intrinsic dimension"), Message("intrinsic dimension, null")),
    "cluster_count": (Message("clusters"), Message("clusters, null")),
}
"""Field → the labels of its line and of its null."""
FLOW_SENTENCES = {
    "merging": Message("After the last layer there are fewer clusters than in the embedding."),
    "splitting": Message("After the last layer there are more clusters than in the embedding."),
    "unchanged": Message("After the last layer there are as many clusters as in the embedding."),
}
UNCLUSTERED = -1
BAND_CURVE = (1 - np.cos(np.linspace(0, np.pi, 9))) / 2
"""The shape of a band between its left and its right end."""


def picture(dataset: "xarray.Dataset") -> Picture:
    """The statistics with their nulls, then the flow map of the clusters."""
    panels = (*(depth_panel(dataset, title) for title in PANEL_FIELDS), type_panel(dataset), flow_map(dataset))
    return Picture(Message("Do tokens form clusters?"), CAPTION, panels)


def depth_panel(dataset: "xarray.Dataset", title: Message) -> Panel:
    """Statistics over depth, with their nulls as dashed lines."""
    names = tuple(step_names(dataset.point.values))
    lines: list[Line] = []
    sentences: list[str] = []
    for name, colour in PANEL_FIELDS[title].items():
        label, null_label = FIELD_LABELS[name]
        for field, series, style in ((f"{name}_null", null_label, "dashed"), (name, label, "solid")):
            if field in dataset:
                lines.append(Line(series, range(len(names)), dataset[field].values.astype(float), colour, style))
        definition = dataset[name].attrs["definition"]
        sentences.append(Message("{name}: {definition}.", name=label, definition=definition))
    sentences.append(Message("Dashed: every coordinate shuffled among the tokens."))
    return Panel(title, join(" ", sentences), tuple(lines), Axis("", names), Axis(low=0.0))


def type_panel(dataset: "xarray.Dataset") -> Panel:
    """The number of clusters of types over depth, compared with the embedding and with the number of types."""
    names, cluster_counts = tuple(step_names(dataset.point.values)), dataset.type_cluster_count.values.astype(float)
    x, n_types = range(len(names)), int(dataset.type_count)
    lines = (
        Line(Message("types"), x, [float(n_types)] * len(names), "fourth", "dashed"),
        Line(Message("clusters in the embedding"), x, [cluster_counts[0]] * len(names), "null", "dashed"),
        Line(Message("clusters of types"), x, cluster_counts, "second"),
    )
    definition, flow = dataset.type_cluster_count.attrs["definition"], str(dataset.type_flow.values[-1])
    count = Message("{definition}, for {n} types.", definition=definition, n=n_types)
    description = join(" ", [count, FLOW_SENTENCES[flow]])
    return Panel(Message("Clusters of types"), description, lines, Axis("", names), Axis(low=0.0))


def flow_map(dataset: "xarray.Dataset") -> Panel:
    """An alluvial map: a stack of clusters at every point, and a band for every group of tokens between points."""
    labels = keep_largest(track_clusters(dataset.label.values))
    token_texts = [display_token(str(token_text)) for token_text in dataset.token_text.values]
    names = tuple(step_names(dataset.point.values))
    stacks = [stack_clusters(row) for row in labels]
    marks = [*flow_bands(labels, stacks, token_texts), *cluster_blocks(labels, stacks, token_texts, names)]
    description = Message(
        "Layers from left to right. A band is a group of tokens that move from one cluster to another. Its height is their number."
    )
    return Panel(
        Message("How clusters merge and split"),
        description,
        tuple(marks),
        Axis("", names),
        Axis(bare=True),
        columns=3,
        height=1.35,
        name="cluster_flow",
    )


def track_clusters(labels: np.ndarray) -> np.ndarray:
    """Persistent names: unclustered tokens have −1, and a cluster keeps the name that most of its tokens had before.

    >>> track_clusters(np.array([[0, 0, 2, 2, 4], [0, 0, 0, 3, 4]])).tolist()
    [[0, 0, 1, 1, -1], [0, 0, 0, -1, -1]]
    """
    tracked_labels = np.full(labels.shape, UNCLUSTERED)
    next_name = 0
    for index, row in enumerate(labels):
        groups = [np.flatnonzero(row == name) for name in np.unique(row)]
        used_names: set[int] = set()
        for members in sorted((group for group in groups if len(group) > 1), key=len, reverse=True):
            previous_names = (
                Counter(int(tracked_labels[index - 1][token]) for token in members) if index else Counter[int]()
            )
            candidates = [
                name for name, _ in previous_names.most_common() if name != UNCLUSTERED and name not in used_names
            ]
            name = candidates[0] if candidates else next_name
            next_name += not candidates
            used_names.add(name)
            tracked_labels[index][members] = name
    return tracked_labels


def keep_largest(labels: np.ndarray, max_clusters: int = MAX_CLUSTERS) -> np.ndarray:
    """Keep the clusters with the most tokens over all points. The tokens of the others become unclustered.

    >>> keep_largest(np.array([[0, 0, 0, 1, 1], [0, 0, 0, 1, 1]]), max_clusters=1).tolist()
    [[0, 0, 0, -1, -1], [0, 0, 0, -1, -1]]
    """
    sizes = Counter(labels[labels != UNCLUSTERED].tolist())
    return np.where(np.isin(labels, [name for name, _ in sizes.most_common(max_clusters)]), labels, UNCLUSTERED)


def stack_clusters(row: np.ndarray) -> dict[int, tuple[float, float]]:
    """The vertical range of each cluster at one point: unclustered tokens first, then by name, with gaps."""
    sizes, floor, gap = Counter(row.tolist()), 0.0, 0.02 * len(row)
    extents = {}
    for name in sorted(sizes):
        extents[name] = (floor, floor + sizes[name])
        floor += sizes[name] + gap
    return extents


def flow_bands(labels: np.ndarray, stacks: list[dict[int, tuple[float, float]]], token_texts: list[str]) -> list[Shape]:
    """One band between consecutive points for every pair of clusters that share tokens."""
    shapes = []
    for index in range(len(labels) - 1):
        pairs = Counter(zip(labels[index].tolist(), labels[index + 1].tolist(), strict=True))
        left, right = ({name: low for name, (low, _) in stacks[k].items()} for k in (index, index + 1))
        for (a, b), count in sorted(pairs.items()):
            members = [token_texts[i] for i in np.flatnonzero((labels[index] == a) & (labels[index + 1] == b))]
            colour = cluster_colour(a if b == UNCLUSTERED else b)
            x, y = band_outline(index + 0.09, index + 0.91, left[a], right[b], count)
            shapes.append(Shape("", x, y, colour, 0.16 if a == b == UNCLUSTERED else 0.38, summarise_tokens(members)))
            left[a] += count
            right[b] += count
    return shapes


def band_outline(
    start: float, end: float, start_height: float, end_height: float, height: int
) -> tuple[np.ndarray, np.ndarray]:
    """The outline of a band of constant height from (start, start_height) to (end, end_height)."""
    x, y = (
        start + (end - start) * np.linspace(0, 1, len(BAND_CURVE)),
        start_height + (end_height - start_height) * BAND_CURVE,
    )
    return np.concatenate([x, x[::-1]]), np.concatenate([y, y[::-1] + height])


def cluster_blocks(
    labels: np.ndarray, stacks: list[dict[int, tuple[float, float]]], token_texts: list[str], names: tuple[str, ...]
) -> list[Shape]:
    shapes = []
    for index, stack in enumerate(stacks):
        for name, (low, high) in stack.items():
            members = [token_texts[i] for i in np.flatnonzero(labels[index] == name)]
            members_text = summarise_tokens(members)
            tip = (
                Message("{step}: unclustered, {tokens}", step=names[index], tokens=members_text)
                if name == UNCLUSTERED
                else Message("{step}: a cluster of {tokens}", step=names[index], tokens=members_text)
            )
            x, y = [index - 0.09, index + 0.09, index + 0.09, index - 0.09], [low, low, high, high]
            shapes.append(Shape("", x, y, cluster_colour(name), 0.45 if name == UNCLUSTERED else 1.0, tip))
    return shapes


def cluster_colour(cluster: int) -> str:
    return "alone" if cluster == UNCLUSTERED else SERIES_COLOURS[cluster % len(SERIES_COLOURS)]


def summarise_tokens(token_texts: list[str], max_tokens: int = 12) -> Message:
    """The number of tokens, and the first of them.

    >>> summarise_tokens(["a", "b"]), summarise_tokens(["a", "b"], max_tokens=1)
    ('2 tokens: a b', '2 tokens: a and 1 more')
    """
    n, n_more, listed = len(token_texts), len(token_texts) - max_tokens, " ".join(token_texts[:max_tokens])
    if n_more > 0:
        return Message("{n} tokens: {listed} and {more} more", n=n, listed=listed, more=n_more)
    return plural("{n} token: {listed}", "{n} tokens: {listed}", n=n, listed=listed)

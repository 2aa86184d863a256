"""Do tokens gather? Ranks, dimension and clusters beside shuffled clouds, and how clusters pass into each other."""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture, Shape
from rheoscope.picture.token_labels import display_token, step_names

if TYPE_CHECKING:
    import xarray

MAX_CLUSTERS = 20
"""Clusters that one flow map can tell apart; the tokens of smaller ones are drawn with those alone."""
CAPTION = (
    "The null of every number is the same cloud with each coordinate shuffled among the tokens: below it, tokens share "
    "directions. Clusters are what links of less than the angle hold together; those of types have one point for each different "
    "token and stand beside the embedding's, since equal tokens start at equal points. In the flow map the height of a band is a number "
    f"of tokens, a colour stays with a cluster as long as most of its tokens do; grey are tokens alone, and beyond the {MAX_CLUSTERS} "
    "largest clusters."
)
PANEL_FIELDS = {
    "Directions in use": {"effective_rank": "first", "participation_ratio": "fourth"},
    "Intrinsic dimension": {"intrinsic_dimension": "third"},
    "Number of clusters": {"cluster_count": "second"},
}
UNCLUSTERED = -1
BAND_CURVE = (1 - np.cos(np.linspace(0, np.pi, 9))) / 2
"""How a band goes from its height on the left to that on the right."""


def picture(dataset: "xarray.Dataset") -> Picture:
    """Every number with its null, then the flow map of the clusters."""
    panels = (*(depth_panel(dataset, title) for title in PANEL_FIELDS), type_panel(dataset), flow_map(dataset))
    return Picture("Do tokens gather?", CAPTION, panels)


def depth_panel(dataset: "xarray.Dataset", title: str) -> Panel:
    """Numbers over depth, the null of each, where there is one, dashed in its colour."""
    names = tuple(step_names(dataset.point.values))
    lines, field_definitions = [], []
    for name, colour in PANEL_FIELDS[title].items():
        label = name.replace("_", " ")
        for field, series, style in ((f"{name}_null", f"{label}, null", "dashed"), (name, label, "solid")):
            if field in dataset:
                lines.append(Line(series, range(len(names)), dataset[field].values.astype(float), colour, style))
        field_definitions.append(f"{label}: {dataset[name].attrs['definition']}")
    definitions = "; ".join(field_definitions)
    return Panel(
        title,
        f"{definitions}. Dashed: every coordinate shuffled among the tokens.",
        tuple(lines),
        Axis("", names),
        Axis(low=0.0),
    )


def type_panel(dataset: "xarray.Dataset") -> Panel:
    """Clusters of types over depth, beside those of the embedding and the number of types."""
    names, cluster_counts = tuple(step_names(dataset.point.values)), dataset.type_cluster_count.values.astype(float)
    x, n_types = range(len(names)), int(dataset.type_count)
    lines = (
        Line("types", x, [float(n_types)] * len(names), "fourth", "dashed"),
        Line("in the embedding", x, [cluster_counts[0]] * len(names), "null", "dashed"),
        Line("clusters of types", x, cluster_counts, "second"),
    )
    description = (
        f"{dataset.type_cluster_count.attrs['definition']}; {n_types} types. In the end the flow {dataset.type_flow.values[-1]} "
        f"({dataset.type_flow.attrs['definition']})."
    )
    return Panel("Clusters of types", description, lines, Axis("", names), Axis(low=0.0))


def flow_map(dataset: "xarray.Dataset") -> Panel:
    """An alluvial map: at every point a stack of clusters, between points a band for every group that goes together."""
    labels = keep_largest(track_clusters(dataset.label.values))
    token_texts = [display_token(str(token_text)) for token_text in dataset.token_text.values]
    names = tuple(step_names(dataset.point.values))
    stacks = [stack_clusters(row) for row in labels]
    marks = [*flow_bands(labels, stacks, token_texts), *cluster_blocks(labels, stacks, token_texts, names)]
    description = (
        "From left to right the layers; a band is a group of tokens that go together, as high as they are many."
    )
    return Panel(
        "How clusters pass into each other",
        description,
        tuple(marks),
        Axis("", names),
        Axis(bare=True),
        columns=3,
        height=1.35,
    )


def track_clusters(labels: np.ndarray) -> np.ndarray:
    """Names that stay: tokens alone are −1, and a cluster has the name of the one before that most of its tokens come from.

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
    """The clusters that hold most tokens over all points; the others count as alone.

    >>> keep_largest(np.array([[0, 0, 0, 1, 1], [0, 0, 0, 1, 1]]), max_clusters=1).tolist()
    [[0, 0, 0, -1, -1], [0, 0, 0, -1, -1]]
    """
    sizes = Counter(labels[labels != UNCLUSTERED].tolist())
    return np.where(np.isin(labels, [name for name, _ in sizes.most_common(max_clusters)]), labels, UNCLUSTERED)


def stack_clusters(row: np.ndarray) -> dict[int, tuple[float, float]]:
    """Where each cluster of one point stands: the tokens alone at the bottom, then by name, with a gap between."""
    sizes, floor, gap = Counter(row.tolist()), 0.0, 0.02 * len(row)
    extents = {}
    for name in sorted(sizes):
        extents[name] = (floor, floor + sizes[name])
        floor += sizes[name] + gap
    return extents


def flow_bands(labels: np.ndarray, stacks: list[dict[int, tuple[float, float]]], token_texts: list[str]) -> list[Shape]:
    """Between each point and the next, one band for every pair of clusters that have tokens in common."""
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
    """The outline of a band of one height from (start, low) to (end, later)."""
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
                f"{names[index]}: alone, {members_text}"
                if name == UNCLUSTERED
                else f"{names[index]}: a cluster of {members_text}"
            )
            x, y = [index - 0.09, index + 0.09, index + 0.09, index - 0.09], [low, low, high, high]
            shapes.append(Shape("", x, y, cluster_colour(name), 0.45 if name == UNCLUSTERED else 1.0, tip))
    return shapes


def cluster_colour(cluster: int) -> str:
    return "alone" if cluster == UNCLUSTERED else SERIES_COLOURS[cluster % len(SERIES_COLOURS)]


def summarise_tokens(token_texts: list[str], max_tokens: int = 12) -> str:
    """How many tokens there are, and the first of them.

    >>> summarise_tokens(["a", "b"]), summarise_tokens(["a", "b"], max_tokens=1)
    ('2 tokens: a b', '2 tokens: a and 1 more')
    """
    summary, n_more = (
        f"{len(token_texts)} token{'s' * (len(token_texts) != 1)}: {' '.join(token_texts[:max_tokens])}",
        len(token_texts) - max_tokens,
    )
    return f"{summary} and {n_more} more" if n_more > 0 else summary

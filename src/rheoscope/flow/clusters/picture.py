"""Do tokens gather? Ranks, dimension and clusters beside shuffled clouds, and how clusters pass into each other."""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.picture import CLUSTERS, Axis, Line, Panel, Picture, Shape
from rheoscope.picture.token_labels import places, shown

if TYPE_CHECKING:
    import xarray

MOST = 20
"""Clusters that one flow map can tell apart; the tokens of smaller ones are drawn with those alone."""
CAPTION = (
    "The null of every number is the same cloud with each coordinate shuffled among the tokens: below it, tokens share "
    "directions. Clusters are what links of less than the angle hold together; those of types have one point for each different "
    "token and stand beside the embedding's, since equal tokens start at equal points. In the flow map the height of a band is a number "
    f"of tokens, a colour stays with a cluster as long as most of its tokens do; grey are tokens alone, and beyond the {MOST} "
    "largest clusters."
)
PANELS = {
    "Directions in use": {"effective_rank": "first", "participation_ratio": "fourth"},
    "Intrinsic dimension": {"intrinsic_dimension": "third"},
    "Number of clusters": {"cluster_count": "second"},
}
ALONE = -1
CURVE = (1 - np.cos(np.linspace(0, np.pi, 9))) / 2
"""How a band goes from its height on the left to that on the right."""


def picture(dataset: "xarray.Dataset") -> Picture:
    """Every number with its null, then the flow map of the clusters."""
    panels = (*(beside(dataset, title) for title in PANELS), of_types(dataset), flow(dataset))
    return Picture("Do tokens gather?", CAPTION, panels)


def beside(dataset: "xarray.Dataset", title: str) -> Panel:
    """Numbers over depth, the null of each, where there is one, dashed in its colour."""
    names = tuple(places(dataset.point.values))
    lines, about = [], []
    for name, colour in PANELS[title].items():
        said = name.replace("_", " ")
        for field, series, style in ((f"{name}_null", f"{said}, null", "dashed"), (name, said, "solid")):
            if field in dataset:
                lines.append(Line(series, range(len(names)), dataset[field].values.astype(float), colour, style))
        about.append(f"{said}: {dataset[name].attrs['definition']}")
    told = "; ".join(about)
    return Panel(
        title,
        f"{told}. Dashed: every coordinate shuffled among the tokens.",
        tuple(lines),
        Axis("", names),
        Axis(low=0.0),
    )


def of_types(dataset: "xarray.Dataset") -> Panel:
    """Clusters of types over depth, beside those of the embedding and the number of types."""
    names, count = tuple(places(dataset.point.values)), dataset.type_cluster_count.values.astype(float)
    at, types = range(len(names)), int(dataset.type_count)
    lines = (
        Line("types", at, [float(types)] * len(names), "fourth", "dashed"),
        Line("in the embedding", at, [count[0]] * len(names), "null", "dashed"),
        Line("clusters of types", at, count, "second"),
    )
    about = (
        f"{dataset.type_cluster_count.attrs['definition']}; {types} types. In the end the flow {dataset.type_flow.values[-1]} "
        f"({dataset.type_flow.attrs['definition']})."
    )
    return Panel("Clusters of types", about, lines, Axis("", names), Axis(low=0.0))


def flow(dataset: "xarray.Dataset") -> Panel:
    """An alluvial map: at every point a stack of clusters, between points a band for every group that goes together."""
    label = largest(tracked(dataset.label.values))
    words = [shown(str(word)) for word in dataset.word.values]
    names = tuple(places(dataset.point.values))
    floors = [stacked(row) for row in label]
    marks = [*bands(label, floors, words), *blocks(label, floors, words, names)]
    about = "From left to right the layers; a band is a group of tokens that go together, as high as they are many."
    return Panel(
        "How clusters pass into each other",
        about,
        tuple(marks),
        Axis("", names),
        Axis(bare=True),
        columns=3,
        height=1.35,
    )


def tracked(label: np.ndarray) -> np.ndarray:
    """Names that stay: tokens alone are −1, and a cluster has the name of the one before that most of its tokens come from.

    >>> tracked(np.array([[0, 0, 2, 2, 4], [0, 0, 0, 3, 4]])).tolist()
    [[0, 0, 1, 1, -1], [0, 0, 0, -1, -1]]
    """
    found = np.full(label.shape, ALONE)
    fresh = 0
    for at, row in enumerate(label):
        groups = [np.flatnonzero(row == name) for name in np.unique(row)]
        taken: set[int] = set()
        for members in sorted((group for group in groups if len(group) > 1), key=len, reverse=True):
            before = Counter(int(found[at - 1][token]) for token in members) if at else Counter[int]()
            kept = [name for name, _ in before.most_common() if name != ALONE and name not in taken]
            name = kept[0] if kept else fresh
            fresh += not kept
            taken.add(name)
            found[at][members] = name
    return found


def largest(label: np.ndarray, most: int = MOST) -> np.ndarray:
    """The clusters that hold most tokens over all points; the others count as alone.

    >>> largest(np.array([[0, 0, 0, 1, 1], [0, 0, 0, 1, 1]]), most=1).tolist()
    [[0, 0, 0, -1, -1], [0, 0, 0, -1, -1]]
    """
    sizes = Counter(label[label != ALONE].tolist())
    return np.where(np.isin(label, [name for name, _ in sizes.most_common(most)]), label, ALONE)


def stacked(row: np.ndarray) -> dict[int, tuple[float, float]]:
    """Where each cluster of one point stands: the tokens alone at the bottom, then by name, with a gap between."""
    sizes, floor, gap = Counter(row.tolist()), 0.0, 0.02 * len(row)
    found = {}
    for name in sorted(sizes):
        found[name] = (floor, floor + sizes[name])
        floor += sizes[name] + gap
    return found


def bands(label: np.ndarray, floors: list[dict[int, tuple[float, float]]], words: list[str]) -> list[Shape]:
    """Between each point and the next, one band for every pair of clusters that have tokens in common."""
    drawn = []
    for at in range(len(label) - 1):
        pairs = Counter(zip(label[at].tolist(), label[at + 1].tolist(), strict=True))
        left, right = ({name: low for name, (low, _) in floors[k].items()} for k in (at, at + 1))
        for (a, b), count in sorted(pairs.items()):
            members = [words[i] for i in np.flatnonzero((label[at] == a) & (label[at + 1] == b))]
            colour = colour_of_cluster(a if b == ALONE else b)
            x, y = ribbon(at + 0.09, at + 0.91, left[a], right[b], count)
            drawn.append(Shape("", x, y, colour, 0.16 if a == b == ALONE else 0.38, listed(members)))
            left[a] += count
            right[b] += count
    return drawn


def ribbon(start: float, end: float, low: float, later: float, height: int) -> tuple[np.ndarray, np.ndarray]:
    """The outline of a band of one height from (start, low) to (end, later)."""
    x, y = start + (end - start) * np.linspace(0, 1, len(CURVE)), low + (later - low) * CURVE
    return np.concatenate([x, x[::-1]]), np.concatenate([y, y[::-1] + height])


def blocks(
    label: np.ndarray, floors: list[dict[int, tuple[float, float]]], words: list[str], names: tuple[str, ...]
) -> list[Shape]:
    drawn = []
    for at, floor in enumerate(floors):
        for name, (low, high) in floor.items():
            members = [words[i] for i in np.flatnonzero(label[at] == name)]
            who = listed(members)
            said = f"{names[at]}: alone, {who}" if name == ALONE else f"{names[at]}: a cluster of {who}"
            x, y = [at - 0.09, at + 0.09, at + 0.09, at - 0.09], [low, low, high, high]
            drawn.append(Shape("", x, y, colour_of_cluster(name), 0.45 if name == ALONE else 1.0, said))
    return drawn


def colour_of_cluster(name: int) -> str:
    return "alone" if name == ALONE else CLUSTERS[name % len(CLUSTERS)]


def listed(words: list[str], most: int = 12) -> str:
    """How many tokens there are, and the first of them.

    >>> listed(["a", "b"]), listed(["a", "b"], most=1)
    ('2 tokens: a b', '2 tokens: a and 1 more')
    """
    first, rest = f"{len(words)} token{'s' * (len(words) != 1)}: {' '.join(words[:most])}", len(words) - most
    return f"{first} and {rest} more" if rest > 0 else first

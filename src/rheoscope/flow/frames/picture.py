"""The cloud as one watches it: a few layers side by side, tokens on the sphere seen from one side, clusters in colour."""

from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.flow.clusters.picture import ALONE, largest, listed, tracked
from rheoscope.picture.label_placement import Name, named
from rheoscope.picture.picture import CLUSTERS, Axis, Line, Mark, Panel, Picture
from rheoscope.picture.token_labels import Words, places, shown

if TYPE_CHECKING:
    import xarray

Window = tuple[tuple[float, float], tuple[float, float]]
"""The span of x, and that of y."""

MARK = "seventh"
"""The colour of the token that predicts and of its prediction, which no cluster has."""
COLOURS = tuple(colour for colour in CLUSTERS if colour != MARK)
"""As many clusters have a colour of their own."""
NAMED = 26
"""Names that one frame can hold; all tokens have theirs under the pointer."""
AIR = 1.12
"""How much wider than the cloud its window is: room for names."""
TALLEST, FLATTEST = 1.1, 0.7
"""Height of a window as a share of its width."""
ROUND = np.linspace(0, 2 * np.pi, 241)


def picture(dataset: "xarray.Dataset", words: Words | None = None) -> Picture:
    """A panel a frame, all on one plane."""
    label, view, target = coloured(dataset.label.values), window(dataset), predicted(dataset, words)
    panels = tuple(frame(dataset, at, label, view, target) for at in range(len(label)))
    return Picture("The cloud, layer by layer", caption(dataset, target), panels)


def coloured(label: np.ndarray) -> np.ndarray:
    """Names that stay, 0, 1, … for the largest clusters of all frames, each a colour of its own; −1 for everyone else.

    >>> coloured(np.array([[0, 0, 2, 2, 4], [0, 1, 2, 2, 2]])).tolist()
    [[0, 0, 1, 1, -1], [-1, -1, 1, 1, 1]]
    """
    kept = largest(tracked(label), len(COLOURS))
    names = [ALONE, *np.setdiff1d(kept, [ALONE])]
    return np.searchsorted(names, kept) - 1


def window(dataset: "xarray.Dataset") -> Window:
    """What all frames show: every token of every frame, and the prediction, neither tall nor flat."""
    seen = dataset.place.values.reshape(-1, 2)
    if "prediction" in dataset:
        seen = np.vstack([seen, dataset.prediction.values])
    low, high = seen.min(0), seen.max(0)
    half = AIR * np.maximum((high - low) / 2, 1e-3)
    half = np.maximum(half, [half[1] / TALLEST, half[0] * FLATTEST])
    (left, floor), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    return (float(left), float(right)), (float(floor), float(top))


def caption(dataset: "xarray.Dataset", target: str) -> str:
    angle = f"{np.degrees(dataset.attrs['angle']):.0f}°"
    massive = ", ".join(str(token) for token in dataset.attrs["massive"]) or "none"
    told = (
        "Every dot is a token: its direction from the middle of the cloud, a point on a sphere, seen on the two directions in "
        "which all layers together spread most. The plane is the same in every frame; titles say how much of a frame's spread "
        "is seen on it, and a hair leads from where a token was in the frame before. A colour is a cluster of that frame "
        f"(chains of steps below {angle}) and stays with it as long as most of its tokens do; grey are tokens alone, and "
        f"clusters beyond the {len(COLOURS)} largest. The ring is the token that predicts. "
    )
    if target:
        told += (
            f"The star is the prediction {target}: the point of the sphere where its logit is largest, seen "
            "on the same plane; the nearer it is to the middle, the less of it the plane shows. "
        )
    return f"{told}Massive tokens, longer than five times the median, are left out: {massive}."


def predicted(dataset: "xarray.Dataset", words: Words | None) -> str:
    """The text of the prediction, its id where texts are not known, nothing where nothing is predicted."""
    if "prediction" not in dataset:
        return ""
    target = int(dataset.attrs["target"])
    return shown(words([target])[0]) if words else f"token {target}"


def frame(dataset: "xarray.Dataset", at: int, label: np.ndarray, view: Window, target: str) -> Panel:
    """One layer: hairs from the frame before, dots, the ring, the star, and names where there is room."""
    place, row = dataset.place.values[at], label[at]
    after, share, near = (
        places(dataset.frame.values)[at],
        f"{float(dataset.explained[at]):.0%} seen",
        nearness(dataset, at),
    )
    marks: list[Mark] = [rim(view), *hairs(dataset, at), *dots(dataset, at, row), *ring(dataset, at)]
    marks += star(dataset, target)
    marks += named(names(dataset, at, row, target), place, view, NAMED)
    (left, right), (low, high) = view
    x, y = Axis(bare=True, low=left, high=right), Axis(bare=True, low=low, high=high)
    about = f"The cloud after {after}. Seen: {dataset.explained.attrs['definition']}."
    about += f" Cosine: {dataset.toward_prediction.attrs['definition']}." if near else ""
    height = 0.2 + 1.43 * (high - low) / (right - left)  # as high as the window is on a page, and its title
    return Panel(f"{after}: {share}{near}", about, tuple(marks), x, y, height=height, equal=True)


def nearness(dataset: "xarray.Dataset", at: int) -> str:
    """How near the token that predicts is to its prediction, in all of E; nothing where there is no such pair."""
    here = dataset.token.values == dataset.attrs["token"]
    if "prediction" not in dataset or not here.any():
        return ""
    return f", cos(ring, star) {float(dataset.toward_prediction.values[at][here][0]):.2f}"


def rim(view: Window) -> Line:
    """The rim of the sphere, as much of it as one sees."""
    x, y = np.cos(ROUND), np.sin(ROUND)
    (left, right), (low, high) = view
    inside = (left < x) & (x < right) & (low < y) & (y < high)
    return Line("", np.where(inside, x, np.nan), np.where(inside, y, np.nan), "null", "hair")


def hairs(dataset: "xarray.Dataset", at: int) -> list[Line]:
    """From every token's place in the frame before."""
    if at == 0:
        return []
    before, now = dataset.place.values[at - 1 : at + 1]
    ways = np.stack([before, now, np.full_like(now, np.nan)], 1).reshape(-1, 2)
    return [Line("", ways[:, 0], ways[:, 1], "null", "hair")]


def dots(dataset: "xarray.Dataset", at: int, row: np.ndarray) -> list[Line]:
    """All tokens, those alone first and so below the others."""
    place, words, tokens = dataset.place.values[at], _words(dataset), dataset.token.values
    drawn = []
    for cluster in np.unique(row):
        members = np.flatnonzero(row == cluster)
        together = "" if cluster == ALONE else f"\nin a cluster of {listed([words[k] for k in members])}"
        tips = [f"token {tokens[k]} {words[k]}{together}" for k in members]
        colour = "alone" if cluster == ALONE else COLOURS[cluster]
        drawn.append(Line("", place[members, 0], place[members, 1], colour, "dots", tips=tips))
    return drawn


def ring(dataset: "xarray.Dataset", at: int) -> list[Line]:
    """Around the token that predicts, where it is no massive one."""
    place = dataset.place.values[at][dataset.token.values == dataset.attrs["token"]]
    return [Line("", place[:, 0], place[:, 1], MARK, "rings")] if len(place) else []


def star(dataset: "xarray.Dataset", target: str) -> list[Line]:
    """Where the prediction is, and a line to it from the middle of the cloud."""
    if not target:
        return []
    x, y = dataset.prediction.values
    tip = [f"the prediction {target}"]
    return [Line("", [0, x], [0, y], MARK, "dashed", tip[0]), Line("", [x], [y], MARK, "stars", tips=tip)]


def names(dataset: "xarray.Dataset", at: int, row: np.ndarray, target: str) -> list[Name]:
    """Who wants a name, the most wanted first: who predicts, the prediction, clusters from the largest on, then the outermost."""
    place, words = dataset.place.values[at], _words(dataset)
    here = dataset.token.values == dataset.attrs["token"]
    wanted = [name(place[k], words[k], strong=True) for k in np.flatnonzero(here)]
    if target:
        wanted.append(name(dataset.prediction.values, f"next: {target}", strong=True))
    far, sizes = np.linalg.norm(dataset.place.values, axis=-1).mean(0).tolist(), np.bincount(row - ALONE)
    sizes[0] = 0  # who is alone comes last
    for members in sorted(
        alike(words, row, here),
        key=lambda some: (-sizes[row[some[0]] - ALONE], -len(some), -fmean(far[k] for k in some)),
    ):
        middle = central(place, members)
        wanted.append(name(place[middle], words[middle] + f" ×{len(members)}" * (len(members) > 1)))
    return wanted


def central(place: np.ndarray, members: list[int]) -> int:
    """Who of them is nearest to their mean."""
    if len(members) == 1:
        return members[0]
    return members[np.linalg.norm(place[members] - place[members].mean(0), axis=-1).argmin()]


def alike(words: list[str], row: np.ndarray, but: np.ndarray) -> list[list[int]]:
    """Tokens that share one name: those of one text in one coloured cluster; everyone else for himself.

    >>> alike(["a", "a", "b", "b"], np.array([0, 0, -1, -1]), np.zeros(4, dtype=bool))
    [[0, 1], [2], [3]]
    """
    groups: dict[tuple[int, str, int], list[int]] = {}
    for k in np.flatnonzero(~but):
        groups.setdefault((int(row[k]), words[k], int(k) if row[k] == ALONE else 0), []).append(int(k))
    return list(groups.values())


def name(place: np.ndarray, text: str, strong: bool = False) -> Name:
    x, y = map(float, place)
    return Name(x, y, text, strong)


def _words(dataset: "xarray.Dataset") -> list[str]:
    return [shown(str(word)) for word in dataset.word.values]

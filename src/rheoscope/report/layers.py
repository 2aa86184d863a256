"""The table of the main job: a row a layer, each number beside its null, the same in the terminal, on a page and in a comparison."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.report.tokens import shown

if TYPE_CHECKING:
    import xarray

Words = Callable[[list[int]], list[str]]
Found = Mapping[str, "xarray.Dataset"]


@dataclass(frozen=True)
class Column:
    """One number of a layer: which analysis holds it, and how to take it and its null out."""

    title: str
    definition: str
    analysis: str
    value: Callable[["xarray.Dataset", int], float]
    null: Callable[["xarray.Dataset", int], float] | None = None


def _steps(path: "xarray.Dataset", layer: int) -> np.ndarray:
    return np.array([str(step).startswith(f"L{layer}.") for step in path.step.values])


def moved(path: "xarray.Dataset", layer: int) -> float:
    return float(np.median(path.relative_speed.values[_steps(path, layer)], axis=1).sum())


def straight_null(path: "xarray.Dataset", layer: int) -> float:
    """Straightness up to the end of a layer, had the displacements random directions: √Σ speed² / Σ speed."""
    speed = path.speed.values[: int(np.flatnonzero(_steps(path, layer))[-1]) + 1]
    return float(np.median(np.sqrt((speed**2).sum(0)) / np.maximum(speed.sum(0), 1e-30)))


COLUMNS = (
    Column(
        "moved",
        "the way that the layer makes a token go, over its length before each half-layer; median over tokens",
        "trajectory",
        moved,
    ),
    Column(
        "attn",
        "attention's share of that way, the rest is the MLP's",
        "trajectory",
        lambda path, layer: float(path.attention_share[layer]),
    ),
    Column(
        "straight",
        "chord over path from the embedding to the end of the layer, median over tokens; null: the same lengths in random directions",
        "trajectory",
        lambda path, layer: float(path.straightness_so_far[layer].median()),
        straight_null,
    ),
    Column(
        "κ",
        "1 where keeping every token's identity is the cheapest way to get the next cloud, 0 where it is no better than chance; "
        "null: the displacements permuted among the tokens",
        "transport",
        lambda moves, layer: float(moves.kappa[layer]),
        lambda moves, layer: float(moves.kappa_null[layer]),
    ),
    Column(
        "energy",
        "what the layer's heads climb of their own energy Λ by what they add, summed over the heads, in nats; null: heads turned at "
        "random climb nothing to first order",
        "energy",
        lambda heads, layer: float((heads.energy_after - heads.energy)[layer].sum()),
    ),
    Column(
        "clusters",
        "groups of tokens that chains of steps below 45° hold together; null: every coordinate shuffled among the tokens",
        "clusters",
        lambda cloud, layer: float(cloud.cluster_count[layer + 1]),
        lambda cloud, layer: float(cloud.cluster_count_null[layer + 1]),
    ),
    Column(
        "rank",
        "effective rank of the cloud after the layer: directions in use; null: every coordinate shuffled among the tokens",
        "clusters",
        lambda cloud, layer: float(cloud.effective_rank[layer + 1]),
        lambda cloud, layer: float(cloud.effective_rank_null[layer + 1]),
    ),
    Column(
        "dim",
        "intrinsic dimension (TwoNN) of the cloud after the layer; null: every coordinate shuffled among the tokens",
        "clusters",
        lambda cloud, layer: float(cloud.intrinsic_dimension[layer + 1]),
        lambda cloud, layer: float(cloud.intrinsic_dimension_null[layer + 1]),
    ),
)
"""A number of a layer is one entry here; a column whose analysis has no answer is left out of every table."""
NEXT = "what the layer finds likeliest to come next, with its probability (the logit lens)"


def columns(found: Found) -> list[Column]:
    return [column for column in COLUMNS if column.analysis in found]


def said(value: float) -> str:
    """A number, short: .89, 12.3, 7, none.

    >>> said(0.894), said(12.34), said(7.0), said(-0.001), said(123.4), said(float("nan"))
    ('.89', '12.3', '7', '.00', '123', 'none')
    """
    if not math.isfinite(value):
        return "none" if math.isnan(value) else "∞"
    if abs(value) >= 100 or (abs(value) >= 2 and value == int(value)):
        return f"{value:.0f}"
    text = f"{value:.2f}" if abs(value) < 2 else f"{value:.1f}"
    text = text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
    return ".00" if text == "-.00" else text


def prediction(found: Found, layer: int, words: Words) -> tuple[str, float]:
    """The likeliest next token after a layer, and its probability."""
    row = found["readout"].sel(point=f"L{layer}.resid_post")
    return shown(words([int(row.top_tokens[0])])[0]), float(row.top_probabilities[0])

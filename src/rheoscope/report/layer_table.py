"""How each layer moves the cloud: a row a layer, every number beside what chance would give."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.numbers import short
from rheoscope.picture.blocks import Block, Cell, Table
from rheoscope.space.results import Answers
from rheoscope.space.step import Step

if TYPE_CHECKING:
    import xarray

Found = Mapping[str, "xarray.Dataset"]


@dataclass(frozen=True)
class Column:
    """One number of a layer: which analysis holds it, and how to take it and its null out."""

    title: str
    definition: str
    analysis: str
    value: Callable[["xarray.Dataset", int], float]
    null: Callable[["xarray.Dataset", int], float] | None = None

    def cell(self, found: Found, layer: int) -> Cell:
        dataset = found[self.analysis]
        null = short(self.null(dataset, layer)) if self.null else ""
        return Cell(short(self.value(dataset, layer)), small="" if null == "none" else null)


def _steps(path: "xarray.Dataset", layer: int) -> np.ndarray:
    return np.array([Step.parse(str(step)).layer == layer for step in path.step.values])


def moved(path: "xarray.Dataset", layer: int) -> float:
    """The way that a layer makes a token go, over its length before each half-layer; the median token's."""
    return float(np.median(path.relative_speed.values[_steps(path, layer)], axis=1).sum())


def straight_null(path: "xarray.Dataset", layer: int) -> float:
    """Straightness up to the end of a layer, had the displacements random directions: √Σ speed² / Σ speed."""
    speed = path.speed.values[: int(np.flatnonzero(_steps(path, layer))[-1]) + 1]
    return float(np.median(np.sqrt((speed**2).sum(0)) / np.maximum(speed.sum(0), 1e-30)))


def at_end(name: str) -> Callable[["xarray.Dataset", int], float]:
    """A number of the cloud after a layer; none where it was left out."""
    return lambda cloud, layer: float(cloud[name][layer + 1]) if name in cloud else float("nan")


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
        lambda moves, layer: float(moves.kappa_null[layer]) if "kappa_null" in moves else float("nan"),
    ),
    Column(
        "clusters",
        "groups of tokens that chains of steps below 45° hold together; null: every coordinate shuffled among the tokens",
        "clusters",
        at_end("cluster_count"),
        at_end("cluster_count_null"),
    ),
    Column(
        "rank",
        "effective rank of the cloud after the layer: directions in use; null: every coordinate shuffled among the tokens",
        "clusters",
        at_end("effective_rank"),
        at_end("effective_rank_null"),
    ),
    Column(
        "dim",
        "intrinsic dimension (TwoNN) of the cloud after the layer; null: every coordinate shuffled among the tokens",
        "clusters",
        at_end("intrinsic_dimension"),
        at_end("intrinsic_dimension_null"),
    ),
)
"""A number of a layer is one entry here; a column whose analysis has no answer is left out of the table."""
CHANCE = "small: what chance gives"
NEEDS = ("trajectory", "transport", "clusters")


def columns(found: Found) -> list[Column]:
    return [column for column in COLUMNS if column.analysis in found]


def blocks(answers: Answers) -> list[Block]:
    """The table, of what has an answer."""
    asked = columns(answers.found)
    header = [Cell("layer"), *(Cell(c.title, c.definition, "null" * (c.null is not None)) for c in asked)]
    rows = [
        [Cell(f"L{layer}"), *(column.cell(answers.found, layer) for column in asked)]
        for layer in range(answers.view.layers)
    ]
    note = "" if answers.nulls else "nulls are left out (--fast)"
    return [Table("How each layer moves the cloud", header, rows, small=CHANCE, note=note)] if asked else []


def compared(first: Answers, second: Answers) -> list[Block]:
    """Three rows a layer: the first text, the second, and the second minus the first."""
    both = [column for column in columns(first.found) if column.analysis in second.found]
    rows: list[list[Cell]] = []
    for layer in range(first.view.layers):
        values = [[column.value(one.found[column.analysis], layer) for column in both] for one in (first, second)]
        apart = [b - a for a, b in zip(*values, strict=True)]
        for name, row in (("1", values[0]), ("2", values[1]), ("2−1", apart)):
            rows.append([Cell(f"L{layer} {name}"), *(Cell(short(x)) for x in row)])
    header = [Cell("layer, text"), *(Cell(column.title, column.definition) for column in both)]
    ends = frozenset(range(2, len(rows), 3))
    heading = "How each layer moves the cloud of each text, and the difference"
    return [Table(heading, header, rows, ends=ends)] if both else []

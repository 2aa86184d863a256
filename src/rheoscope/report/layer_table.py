"""How each layer moves the cloud: a row a layer, every number beside what chance would give."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Block, Cell, Table
from rheoscope.space.results import Results
from rheoscope.space.step import Step

if TYPE_CHECKING:
    import xarray

Datasets = Mapping[str, "xarray.Dataset"]


@dataclass(frozen=True)
class Column:
    """One number of a layer: which analysis holds it, and how to take it and its null out."""

    title: str
    definition: str
    analysis: str
    value: Callable[["xarray.Dataset", int], float]
    null: Callable[["xarray.Dataset", int], float] | None = None

    def cell(self, datasets: Datasets, layer: int) -> Cell:
        dataset = datasets[self.analysis]
        null = format_number(self.null(dataset, layer)) if self.null else ""
        return Cell(format_number(self.value(dataset, layer)), small_text="" if null == "none" else null)


def _steps_of_layer(trajectory: "xarray.Dataset", layer: int) -> np.ndarray:
    return np.array([Step.parse(str(step)).layer == layer for step in trajectory.step.values])


def relative_path_length(trajectory: "xarray.Dataset", layer: int) -> float:
    """The way that a layer makes a token go, over its length before each half-layer; the median token's."""
    return float(np.median(trajectory.relative_speed.values[_steps_of_layer(trajectory, layer)], axis=1).sum())


def straightness_null(trajectory: "xarray.Dataset", layer: int) -> float:
    """Straightness up to the end of a layer, had the displacements random directions: √Σ speed² / Σ speed."""
    speed = trajectory.speed.values[: int(np.flatnonzero(_steps_of_layer(trajectory, layer))[-1]) + 1]
    return float(np.median(np.sqrt((speed**2).sum(0)) / np.maximum(speed.sum(0), 1e-30)))


def after_layer(name: str) -> Callable[["xarray.Dataset", int], float]:
    """A number of the cloud after a layer; none where it was left out."""
    return lambda cloud, layer: float(cloud[name][layer + 1]) if name in cloud else float("nan")


COLUMNS = (
    Column(
        "moved",
        "the way that the layer makes a token go, over its length before each half-layer; median over tokens",
        "trajectory",
        relative_path_length,
    ),
    Column(
        "attn",
        "attention's share of that way, the rest is the MLP's",
        "trajectory",
        lambda trajectory, layer: float(trajectory.attention_share[layer]),
    ),
    Column(
        "straight",
        "chord over path from the embedding to the end of the layer, median over tokens; null: the same lengths in random directions",
        "trajectory",
        lambda trajectory, layer: float(trajectory.straightness_so_far[layer].median()),
        straightness_null,
    ),
    Column(
        "κ",
        "1 where keeping every token's identity is the cheapest way to get the next cloud, 0 where it is no better than chance; "
        "null: the displacements permuted among the tokens",
        "transport",
        lambda transport, layer: float(transport.kappa[layer]),
        lambda transport, layer: float(transport.kappa_null[layer]) if "kappa_null" in transport else float("nan"),
    ),
    Column(
        "clusters",
        "groups of tokens that chains of steps below 45° hold together; null: every coordinate shuffled among the tokens",
        "clusters",
        after_layer("cluster_count"),
        after_layer("cluster_count_null"),
    ),
    Column(
        "rank",
        "effective rank of the cloud after the layer: directions in use; null: every coordinate shuffled among the tokens",
        "clusters",
        after_layer("effective_rank"),
        after_layer("effective_rank_null"),
    ),
    Column(
        "dim",
        "intrinsic dimension (TwoNN) of the cloud after the layer; null: every coordinate shuffled among the tokens",
        "clusters",
        after_layer("intrinsic_dimension"),
        after_layer("intrinsic_dimension_null"),
    ),
)
"""A number of a layer is one entry here; a column whose analysis has no answer is left out of the table."""
NULL_CAPTION = "small: what chance gives"
NEEDS = ("trajectory", "transport", "clusters")


def available_columns(datasets: Datasets) -> list[Column]:
    return [column for column in COLUMNS if column.analysis in datasets]


def blocks(results: Results) -> list[Block]:
    """The table, of what has an answer."""
    shown_columns = available_columns(results.datasets)
    header = [
        Cell("layer"),
        *(Cell(column.title, column.definition, "null" * (column.null is not None)) for column in shown_columns),
    ]
    rows = [
        [Cell(f"L{layer}"), *(column.cell(results.datasets, layer) for column in shown_columns)]
        for layer in range(results.view.layers)
    ]
    note = "" if results.has_nulls else "nulls are left out (--fast)"
    return (
        [Table("How each layer moves the cloud", header, rows, small_caption=NULL_CAPTION, note=note)]
        if shown_columns
        else []
    )


def comparison_blocks(first_results: Results, second_results: Results) -> list[Block]:
    """Three rows a layer: the first text, the second, and the second minus the first."""
    shared_columns = [
        column for column in available_columns(first_results.datasets) if column.analysis in second_results.datasets
    ]
    rows: list[list[Cell]] = []
    for layer in range(first_results.view.layers):
        values = [
            [column.value(results.datasets[column.analysis], layer) for column in shared_columns]
            for results in (first_results, second_results)
        ]
        differences = [b - a for a, b in zip(*values, strict=True)]
        for row_name, row in (("1", values[0]), ("2", values[1]), ("2−1", differences)):
            rows.append([Cell(f"L{layer} {row_name}"), *(Cell(format_number(x)) for x in row)])
    header = [Cell("layer, text"), *(Cell(column.title, column.definition) for column in shared_columns)]
    group_ends = frozenset(range(2, len(rows), 3))
    heading = "How each layer moves the cloud of each text, and the difference"
    return [Table(heading, header, rows, group_ends=group_ends)] if shared_columns else []

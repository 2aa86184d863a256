"""Text about clusters: their number, the effective rank and the dimension of the cloud after each layer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.space.training_quantity import TrainingQuantity, last_point
from rheoscope.space.words import LayerColumn, Words

if TYPE_CHECKING:
    import xarray


def log_rank_reduction(clusters: "xarray.Dataset") -> float:
    """Log ratio of the effective rank of token types at the embedding and at the end; negative if the rank grows."""
    rank = clusters.type_effective_rank.values
    return float(np.log(rank[0] / rank[-1]))


def after_layer(name: str) -> Callable[["xarray.Dataset", int], float]:
    """A field of the cloud after a layer; NaN if the result does not have it."""
    return lambda cloud, layer: float(cloud[name][layer + 1]) if name in cloud else float("nan")


LAYER_COLUMNS = (
    LayerColumn(
        "clusters",
        Message("clusters"),
        Message("clusters of tokens linked by angles below 45°; null: every coordinate shuffled among the tokens"),
        after_layer("cluster_count"),
        after_layer("cluster_count_null"),
    ),
    LayerColumn(
        "clusters",
        Message("eff. rank"),
        Message("effective rank of the cloud after the layer; null: every coordinate shuffled among the tokens"),
        after_layer("effective_rank"),
        after_layer("effective_rank_null"),
    ),
    LayerColumn(
        "clusters",
        Message("dim"),
        Message(
            "intrinsic dimension (TwoNN) of the cloud after the layer; null: every coordinate shuffled among the tokens"
        ),
        after_layer("intrinsic_dimension"),
        after_layer("intrinsic_dimension_null"),
    ),
)


TRAINING_QUANTITIES = (
    TrainingQuantity(
        6,
        "clusters",
        "effective_rank",
        "effective_rank",
        "effective_rank_null",
        Message("effective rank of the last cloud"),
        reduce=last_point,
    ),
)
WORDS = Words(training_quantities=TRAINING_QUANTITIES, layer_columns=LAYER_COLUMNS)

"""Text about paths: are they straighter than chance, and how far does each layer move the tokens?"""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_fixed
from rheoscope.picture.picture import format_value
from rheoscope.space.results import Results
from rheoscope.space.step import Step
from rheoscope.space.words import LayerColumn, Words
from rheoscope.statistics.statement import Statement, from_draws

if TYPE_CHECKING:
    import xarray


def straightness(results: Results) -> Statement | None:
    trajectory = results.datasets.get("trajectory")
    if trajectory is None or not trajectory.sizes["draw"]:
        return None
    value, null = float(trajectory.straightness.mean()), trajectory.straightness_null_draws.values
    template = (
        Message("Tokens move straighter than under the null")
        if value > null.mean()
        else Message("Tokens move less straight than under the null")
    )
    text = Message(
        "{comparison}: chord over path {value} (half-layers with random signs {null} ± {sd}).",
        comparison=template,
        value=format_fixed(value),
        null=format_fixed(null.mean()),
        sd=format_fixed(null.std()),
    )
    return from_draws(text, "trajectory", value, null)


def _steps_of_layer(trajectory: "xarray.Dataset", layer: int) -> np.ndarray:
    return np.array([Step.parse(str(step)).layer == layer for step in trajectory.step.values])


def relative_path_length(trajectory: "xarray.Dataset", layer: int) -> float:
    """The path length in a layer, relative to the norm before each half-layer; median over tokens."""
    return float(np.median(trajectory.relative_speed.values[_steps_of_layer(trajectory, layer)], axis=1).sum())


def straightness_null(trajectory: "xarray.Dataset", layer: int) -> float:
    """Straightness up to the end of a layer for displacements in random directions: √Σ speed² / Σ speed."""
    speed = trajectory.speed.values[: int(np.flatnonzero(_steps_of_layer(trajectory, layer))[-1]) + 1]
    return float(np.median(np.sqrt((speed**2).sum(0)) / np.maximum(speed.sum(0), 1e-30)))


def token_tips(trajectory: "xarray.Dataset") -> dict[int, Message]:
    """Path length, straightness and its null, for every token."""
    columns = trajectory.token, trajectory.path_length, trajectory.straightness, trajectory.straightness_null
    rows = zip(*(column.values.tolist() for column in columns), strict=True)
    return {
        int(token): Message(
            "path {length}, straightness {straightness} (null {null})",
            length=format_value(length),
            straightness=format_value(straightness),
            null=format_value(null),
        )
        for token, length, straightness, null in rows
    }


LAYER_COLUMNS = (
    LayerColumn(
        "trajectory",
        Message("moved"),
        Message("path length of a token in the layer, relative to its norm before each half-layer; median over tokens"),
        relative_path_length,
    ),
    LayerColumn(
        "trajectory",
        Message("attn"),
        Message("share of that path due to attention; the rest is the MLP's"),
        lambda trajectory, layer: float(trajectory.attention_share[layer]),
    ),
    LayerColumn(
        "trajectory",
        Message("straight"),
        Message(
            "chord over path from the embedding to the end of the layer, median over tokens; "
            "null: the same lengths in random directions"
        ),
        lambda trajectory, layer: float(trajectory.straightness_so_far[layer].median()),
        straightness_null,
    ),
)


WORDS = Words(findings=(straightness,), layer_columns=LAYER_COLUMNS, token_tips=token_tips)

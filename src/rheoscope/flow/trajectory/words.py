"""Text about paths: are they straighter than chance, and how far does each layer move the tokens?"""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.flow.trajectory import patch_map
from rheoscope.messages.message import Message, Verbatim
from rheoscope.messages.numbers import format_fixed, format_number
from rheoscope.picture.picture import format_value
from rheoscope.space.results import Results
from rheoscope.space.step import Step
from rheoscope.space.story_line import StoryLine, StoryPicture, typical_range
from rheoscope.space.words import LayerColumn, Words
from rheoscope.statistics.field_summaries import median_of
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
        null=format_fixed(float(null.mean())),
        sd=format_fixed(float(null.std())),
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


BARS = "▁▂▃▄▅▆▇█"


def movement(results: Results) -> Message:
    """How far each layer moves the tokens, as bars, and how straight their paths are."""
    trajectory = results.datasets["trajectory"]
    lengths = np.array([relative_path_length(trajectory, layer) for layer in range(trajectory.sizes["layer"])])
    null = float(trajectory.straightness_null.mean())
    return path_summary(lengths, mean_straightness(results), null, typical_range(results, "movement", format_number))


def source_movement(results: Results) -> Message:
    """The same for the tokens of the source of an encoder-decoder."""
    trajectory = results.datasets["trajectory"]
    straightness, null = float(trajectory.source_straightness), float(trajectory.source_straightness_null)
    return path_summary(trajectory.source_path.values, straightness, null)


def path_summary(lengths: np.ndarray, straightness: float, null: float, typical: Message | str = "") -> Message:
    """The path length in every layer as bars, and the straightness with its null."""
    most = int(lengths.argmax())
    return Message(
        "embed {bars} L{last}, most in L{most} ({length} times the norm of a token); straightness {straightness} "
        "(random directions {null}{typical})",
        bars=Verbatim(bars(lengths)),
        last=len(lengths) - 1,
        most=most,
        length=format_number(float(lengths[most])),
        straightness=format_number(straightness),
        null=format_number(null),
        typical=typical,
    )


def mean_straightness(results: Results) -> float:
    return float(results.datasets["trajectory"].straightness.mean())


def bars(values: np.ndarray) -> str:
    """One bar per value, relative to the largest.

    >>> bars(np.array([0.0, 0.5, 1.0]))
    '▁▅█'
    """
    shares = values / max(float(values.max()), 1e-30)
    return "".join(BARS[round(share * (len(BARS) - 1))] for share in shares)


STORY = (
    StoryLine(
        5,
        "source_path",
        Message("Source path"),
        ("trajectory",),
        "rheoscope analyse trajectory",
        source_movement,
        required_fields=("source_path",),
        reads_source=True,
    ),
    StoryLine(
        6,
        "movement",
        Message("Movement"),
        ("trajectory",),
        "rheoscope analyse trajectory",
        movement,
        picture=StoryPicture(1, patch_map.panels),
        number=mean_straightness,
    ),
)
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


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How straight the paths are."""
    return Message(
        "The path of the median token has a straightness of {value}; updates in random directions would give {null}.",
        value=format_number(median_of(dataset.straightness)),
        null=format_number(median_of(dataset.straightness_null)),
    )


WORDS = Words(
    sentence=main_sentence,
    story=STORY,
    findings=(straightness,),
    layer_columns=LAYER_COLUMNS,
    token_tips=token_tips,
    next_step=Message("how far every token moves, and how straight"),
)

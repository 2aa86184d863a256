"""Models in whose points an effect of a chosen size is planted, one plant per claim of the card.

`PLANTS[claim](strength, seed)` has new weights, new texts and new points for every seed. The mean effect grows with the strength, and
is 0 at 0. `relatedness.kept` plants what is lost from the embedding to the last layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import tiny_cards
import torch
from jaxtyping import Float
from tiny_cards import random_model, random_texts
from torch import Generator, Tensor

import rheoscope as rs
from rheoscope.flow.relatedness.analysis import CARRIERS, default_word_list
from rheoscope.flow.senses.analysis import default_words
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.traces import Traces

N_TEXTS, N_TOKENS = 96, 24
WIDTH, DEPTH, HEADS, VOCABULARY = 32, 2, 2, 512
ERASURE_NOISE = 2.0
"""The length of what later layers write, divided by that of what heads wrote."""
IDENTITY_NOISE = 4.0
"""The length of a random displacement, divided by that of a point."""
RANK_SPREAD = 0.8
"""The standard deviation over texts of the planted loss of directions."""
KEPT_PLACE, NEW_PLACE = 0.8, 0.6
"""The shares of a word's own place that a layer keeps and adds. Their squares have the sum 1."""


class PlantedSample(NamedTuple):
    """A model with a planted effect, and its texts in batches."""

    model: Any
    batches: tuple[Traces, ...]


Plant = Callable[[float, int], PlantedSample]


def random_sample(seed: int, depth: int = DEPTH) -> tuple[Any, Traces, Generator]:
    """A model at random weights, its random texts, and the generator of what is planted.

    The unembedding is not tied, so the model predicts hardly any token.
    """
    config = Config(vocabulary=VOCABULARY, width=WIDTH, depth=depth, heads=HEADS, context=64, tied=False)
    model = rs.load(Transformer(config), untrained=True, seed=seed)
    with torch.no_grad():
        traces = model.trace(random_texts(N_TEXTS, N_TOKENS, seed, (0, VOCABULARY)))
    return model, traces, Generator().manual_seed(seed)


def noise_like(x: Float[Tensor, "*b d"], generator: Generator) -> Float[Tensor, "*b d"]:
    """Random directions with the root mean square length of the points."""
    return torch.randn(x.shape, generator=generator) * x.square().mean().sqrt()


def with_points(traces: Traces, points: Mapping[int, Float[Tensor, "b n d"]]) -> Traces:
    """The traces with other points at some steps."""
    changed = traces.points.clone()
    for step, values in points.items():
        changed[:, step] = values
    return replace(traces, points=changed)


@torch.no_grad()
def plant_erasure(strength: float, seed: int) -> PlantedSample:
    """What follows the heads of a single layer takes back a share of what they wrote, and adds noise."""
    model, traces, generator = random_sample(seed, depth=1)
    updates = traces.factored_displacements(0).at_least_float32()
    written = updates.total() - updates.constants
    after = at_least_float32(traces.points_at(traces.mid_steps[0]))
    end = after - strength * written + ERASURE_NOISE * noise_like(written, generator)
    return PlantedSample(model, (with_points(traces, {-1: end}),))


@torch.no_grad()
def plant_identity(strength: float, seed: int) -> PlantedSample:
    """Displacements are noise plus a multiple of each token's own point, which permuted displacements lack."""
    model, traces, generator = random_sample(seed)
    x = traces.points_at(0)
    points = {}
    for step in (*traces.input_steps[1:], -1):
        x = (1 + strength) * x + IDENTITY_NOISE * noise_like(x, generator)
        points[step] = x
    return PlantedSample(model, (with_points(traces, points),))


@torch.no_grad()
def plant_next_token(strength: float, seed: int) -> PlantedSample:
    """The last layer is noise plus a multiple of the embedding of the next token."""
    model, traces, generator = random_sample(seed)
    x = traces.points_at(0)
    following = torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], 1)
    return PlantedSample(model, (with_points(traces, {-1: strength * following + noise_like(x, generator)}),))


@torch.no_grad()
def plant_directions(strength: float, seed: int) -> PlantedSample:
    """Coordinates shrink at different rates: at the last layer, or at the embedding in texts with a negative rate.

    Every text has its own rate, with the mean `strength`.
    """
    model, traces, generator = random_sample(seed)
    rates = strength + RANK_SPREAD * torch.randn(len(traces), 1, 1, generator=generator)
    exponents = torch.linspace(0, 1, WIDTH)
    points = {
        0: traces.points_at(0) * (-(-rates).clamp(min=0) * exponents).exp(),
        -1: traces.points_at(-1) * (-rates.clamp(min=0) * exponents).exp(),
    }
    return PlantedSample(model, (with_points(traces, points),))


# Words


@dataclass(frozen=True, eq=False)
class PlantedWords:
    """A model in which the last token of some sentences has other points."""

    model: Any
    points: Mapping[str, Float[Tensor, "p d"]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def trace(self, texts: list[str]) -> Traces:
        """The traces of some of these sentences."""
        traces = self.model.trace(texts)
        changed = traces.points.clone()
        steps = [*traces.input_steps, len(traces.steps) - 1]
        for row, (text, length) in enumerate(zip(texts, traces.lengths.tolist(), strict=True)):
            changed[row, steps, length - 1] = self.points[text]
        return replace(traces, points=changed)


def words_sample(seed: int, points: Mapping[str, Float[Tensor, "p d"]]) -> PlantedSample:
    """The model of these sentences. Claims about words do not read texts."""
    model = random_model("default", seed)
    return PlantedSample(PlantedWords(model, points), (model.trace(random_texts(4, 4, seed)),))


def plant_senses(strength: float, seed: int) -> PlantedSample:
    """Every occurrence of a word is noise plus a multiple of the place of its sense."""
    generator = Generator().manual_seed(seed)
    points = {}
    for by_sense in default_words().values():
        for sentences in by_sense.values():
            place = word_points(generator)
            points |= {str(text): strength * place + word_points(generator) for text in sentences}
    return words_sample(seed, points)


def plant_relatedness(strength: float, seed: int) -> PlantedSample:
    """Every word is noise plus a multiple of the place of its group, at the embedding and at the last layer."""
    return related_words(strength, strength, seed)


def plant_lost_relatedness(strength: float, seed: int) -> PlantedSample:
    """At the embedding a word has a share of the place of its group that the last layer lacks. Negative values are a loss."""
    return related_words(-strength, 0.0, seed)


def related_words(embedding: float, end: float, seed: int) -> PlantedSample:
    words, generator = default_word_list(), Generator().manual_seed(seed)
    shares = torch.linspace(embedding, end, tiny_cards.DEPTH + 1)[:, None]
    places = [word_points(generator)[:1] for _ in words.group_names]
    points = {}
    for name, group in zip(words.words, words.group_index.tolist(), strict=True):
        first, *others = word_points(generator)
        own = torch.stack([first, *(KEPT_PLACE * first + NEW_PLACE * other for other in others)])
        points |= {f"{carrier} {name}": shares * places[group] + own for carrier in CARRIERS}
    return words_sample(seed, points)


def word_points(generator: Generator) -> Float[Tensor, "p d"]:
    """A random point at the embedding and after every layer."""
    return torch.randn(tiny_cards.DEPTH + 1, tiny_cards.WIDTH, generator=generator)


PLANTS: dict[str, Plant] = {
    "erasure": plant_erasure,
    "identity": plant_identity,
    "next_token": plant_next_token,
    "directions": plant_directions,
    "senses": plant_senses,
    "relatedness": plant_relatedness,
    "relatedness.kept": plant_lost_relatedness,
}
STRENGTH_RANGES: dict[str, tuple[float, float]] = {
    "erasure": (0.0, 0.2),
    "identity": (0.0, 0.8),
    "next_token": (0.0, 0.3),
    "directions": (0.0, 2.5),
    "senses": (0.0, 0.8),
    "relatedness": (0.0, 0.6),
    "relatedness.kept": (-0.6, 0.0),
}
"""The strengths between which those of no effect and of twice the smallest effect lie."""

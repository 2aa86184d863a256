"""One generated token: its path, what every depth predicted in its place, and what wrote its logit."""

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from rheoscope.flow.generation.row_attribution import Pair


class LensWord(NamedTuple):
    """The most likely next token at a step of the path (logit lens), and its probability there."""

    step: str
    id: int
    text: str
    probability: float


class Source(NamedTuple):
    """A token that heads read, and the sum of what all heads carry from it. `is_cross`: it belongs to the source text of a pair."""

    position: int
    text: str
    value: float
    is_cross: bool


class Writer(NamedTuple):
    """A component and its contribution to the logit."""

    name: str
    value: float


@dataclass(frozen=True, eq=False)
class GeneratedToken:
    """A token of the continuation.

    `path` (P, d) are the points of the token before it, at `position`: the path that ends in this prediction. `lens` are the
    words of the logit lens along it. `logit_above_mean` is a sum over components: heads carry `by_prompt_token` and `from_answer` of it.
    `sources`, `heads` and `pairs` list its largest terms by source token, by head, and by both.
    """

    index: int
    id: int
    text: str
    position: int
    probability: float
    path: Float[Tensor, "p d"]
    lens: tuple[LensWord, ...]
    logit_above_mean: float
    by_prompt_token: Float[Tensor, " prompt"]
    from_answer: float
    sources: tuple[Source, ...]
    heads: tuple[Writer, ...]
    pairs: tuple[Pair, ...]

    @property
    def from_prompt(self) -> float:
        """What all heads carry from the whole prompt to the logit."""
        return float(self.by_prompt_token.sum())

    @property
    def decided_at(self) -> str:
        """The first listed step from which on the lens predicts this token; empty if the token was not the most likely one."""
        decided = ""
        for prediction in reversed(self.lens):
            if prediction.id != self.id:
                break
            decided = prediction.step
        return decided

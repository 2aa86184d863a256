"""A claim about a model, declared by the analysis that measures it in the file `claims.py` of its folder."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.traces import Traces

Result = TypeVar("Result")
RandomModels = Literal["rotated", "edited", "untrained"]


@dataclass(frozen=True, eq=False)
class ClaimSample:
    """What a claim is measured on: a model, its texts in batches, and the number and seed of null draws.

    Draw r is the same random model for all texts: it depends on the seed and r only. `reader` returns the model that reads some of
    the texts, by their indices, where it depends on them: a decoder reads the sources of its targets.
    """

    model: Model
    batches: tuple[Traces, ...]
    draws: int
    seed: int = 0
    progress: Callable[[int, int], None] | None = None
    reader: Callable[[Sequence[int]], Model] | None = None

    def model_for(self, texts: Sequence[int]) -> Model:
        """The model that reads these texts, by their indices on the card."""
        return self.model if self.reader is None else self.reader(texts)

    def over_batches(self, measure: "Callable[[Traces], Measured]") -> "Measured":
        """The measurements of all batches, one after the other. A text that is refused, such as a short one, has no value."""
        results: list[Measured | RheoscopeError] = []
        for n_done, traces in enumerate(self.batches, 1):
            results += measure_or_refuse(measure, traces)
            if self.progress is not None:
                self.progress(n_done, len(self.batches))
        return Measured.concatenate(results)


def measure_or_refuse(measure: Callable[[Traces], Result], traces: Traces) -> list[Result | RheoscopeError]:
    """The result of a batch. If it is refused, those of its texts one by one, with the error of each refused text."""
    try:
        return [measure(traces)]
    except RheoscopeError as error:
        if len(traces) == 1:
            return [error.with_traceback(None)]  # its frames hold the model and its tensors
    return [result for text in range(len(traces)) for result in measure_or_refuse(measure, traces[text : text + 1])]


@dataclass(frozen=True, eq=False)
class Measured:
    """A statistic of every text, with what it is compared with. NaN marks a text without a value.

    `draws` are the values of random models that all texts share; the effect is the difference from their mean. `reference` is
    the mean over null draws of each text by itself. Without either, the effect is the observed value.
    """

    observed: Float[Tensor, " text"]
    reference: Float[Tensor, " text"] | None = None
    draws: Float[Tensor, "draw text"] | None = None

    @property
    def effects(self) -> Float[Tensor, " text"]:
        """e_t = observed − reference."""
        if self.draws is not None:
            return self.observed - self.draws.mean(0)
        return self.observed if self.reference is None else self.observed - self.reference

    @property
    def draw_means(self) -> Float[Tensor, " draw"] | None:
        """The mean over texts of every random model, over the texts that have a value."""
        return None if self.draws is None else self.draws[:, self.effects.isfinite()].mean(-1)

    def cpu(self) -> "Measured":
        """The same numbers on the CPU."""
        return Measured(*(None if x is None else x.cpu() for x in (self.observed, self.reference, self.draws)))  # type: ignore[arg-type]

    def without_value(self) -> "Measured":
        """One text without a value, to stand beside these measurements."""
        return Measured(
            *(
                None if x is None else torch.full_like(x[..., :1], torch.nan)
                for x in (self.observed, self.reference, self.draws)
            )  # type: ignore[arg-type]
        )

    @staticmethod
    def concatenate(batches: "Sequence[Measured | RheoscopeError]") -> "Measured":
        """The measurements of several batches as one. A refused text has no value. Raises if all texts are refused.

        >>> parts = [Measured(torch.ones(2)), Measured(torch.zeros(1))]
        >>> Measured.concatenate(parts).observed.tolist()
        [1.0, 1.0, 0.0]
        """
        measured = [batch for batch in batches if isinstance(batch, Measured)]
        if not measured:
            raise next(batch for batch in batches if isinstance(batch, RheoscopeError))
        first = measured[0]
        parts = [batch if isinstance(batch, Measured) else first.without_value() for batch in batches]
        return Measured(
            torch.cat([part.observed for part in parts]),
            None if first.reference is None else torch.cat([_required(part.reference) for part in parts]),
            None if first.draws is None else torch.cat([_required(part.draws) for part in parts], 1),
        )


def _required(x: Tensor | None) -> Tensor:
    assert x is not None, "all batches of a claim have the same fields"
    return x


@dataclass(frozen=True)
class ClaimPart:
    """One interval of a claim: its statistic in words, and the smallest effect of interest δ.

    `allows_loss` makes it a claim of non-inferiority: the effect is not below −δ. `is_skewed` declares that the effects of texts
    have a long tail by their nature, such as costs, so that their interval needs the bootstrap-t. `bounds` are the smallest and the
    largest possible effect: −1 and 1 for a difference of shares, −2 and 2 for one of correlations.
    """

    name: str
    statistic: str
    smallest_effect: float
    allows_loss: bool = False
    is_skewed: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)


def no_notes(numbers: Mapping[str, float]) -> tuple[Message, ...]:
    """No sentences, for a claim whose row says everything."""
    return ()


@dataclass(frozen=True, eq=False)
class Claim:
    """A claim about a model, which a card answers over many texts.

    `statement` is what *yes* means. `parts` have one interval each; a claim in two parts needs both. `reason` says why the
    smallest effect of interest has its size, `null` what the effect is compared with. `random_models` are the draws that bound
    what no training reaches: "rotated" or "edited" operators of the same model, which `measure` draws, or "untrained" models,
    which the card measures in the same way. `unit` is what varies between effects: texts, words or groups of words, or the
    weights alone. `order` is the place on the card, and `document` the seed document that makes the claim. `word_file` is a
    file that `measure` reads besides the texts. `needs_words` marks a claim about words or predicted tokens, which models of images
    and sounds do not have. `facts` returns numbers of the model that qualify the answer. They have no
    interval, and the card stores them. `notes` turns them, and the mean statistic of every part, into sentences for the row.
    """

    order: int
    name: str
    statement: str
    parts: tuple[ClaimPart, ...]
    reason: str
    null: str
    random_models: RandomModels
    measure: "Callable[[ClaimSample], Mapping[str, Measured]]"
    document: str
    unit: str = Message("texts")
    word_file: Path | None = None
    needs_words: bool = False
    facts: "Callable[[ClaimSample], Mapping[str, float]] | None" = None
    notes: "Callable[[Mapping[str, float]], tuple[Message, ...]]" = no_notes

"""What the cards of an atlas have in common, where they disagree, and what goes with it. No sentence rests on a single model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, Verbatim, join
from rheoscope.picture.blocks import Lines
from rheoscope.report.atlas_sizes import SizeTrend
from rheoscope.report.atlas_tables import CloudTraits
from rheoscope.report.card_blocks import claims_of
from rheoscope.report.forest_plot import ANSWERS, signed_number
from rheoscope.space.claim import Claim
from rheoscope.statistics.claim_answers import UNCLEAR

if TYPE_CHECKING:
    import xarray

MIN_MODELS = 2
"""The smallest number of models behind a sentence of the atlas. Both clouds of an encoder–decoder are one model."""
CLEAR_P = 0.05


@dataclass(frozen=True)
class CloudAnswer:
    """The answer of one cloud to a claim. `is_within_random`: it is unclear because random models reach as far."""

    cloud: str
    traits: CloudTraits
    answer: str
    effect: float
    is_within_random: bool


@dataclass(frozen=True, eq=False)
class ClaimAnswers:
    """The answers of all clouds to one claim."""

    claim: Claim
    answers: tuple[CloudAnswer, ...]

    def of(self, is_included: Callable[[CloudAnswer], bool]) -> "ClaimAnswers":
        """The answers of some clouds."""
        return ClaimAnswers(self.claim, tuple(filter(is_included, self.answers)))

    def with_answer(self, answer: str) -> "ClaimAnswers":
        """The clouds with this answer."""
        return self.of(lambda item: item.answer == answer)

    def with_trait(self, trait: str, value: bool) -> "ClaimAnswers":
        """The clouds whose trait of this name has this value."""
        return self.of(lambda item: getattr(item.traits, trait) == value)

    @property
    def n_models(self) -> int:
        return len({item.traits.model for item in self.answers})

    @property
    def shared_answer(self) -> str | None:
        """The clear answer of all clouds, if they have the same and are of several models."""
        answers = {item.answer for item in self.answers}
        is_shared = len(answers) == 1 and UNCLEAR not in answers and self.n_models >= MIN_MODELS
        return answers.pop() if is_shared else None

    @property
    def range(self) -> Message:
        """The smallest and the largest effect."""
        effects = [item.effect for item in self.answers]
        if len(effects) == 1:
            return Message("effect {effect}", effect=signed_number(effects[0]))
        return Message("effects {low} to {high}", low=signed_number(min(effects)), high=signed_number(max(effects)))


def claim_answers(result: "xarray.Dataset", traits: Mapping[str, CloudTraits]) -> list[ClaimAnswers]:
    """The answers of all clouds of an atlas, claim by claim."""
    return [
        ClaimAnswers(
            claim,
            tuple(
                CloudAnswer(
                    str(row.model.values),
                    traits[str(row.model.values)],
                    str(row.answer.values),
                    float(row.estimate),
                    is_within_random(row),
                )
                for row in (result.sel(claim=claim.name, model=model) for model in result.model)
                if str(row.answer.values)
            ),
        )
        for claim in claims_of(result)
    ]


def is_within_random(row: "xarray.Dataset") -> bool:
    """Whether an answer is unclear although the interval is clear of the smallest effect: random models reach as far."""
    is_beyond = abs(float(row.estimate)) > float(row.smallest_effect) and (
        float(row.low) > float(row.smallest_effect) or float(row.high) < -float(row.smallest_effect)
    )
    return str(row.answer.values) == UNCLEAR and is_beyond


def summary_blocks(
    result: "xarray.Dataset", traits: Mapping[str, CloudTraits], trends: Sequence[SizeTrend]
) -> list[Lines]:
    """What holds for all models, for causal or bidirectional ones and with size, and where models disagree."""
    rows = claim_answers(result, traits)
    compared = [row for row in rows if row.n_models >= MIN_MODELS]
    groups = {Message("causal"): True, Message("bidirectional"): False}
    blocks = [
        Lines(Message("What holds for all models"), [shared_line(row) for row in compared if row.shared_answer]),
        *(
            Lines(Message("What holds for all {group} models", group=name), group_lines(compared, is_causal))
            for name, is_causal in groups.items()
        ),
        Lines(Message("What goes with size"), size_lines(trends)),
        Lines(
            Message("Where models disagree or stay unclear"),
            [disagreement_line(row) for row in compared if not row.shared_answer],
        ),
        Lines(
            Message("Measured on fewer than two models, so the atlas says nothing"),
            [row.claim.statement for row in rows if row.n_models < MIN_MODELS],
        ),
    ]
    return [block for block in blocks if block.lines]


def shared_line(row: ClaimAnswers) -> Message:
    """The answer of all clouds, their number, and whether all of them are causal."""
    values = {"claim": row.claim.statement, "answer": ANSWERS[row.shared_answer or ""], "range": row.range}
    n, kinds = len(row.answers), {item.traits.is_causal for item in row.answers}
    if kinds == {True}:
        return Message("{claim}: {answer} in all {n}, which are causal ({range})", n=n, **values)
    if kinds == {False}:
        return Message("{claim}: {answer} in all {n}, which are bidirectional ({range})", n=n, **values)
    return Message("{claim}: {answer} in all {n} ({range})", n=n, **values)


def group_lines(rows: Sequence[ClaimAnswers], is_causal: bool) -> list[Message]:
    """The claims on which all causal or all bidirectional clouds agree and the others do not."""
    lines = []
    for row in rows:
        group = row.with_trait("is_causal", is_causal)
        others = row.with_trait("is_causal", not is_causal)
        if group.shared_answer and not row.shared_answer:
            lines.append(
                Message(
                    "{claim}: {answer} in all {n} ({range}); the others: {counts}",
                    claim=row.claim.statement,
                    answer=ANSWERS[group.shared_answer],
                    n=len(group.answers),
                    range=group.range,
                    counts=answer_counts(others),
                )
            )
    return lines


def size_lines(trends: Sequence[SizeTrend]) -> list[Message]:
    """The claims whose effects rise or fall with the number of parameters."""
    clear = [trend for trend in trends if trend.p_value < CLEAR_P]
    if trends and not clear:
        largest = max(trends, key=lambda trend: abs(trend.rho))
        return [
            Message(
                "No effect rises or falls reliably with the number of parameters: {n} claims, the largest correlation {rho} "
                "over {models} models, adjusted p {p}",
                n=len(trends),
                rho=f"{largest.rho:+.2f}",
                models=largest.n_models,
                p=f"{largest.p_value:.2f}",
            )
        ]
    return [
        Message(
            "{claim}: the effect and the number of parameters have rank correlation {rho} over {n} models (adjusted p {p})",
            claim=trend.claim.statement,
            rho=f"{trend.rho:+.2f}",
            n=trend.n_models,
            p=f"{trend.p_value:.3f}",
        )
        for trend in clear
    ]


def disagreement_line(row: ClaimAnswers) -> Message:
    """How many clouds have each answer, which, and what goes with the answers."""
    sentences = [Message("{claim}: {counts}", claim=row.claim.statement, counts=answer_counts(row))]
    decided = row.of(lambda item: item.answer != UNCLEAR)
    if len({item.answer for item in decided.answers}) > 1:
        sentences.append(explanation(decided))
    unclear = row.with_answer(UNCLEAR)
    if random := [item.cloud for item in unclear.answers if item.is_within_random]:
        sentences.append(Message("Random models reach as far in {names}", names=Verbatim(", ".join(random))))
    if wide := [item.cloud for item in unclear.answers if not item.is_within_random]:
        sentences.append(
            Message("The interval contains the smallest effect in {names}", names=Verbatim(", ".join(wide)))
        )
    return join(". ", sentences)


def answer_counts(row: ClaimAnswers) -> Message:
    """How many clouds have each answer and between which effects, the most frequent first."""
    parts = []
    for answer in sorted({item.answer for item in row.answers}, key=lambda answer: (-_count(row, answer), answer)):
        same = row.with_answer(answer)
        parts.append(Message("{answer} {n} ({range})", answer=ANSWERS[answer], n=len(same.answers), range=same.range))
    return join(", ", parts) if parts else Message("none measured")


def _count(row: ClaimAnswers, answer: str) -> int:
    return sum(item.answer == answer for item in row.answers)


TRAITS = (
    ("is_causal", Message("the direction of attention"), Message("causal"), Message("bidirectional")),
    ("is_post_norm", Message("the place of norms"), Message("norms after"), Message("norms before")),
)
"""Properties that may go with an answer: the trait, its name, and the names of both sides."""


def explanation(decided: ClaimAnswers) -> Message:
    """The properties that separate clear answers, with several models on each side, or that none does."""
    if min(decided.with_answer(item.answer).n_models for item in decided.answers) < MIN_MODELS:
        return Message("Too few models have each clear answer to say what goes with it")
    splits = [split for split in (*(trait_split(decided, *trait) for trait in TRAITS), size_split(decided)) if split]
    if not splits:
        return Message("Neither the direction of attention, the place of norms nor size separates the clear answers")
    if len(splits) > 1:
        splits.append(Message("These models do not separate the properties"))
    return join(". ", splits)


def trait_split(
    decided: ClaimAnswers, trait: str, name: Message, with_trait: Message, without_trait: Message
) -> Message | None:
    """Whether all models with a trait have one answer and all without it another, with several models on each side."""
    sides = {label: decided.with_trait(trait, value) for label, value in ((with_trait, True), (without_trait, False))}
    if not all(side.shared_answer for side in sides.values()):
        return None
    parts = [
        Message("{side} {answer} ({n} models)", side=label, answer=ANSWERS[side.shared_answer or ""], n=side.n_models)
        for label, side in sides.items()
    ]
    return Message("The answer goes with {trait}: {sides}", trait=name, sides=join(", ", parts))


def size_split(decided: ClaimAnswers) -> Message | None:
    """Whether all models with one of two clear answers are smaller than all with the other, with several models on each side."""
    answers = sorted({item.answer for item in decided.answers})
    if len(answers) != MIN_MODELS:
        return None
    sides = [decided.with_answer(answer) for answer in answers]
    if min(side.n_models for side in sides) < MIN_MODELS:
        return None
    small, large = sorted(sides, key=lambda side: np.mean([item.traits.parameters for item in side.answers]))
    limit, start = (
        max(item.traits.parameters for item in small.answers),
        min(item.traits.parameters for item in large.answers),
    )
    if limit >= start:
        return None
    return Message(
        "The answer goes with size: {small} up to {limit:.1f} million parameters ({n_small} models), {large} from {start:.1f} million "
        "on ({n_large} models)",
        small=ANSWERS[small.answers[0].answer],
        limit=limit / 1e6,
        n_small=small.n_models,
        large=ANSWERS[large.answers[0].answer],
        start=start / 1e6,
        n_large=large.n_models,
    )

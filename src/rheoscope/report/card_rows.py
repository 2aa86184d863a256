"""A card on a page: the forest plot with a row for every claim, which opens to its words, its numbers and its texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.messages.message import Message, Verbatim, join
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Block, Lines, OpeningRow, OpeningRows, RowDetail
from rheoscope.picture.picture import Panel
from rheoscope.picture.token_labels import printable
from rheoscope.report.card_blocks import (
    TEXTS,
    answer_text,
    card_heading,
    claims_of,
    interval_text,
    intervals_of,
    number_table,
    pair_lines,
    reading_lines,
    skipped_lines,
    summary_line,
)
from rheoscope.report.card_clouds import side_of
from rheoscope.report.card_media import IMAGES, SOUNDS
from rheoscope.report.card_texts import texts_of_card
from rheoscope.report.forest_plot import LEGEND, MAX_DRAWN, effects_panel, scale_panel, signed_number, strip_panel
from rheoscope.report.text_pairs import TextPair, is_pair
from rheoscope.running.pair_sides import TARGET
from rheoscope.space.claim import Claim, ClaimPart

if TYPE_CHECKING:
    import xarray

RANDOM_MODELS = {
    "rotated": Message("models with rotated heads"),
    "edited": Message("models with random edits"),
    "untrained": Message("untrained models"),
}
MAX_QUOTE_CHARS = 60


def card_blocks(card: "xarray.Dataset", texts: Sequence[Any] | None = None) -> list[Block]:
    """The card as a forest plot whose rows open, a table of all numbers, and how to read them.

    `texts` are the texts of the card. Without them, those of the package are named where the card is about them.
    """
    return [
        opening_rows(card, texts_of_card(card) if texts is None else texts),
        number_table(card),
        Lines(Message("How to read this card"), reading_lines(card)),
    ]


def opening_rows(card: "xarray.Dataset", texts: Sequence[Any] | None) -> OpeningRows:
    """One row per claim: its statement, its strip, its answer and its estimate. It opens to every interval of the claim."""
    caption = Message(
        "Each row is a claim; it opens. Effects are in units of the smallest effect of interest. Those beyond {edge:g} are drawn "
        "there.",
        edge=MAX_DRAWN,
    )
    notes = [summary_line(card), *pair_lines(card), caption, *skipped_lines(card)]
    claims, intervals = card.drop_dims("interval"), card.drop_dims("claim")
    details: dict[str, list[RowDetail]] = {}
    for claim, part, name in intervals_of(card):
        details.setdefault(claim.name, []).append(part_detail(intervals.sel(interval=name), claim, part, texts))
    rows = [claim_row(claims.sel(claim=claim.name), claim, details[claim.name]) for claim in claims_of(card)]
    return OpeningRows(card_heading(card), join(" ", notes), scale_panel(), LEGEND, rows)


def claim_row(row: "xarray.Dataset", claim: Claim, details: Sequence[RowDetail]) -> OpeningRow:
    """The row of one claim."""
    answer = answer_text(str(row.answer.values), float(row.texts_needed), claim.unit)
    title = Message("{claim}: {answer}", claim=claim.statement, answer=answer)
    return OpeningRow(claim.statement, answer, interval_text(row), strip_panel(row, title), details)


def part_detail(row: "xarray.Dataset", claim: Claim, part: ClaimPart, texts: Sequence[Any] | None) -> RowDetail:
    """The words, numbers and picture of one interval."""
    return RowDetail(part_facts(row, claim, part, texts), part_panel(row, claim, part))


def part_facts(row: "xarray.Dataset", claim: Claim, part: ClaimPart, texts: Sequence[Any] | None) -> dict[str, str]:
    """What was measured, what it is compared with, why the smallest effect has its size, and the most extreme texts."""
    n_units, observed = int(row.part_n_units), signed_number(float(row.part_observed))
    statistic = Message("{statistic}: {observed}", statistic=part.statistic, observed=observed)
    if n_units > 1:
        statistic = Message("{line} on average over {n} {unit}", line=statistic, n=n_units, unit=claim.unit)
    smallest = Message("δ = {delta}: {reason}", delta=format_number(part.smallest_effect), reason=claim.reason)
    facts: dict[str, str] = {
        Message("Statistic"): statistic,
        Message("Smallest effect"): smallest,
        Message("Null"): claim.null,
        Message("Random models"): random_text(row, claim),
        Message("Untrained control"): untrained_text(row),
    }
    return facts | extreme_texts(row, claim, texts)


def random_effects(row: "xarray.Dataset", claim: Claim) -> np.ndarray:
    """The mean effect of every random model. Rotated and edited models are the reference, so that their mean is 0."""
    values = row.random_effect.values[np.isfinite(row.random_effect.values)]
    return values if claim.random_models == "untrained" else values - values.mean()


def random_text(row: "xarray.Dataset", claim: Claim) -> Message:
    """The random models of an interval: their kind, their number, their range, and the limit that the estimate must pass."""
    values, mean, limit = random_effects(row, claim), float(row.part_random_mean), float(row.part_threshold)
    return Message(
        "{n} {kind}: effects from {low} to {high}; limits {left} and {right}",
        n=len(values),
        kind=RANDOM_MODELS[claim.random_models],
        low=signed_number(float(values.min(initial=np.inf))),
        high=signed_number(float(values.max(initial=-np.inf))),
        left=signed_number(mean - limit),
        right=signed_number(mean + limit),
    )


def untrained_text(row: "xarray.Dataset") -> Message:
    """The effect in untrained models of the same architecture."""
    values = row.untrained_effect.values
    return Message(
        "{mean} on average over {n} untrained models, from {low} to {high}",
        mean=signed_number(float(values.mean())),
        n=len(values),
        low=signed_number(float(values.min())),
        high=signed_number(float(values.max())),
    )


def extreme_texts(row: "xarray.Dataset", claim: Claim, texts: Sequence[Any] | None) -> dict[str, str]:
    """The texts with the largest and the smallest effect. Words and groups of words have their range only."""
    effects = row.effect.values
    if np.isfinite(effects).sum() < 2:
        return {}
    weakest, strongest = int(np.nanargmin(effects)), int(np.nanargmax(effects))
    if claim.unit not in (TEXTS, IMAGES, SOUNDS):
        low, high = signed_number(effects[weakest]), signed_number(effects[strongest])
        return {
            Message("Range"): Message("effects of {unit} from {low} to {high}", unit=claim.unit, low=low, high=high)
        }
    titles = (
        (Message("Strongest text"), Message("Weakest text"))
        if claim.unit == TEXTS
        else (Message("Strongest input"), Message("Weakest input"))
    )
    lines = (text_line(effects, index, texts, side_of(claim)) for index in (strongest, weakest))
    return dict(zip(titles, lines, strict=True))


def text_line(effects: np.ndarray, index: int, texts: Sequence[Any] | None, side: str) -> Message:
    """The effect of one text, with its first words where they are known."""
    effect, text = signed_number(float(effects[index])), None if texts is None else text_on_side(texts[index], side)
    if isinstance(text, Path):
        return Message("{effect}, {file}", effect=effect, file=Verbatim(printable(text.name)))
    if not isinstance(text, str):
        return Message("{effect}, text {number}", effect=effect, number=index)
    words = printable(" ".join(text.split()))
    words = words if len(words) <= MAX_QUOTE_CHARS else f"{words[: MAX_QUOTE_CHARS - 1].rstrip()}…"
    return Message("{effect}, text {number}: “{words}”", effect=effect, number=index, words=Verbatim(words))


def text_on_side(text: Any, side: str) -> Any:
    """The source or the target of a pair; any other text belongs to a model of one text, or is a source without a target."""
    if is_pair(text):
        pair = text if isinstance(text, TextPair) else TextPair(*text)
        return pair.target if side == TARGET else pair.source
    return None if side == TARGET else text


def part_panel(row: "xarray.Dataset", claim: Claim, part: ClaimPart) -> Panel:
    """The picture of all effects of one interval."""
    title = Message("Effects of all {unit}", unit=claim.unit)
    if int(row.part_n_units) == 1:
        title = Message("The effect, from the weights alone")
    elif len(claim.parts) > 1:
        title = Message("Effects of all {unit}: {part}", unit=claim.unit, part=Verbatim(part.name.replace("_", " ")))
    return effects_panel(row, random_effects(row, claim), title, claim.unit)

"""A card for the terminal and for pages: one row per claim, one row per interval, and sentences about the whole."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from rheoscope.messages.message import Message, Verbatim, join
from rheoscope.picture.blocks import Cell, Table
from rheoscope.report.card_clouds import claims_by_name, interval_name
from rheoscope.report.card_facts import claim_notes
from rheoscope.report.card_media import media_unit
from rheoscope.report.card_strip import Strip
from rheoscope.report.forest_plot import ANSWERS, signed_number
from rheoscope.space.claim import Claim, ClaimPart
from rheoscope.statistics.claim_answers import NO, REVERSED, UNCLEAR, YES

if TYPE_CHECKING:
    import xarray

TEXTS = Message("texts")


def claims_of(card: "xarray.Dataset") -> list[Claim]:
    """The claims of a card, in its order. Claims about texts are about images or sounds where the model reads those."""
    by_name, unit = claims_by_name(), media_unit(card.attrs)
    claims = [by_name[str(name)] for name in card.claim.values]
    return claims if unit is None else [replace(x, unit=unit) if x.unit == TEXTS else x for x in claims]


def strip_of(row: "xarray.Dataset") -> Strip:
    """The strip of one claim or interval."""
    low, estimate, high, smallest, mean, limit = (
        float(row[name]) for name in ("low", "estimate", "high", "smallest_effect", "random_mean", "threshold")
    )
    return Strip(low, estimate, high, smallest, mean - limit, mean + limit)


def claim_table(card: "xarray.Dataset") -> Table:
    """One row per claim, for the terminal: its name, the answer, a strip, the numbers, and the statement with its notes."""
    header = [
        Cell(Message("name")),
        Cell(Message("answer"), Message("what follows from the interval, the smallest effect and random models alone")),
        Cell(
            Message("effect"),
            Message("┼ is 0, ┊ the smallest effect of interest, dots what random models reach, ├─●─┤ the interval"),
        ),
        Cell(Message("estimate"), Message("mean effect over texts, with the interval of this card")),
        Cell(Message("claim")),
    ]
    rows = []
    for claim in claims_of(card):
        row = card.sel(claim=claim.name)
        answer, strip = ANSWERS[str(row.answer.values)], strip_of(row).draw()
        notes = [*claim_notes(card, claim), *missing_notes(card, claim), *deciding_notes(row, claim.unit)]
        statement = join(". ", [claim.statement, *notes])
        rows.append(list(map(Cell, (Verbatim(claim.name), answer, strip, interval_text(row), statement))))
    return Table(card_heading(card), header, rows, frozenset({0, 1, 4}))  # a strip is never folded


def missing_notes(card: "xarray.Dataset", claim: Claim) -> list[Message]:
    """How many texts have a value, if some have none. A text may be too short for a claim."""
    n, total = int(card.n_units.sel(claim=claim.name)), int(card.attrs["n_texts"])
    if n == total or claim.unit != (media_unit(card.attrs) or TEXTS):
        return []
    return [Message("{n} of {total} {units} have a value", n=n, total=total, units=claim.unit)]


def deciding_notes(row: "xarray.Dataset", unit: str) -> list[Message]:
    """For an unclear claim, how many texts would decide it, or that none would: random models reach as far, or draws are few."""
    units_needed = float(row.texts_needed)
    if str(row.answer.values) != UNCLEAR:
        return []
    if not math.isfinite(units_needed):
        return [Message("More {units} cannot decide", units=unit)]
    return [Message("About {n:,} {units} would decide", n=int(units_needed), units=unit)]


def card_heading(card: "xarray.Dataset") -> Message:
    return Message(
        "The card of {model}: {n} claims over {inputs} {unit}",
        model=str(card.attrs.get("model")),
        n=card.sizes["claim"],
        inputs=int(card.attrs["n_texts"]),
        unit=media_unit(card.attrs) or TEXTS,
    )


def interval_text(row: "xarray.Dataset") -> Message:
    """The estimate and its interval."""
    return Message(
        "{estimate} ({low} to {high})",
        estimate=signed_number(float(row.estimate)),
        low=signed_number(float(row.low)),
        high=signed_number(float(row.high)),
    )


def number_table(card: "xarray.Dataset") -> Table:
    """One row per interval with all its numbers, for pages."""
    titles = {
        "part_answer": (Message("answer"), Message("what follows from this interval alone")),
        "part_estimate": (Message("estimate"), Message("mean effect over texts")),
        "part_low": (Message("low"), Message("lower end of the interval")),
        "part_high": (Message("high"), Message("upper end of the interval")),
        "part_observed": (Message("observed"), Message("mean of the statistic itself")),
        "part_smallest_effect": (Message("smallest"), Message("the smallest effect of interest")),
        "part_random_mean": (Message("random"), Message("mean effect of random models")),
        "part_threshold": (
            Message("limit"),
            Message("how far random models lie from their mean, anywhere on the card"),
        ),
        "part_untrained_mean": (
            Message("untrained"),
            Message("mean effect of untrained models of the same architecture"),
        ),
        "part_n_units": (Message("units"), Message("texts, words or groups behind the interval")),
    }
    header = [Cell(Message("claim")), *(Cell(title, definition) for title, definition in titles.values())]
    rows = []
    for claim, part, name in intervals_of(card):
        row = card.sel(interval=name)
        definition = Message(
            "{statistic}. Compared with {null}. {reason}.",
            statistic=part.statistic,
            null=claim.null,
            reason=claim.reason,
        )
        answer = Cell(ANSWERS[str(row.part_answer.values)])
        numbers = [Cell(signed_number(float(row[field]))) for field in list(titles)[1:-1]]
        statement = (
            claim.statement
            if len(claim.parts) == 1
            else Message("{claim} ({part})", claim=claim.statement, part=Verbatim(part.name.replace("_", " ")))
        )
        rows.append([Cell(statement, definition), answer, *numbers, Cell(str(int(row.part_n_units)))])
    return Table(card_heading(card), header, rows, frozenset({0, 1}))


def intervals_of(card: "xarray.Dataset") -> list[tuple[Claim, ClaimPart, str]]:
    """Every interval of a card: its claim, its part and its name."""
    names = {interval_name(claim, part): (claim, part) for claim in claims_of(card) for part in claim.parts}
    return [(*names[name], name) for name in map(str, card.interval.values)]


def answer_text(answer: str, units_needed: float, unit: str = TEXTS) -> Message:
    """The answer, and for an unclear one the number of texts, or other units, that would decide.

    >>> answer_text("unclear", 210.0), answer_text("unclear", float("nan")), answer_text("no", float("nan"))
    ('unclear (210 texts)', 'unclear (more texts cannot decide)', 'no')
    """
    if answer != UNCLEAR:
        return ANSWERS[answer]
    if math.isfinite(units_needed):
        return Message("unclear ({n:,} {units})", n=int(units_needed), units=unit)
    return Message("unclear (more {units} cannot decide)", units=unit)


def summary_line(card: "xarray.Dataset") -> Message:
    """How many claims have each answer."""
    counts = {answer: int((card.answer == answer).sum()) for answer in ANSWERS}
    return Message(
        "{total} claims: {yes} yes, {no} no, {reversed} reversed, {unclear} unclear.",
        total=card.sizes["claim"],
        yes=counts[YES],
        no=counts[NO],
        reversed=counts[REVERSED],
        unclear=counts[UNCLEAR],
    )


def pair_lines(card: "xarray.Dataset") -> list[Message]:
    """What the two sides of an encoder-decoder are, and which targets the model wrote itself. Empty for other models."""
    if "generated" not in card.attrs:
        return []
    n_generated, n_texts = int(card.attrs["generated"]), int(card.attrs["n_texts"])
    lines = [Message("Source: the encoder reads a source. Target: the decoder reads a target, with its source.")]
    if n_generated:
        lines.append(
            Message("Targets: the model's own greedy output for {n} of {total} sources.", n=n_generated, total=n_texts)
        )
    return lines


def skipped_lines(card: "xarray.Dataset") -> list[Message]:
    """One line per claim that this model cannot have, with the reason."""
    by_name = claims_by_name()
    prefix = "skipped "
    return [
        Message("{claim}: not measured, {reason}", claim=by_name[key.removeprefix(prefix)].statement, reason=reason)
        for key, reason in card.attrs.items()
        if str(key).startswith(prefix)
    ]


def reading_lines(card: "xarray.Dataset") -> list[str]:
    """How the answers follow, and what was compared."""
    return [
        Message(
            "yes: the interval lies above the smallest effect, and the estimate beyond random models; reversed: the same below"
        ),
        Message("no: the interval lies between minus and plus the smallest effect"),
        Message(
            "unclear: anything else, with the number of texts that would decide, if any number would. {n} intervals cover "
            "together with probability .95.",
            n=int(card.attrs["n_intervals"]),
        ),
        *pair_lines(card),
        *(note for claim in claims_of(card) for note in claim_notes(card, claim)),
        Message(
            "Random models: {draws} with rotated or edited operators, {untrained} untrained ones.",
            draws=int(card.attrs["draws"]),
            untrained=int(card.attrs["untrained"]),
        ),
    ]

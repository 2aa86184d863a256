"""The atlas: the cards of several models side by side."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, Verbatim, plural
from rheoscope.picture.blocks import Block, Cell, Drawing, Table
from rheoscope.picture.picture import Axis, Line, Panel, Picture, Shape
from rheoscope.report.card import card
from rheoscope.report.card_blocks import claims_of
from rheoscope.report.card_clouds import claims_by_name, side_of
from rheoscope.report.forest_plot import ANSWERS, COLOURS, interval_marks, signed_number
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.claim import Claim

if TYPE_CHECKING:
    import xarray

FIELDS = ("estimate", "low", "high", "smallest_effect", "random_mean", "threshold", "answer", "n_units")
NO_ANSWER = ""
"""The answer of a model that cannot have a claim."""


def atlas(cards: "Sequence[xarray.Dataset | RunnableModel]") -> "xarray.Dataset":
    """The cards of several models side by side.

    **Question** For which models does each claim hold, and how strongly?

    **Settings** `cards` are results of `rs.card`, or models, whose cards are computed over the passages of the package.

    **Returns** (model, claim): `estimate`, `low`, `high`, `smallest_effect`, `random_mean`, `threshold`, `answer` and `n_units`, as in
    `rs.card`. An encoder–decoder has the claims of both sides, `source.…` and `target.…`. A model that cannot have a claim has NaN
    and an empty answer there. Models with the same name get a number.

    **Laws** A row equals the card of its model.

    **See also** `rs.card`, for one model.

    >>> import rheoscope as rs
    >>> default = rs.card(rs.load())
    >>> rs.atlas([default, default]).model.values.tolist()
    ['the default model', 'the default model (2)']
    """
    import xarray as xr

    if not cards:
        raise RheoscopeError(
            Message("an atlas needs at least one card, got none"), Advice("rs.atlas([rs.card(model)])")
        )
    datasets = [item if isinstance(item, xr.Dataset) else card(item) for item in cards]
    measured = {str(name) for dataset in datasets for name in dataset.claim.values}
    sides = {side_of(claim) for name, claim in claims_by_name().items() if name in measured}
    claims = [name for name, claim in claims_by_name().items() if side_of(claim) in sides]
    rows = [dataset[list(FIELDS)].reindex(claim=claims) for dataset in datasets]
    rows = [row.assign(answer=row.answer.where(row.estimate.notnull(), NO_ANSWER).astype(str)) for row in rows]
    names = xr.Variable("model", unique_names([str(dataset.attrs.get("model")) for dataset in datasets]))
    return xr.concat(rows, names.to_index_variable(), combine_attrs="drop").assign_attrs({"analysis": "atlas"})


def unique_names(names: Sequence[str]) -> list[str]:
    """The same names, with a number after each one that occurred before.

    >>> unique_names(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    return [
        name if name not in names[:index] else f"{name} ({names[: index + 1].count(name)})"
        for index, name in enumerate(names)
    ]


def atlas_blocks(result: "xarray.Dataset") -> list[Block]:
    """A table of answers, and one forest plot with a panel per claim."""
    return [atlas_table(result), Drawing(atlas_picture(result))]


def atlas_table(result: "xarray.Dataset") -> Table:
    """One row per claim and one column per model: the answer and the estimate."""
    names = [str(name) for name in result.model.values]
    header = [Cell(Message("claim")), *(Cell(Verbatim(name)) for name in names)]
    rows = [
        [
            Cell(Verbatim(claim.name), claim.statement),
            *(_answer_cell(result.sel(claim=claim.name, model=name)) for name in names),
        ]
        for claim in claims_of(result)
    ]
    heading = plural("The card of {n} model, claim by claim", "The cards of {n} models, claim by claim", n=len(names))
    return Table(heading, header, rows, frozenset(range(len(header))))


def _answer_cell(row: "xarray.Dataset") -> Cell:
    answer = str(row.answer.values)
    if answer == NO_ANSWER:
        return Cell(Message("not measured"))
    return Cell(Message("{answer} {estimate}", answer=ANSWERS[answer], estimate=signed_number(float(row.estimate))))


def atlas_picture(result: "xarray.Dataset") -> Picture:
    """One forest plot per claim, with models as rows."""
    panels = tuple(
        _claim_panel(claim, result.sel(claim=claim.name), has_legend=not index)
        for index, claim in enumerate(claims_of(result))
    )
    caption = Message(
        "Each panel is a claim and each row a model. Effects are in units of the smallest effect of interest, which the dashed "
        "lines mark. Grey: what random models reach. The first panel has the legend."
    )
    return Picture(Message("The atlas"), caption, panels)


def answer_legend() -> list[Line]:
    """The colour of every answer, for the legend of a forest plot. Nothing is drawn."""
    return [Line(name, [], [], COLOURS[answer], "dots") for answer, name in ANSWERS.items()]


def _claim_panel(claim: Claim, rows: "xarray.Dataset", has_legend: bool) -> Panel:
    names, marks = [str(name) for name in rows.model.values], list[Line | Shape]()
    for index, name in enumerate(names):
        row, y = rows.sel(model=name), float(len(names) - 1 - index)
        answer = str(row.answer.values)
        if answer != NO_ANSWER:
            tip = Message("{model}: {answer}", model=Verbatim(name), answer=ANSWERS[answer])
            marks += interval_marks(row, y, tip)
    ends = [-0.6, len(names) - 0.4]
    limit = Message("smallest effect")
    tooltip = "" if has_legend else limit
    marks += [Line(limit, [side, side], ends, "null", "dashed", tooltip) for side in (-1.0, 1.0)]
    return Panel(
        claim.statement,
        claim.parts[-1].statistic,
        tuple([*answer_legend(), *marks] if has_legend else marks),
        Axis(Message("effect / smallest effect")),
        Axis("", tuple(Verbatim(name) for name in reversed(names))),
        height=max(0.6, 0.2 * len(names)),
    )

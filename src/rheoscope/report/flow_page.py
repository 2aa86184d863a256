"""A text in a model as one page: what was run, what was found, every layer, every picture, and where the numbers come from."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from rheoscope.report.answers import ANALYSES, WEIGHTS, Answers, answers
from rheoscope.report.findings import COVERS, Finding
from rheoscope.report.findings import findings as found_in
from rheoscope.report.layers import NEXT, columns, prediction, said
from rheoscope.report.page import Cell, Page
from rheoscope.report.picture import Picture, number
from rheoscope.report.tokens import shown
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.trace import Trace

OF_COVERS = ("agreement", "torn", "head_types")
TITLE = 90
"""Letters of the text that a heading can carry; the tokens below it are the whole text."""


def save_report(model: Model, trace: Any, path: str | Path, space: str = "raw") -> str:
    """One self-contained HTML file about a text in a model: opens without a network, prints, and fits a phone.

    **Gives** the sentence "wrote …", or "replaced …" where there was a file of that name: nothing is overwritten in
    silence.

    **Holds** the text as tokens, up to five findings that beat their nulls, a table with a row a layer, the pictures of
    `readout`, `trajectory`, `transport`, `kept`, `clusters`, `purity`, `massive`, `energy` and `scores` with their nulls, then the
    covers: findings, `agreement`, `torn` and `head_types`, which colour every map of heads; and the provenance of every number.
    An analysis that cannot say anything of this text is named with its reason. `space` is raw, normed or sphere.

    **Relation** `plot` and `interactive` draw one of the pictures, for papers and for notebooks.

    >>> import rheoscope as rs, tempfile
    >>> model = rs.load()
    >>> rs.save_report(model, model.trace("The keys to the cabinet are"), tempfile.mkdtemp() + "/report.html").split()[0]
    'wrote'
    """
    if not isinstance(trace, Trace):
        raise RheoscopeError(
            f"a report is about one Trace, got {type(trace).__name__}; type one of them, as traces[0] or linked.target"
        )
    told = answers(model, trace, space, ANALYSES | WEIGHTS)
    return flow_page(model, told).save(Path(path))


def sentences(told: Sequence[Finding], tested: int) -> list[str]:
    """Findings as a person reads them, and how many were looked for.

    >>> sentences([], 12)
    ['12 candidates were tested; none beat its null.']
    """
    if not told:
        return [f"{tested} candidates were tested; none beat its null."]
    lines = [f"{one.text} (z {one.z:.1f}, q {'< 1e-6' if one.q < 1e-6 else f'{one.q:.1g}'})" for one in told]
    return [*lines, f"{tested} candidates were tested; q is the share of false ones among those told so far."]


def flow_page(model: Model, told: Answers) -> Page:
    """The page of these answers."""
    page = Page(shortened(told.trace), lead(model, told)).section("The text", token_strip(told))
    page = page.lines("Findings", sentences(*found_in(told.found)))
    page = pictures(layer_section(page, model, told), model, told)
    return page.facts("Where the numbers come from", provenance(told.trace, told))


def pictures(page: Page, model: Model, told: Answers, after: str = "") -> Page:
    """Every picture, the covers with their findings before the first of them, and what has none; `after` each heading."""
    drawn = [name for name in told.found if name in ANALYSES]
    for name in drawn:
        if name == next((one for one in drawn if one in OF_COVERS), None):
            page = page.lines(f"The covers{after}", sentences(*found_in(told.found, candidates=COVERS)))
        picture = picture_of(name, told, model.words)
        page = page.drawing(replace(picture, title=picture.title + after))
    if told.left_out:
        page = page.lines(f"Left out{after}", [f"{name}: {why}" for name, why in told.left_out.items()])
    return page


def picture_of(name: str, told: Answers, words: Any) -> Picture:
    """The picture of an analysis lives in the file of its name; maps of heads are coloured by the types of heads."""
    draw = getattr(import_module(f"rheoscope.report.plot.{name}"), f"picture_{name}")
    takes, given = signature(draw).parameters, {"words": words, "types": told.found.get("head_types")}
    return draw(told.found[name], **{part: value for part, value in given.items() if part in takes})


def shortened(trace: Trace) -> str:
    """The text on one line, cut where a heading ends."""
    text = " ".join((trace.text or "".join(trace.tokens)).split())
    return text if len(text) <= TITLE else text[: TITLE - 1].rstrip() + "…"


def lead(model: Model, *texts: Answers) -> str:
    """What was run, and how large each text is."""
    view, sizes = model.view, []
    for told in texts:
        massive = told.trace.massive()
        named = ", ".join(f"{at} {shown(told.trace.tokens[at])}" for at in massive)
        left_out = f"{len(massive)} massive tokens left out of the clouds: {named}" if massive else "no massive token"
        sizes.append(f"{len(told.trace)} tokens; {left_out}.")
    return (
        f"{view.facts['model']}: {view.layers} layers, {view.heads} heads, width {view.width}. "
        f"{' '.join(sizes)} Definitions are under the dotted words, numbers under the pictures."
    )


def token_strip(told: Answers) -> str:
    """Every token in its place; massive ones are marked, the others tell how they moved."""
    path, massive = told.found.get("trajectory"), set(told.trace.massive())
    seen = {} if path is None else {int(token): at for at, token in enumerate(path.token.values)}
    items = []
    for at, token in enumerate(told.trace.tokens):
        tip = f"token {at}"
        if at in massive:
            tip += ": massive, longer than five times the median at some step; left out of the clouds"
        elif path is not None:
            one = path.isel(token=seen[at])
            tip += (
                f": path {number(float(one.path_length))}, straightness {number(float(one.straightness))} "
                f"(null {number(float(one.straightness_null))})"
            )
        kind = ' class="massive"' if at in massive else ""
        items.append(f'<li{kind} title="{escape(tip, quote=True)}">{escape(shown(token))}</li>')
    return f'<ol class="tokens">{"".join(items)}</ol>'


def layer_section(page: Page, model: Model, told: Answers) -> Page:
    """The table: every number with its null small beside it, and what comes next."""
    asked = columns(told.found)
    if not asked and "readout" not in told.found:
        return page
    header: list[str | Cell] = ["layer", *(Cell(c.title, c.definition, "null" * (c.null is not None)) for c in asked)]
    header += [Cell("next", NEXT)] * ("readout" in told.found)
    rows: list[list[str | Cell]] = []
    for layer in range(model.view.layers):
        row: list[str | Cell] = [f"L{layer}"]
        for column in asked:
            dataset = told.found[column.analysis]
            row.append(
                Cell(said(column.value(dataset, layer)), "", said(column.null(dataset, layer)) if column.null else "")
            )
        if "readout" in told.found:
            word, chance = prediction(told.found, layer, model.words)
            row.append(Cell(word, "", said(chance)))
        rows.append(row)
    return page.table("Layer by layer", header, rows, "numbers")


def provenance(trace: Trace, told: Answers) -> dict[str, str]:
    """What made the numbers: model and weights, settings, and the text's own hash is its text."""
    settings = {
        f"{name}: {key}": str(dataset.attrs[key])
        for name, dataset in told.found.items()
        for key in ("space", "grain", "draws", "seed", "angle", "k")
        if key in dataset.attrs
    }
    return {name: value for name, value in trace.provenance.items() if name != "text"} | settings

"""The survey of mechanisms as a terminal table, as JSON and as a page."""

from pathlib import Path
from typing import Any

from rheoscope.attention.laws import LAWS
from rheoscope.attention.survey import SurveyRow, example_cloud, survey_mechanisms
from rheoscope.files import check_outputs
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message, join
from rheoscope.picture.blocks import Cell, Lines, Table, to_cells
from rheoscope.report.console import console
from rheoscope.report.json_file import write_json
from rheoscope.report.page import Page, figure_png, save_bytes
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError


def domain_text(row: SurveyRow) -> str:
    domain = row.mechanism.domain
    restrictions = [
        Message("square") if domain.requires_square else "",
        "" if domain.allows_masks else Message("no mask"),
        "" if domain.is_differentiable else Message("no gradient"),
    ]
    return join(", ", [restriction for restriction in restrictions if restriction] or [Message("any")])


def mechanism_table(rows: list[SurveyRow]) -> Table:
    """One row per mechanism: formula, domain, laws and lowering."""
    table_rows = []
    for row in rows:
        laws_text: str = f"{row.n_laws_satisfied}/{len(row.violations)}"
        if row.broken_laws:
            laws_text = Message("{counts}, broken: {laws}", counts=laws_text, laws=", ".join(row.broken_laws))
        laws_cell = Cell(laws_text, style="red" if row.broken_laws else "green")
        name_cell = Cell(row.entry.name, style="bold")
        table_rows.append(
            [name_cell, Cell(row.entry.formula), Cell(domain_text(row)), laws_cell, Cell(row.choice.name)]
        )
    header = to_cells(
        [Message("mechanism"), Message("score or weight"), Message("domain"), Message("laws"), Message("runs as")]
    )
    return Table(Message("Mechanisms of attention"), header, table_rows, frozenset(range(len(header))))


def lowering_reasons(rows: list[SurveyRow], explain: bool) -> list[str]:
    """The reason for each lowering, with the mechanisms that it applies to. `explain` adds the rejected lowerings."""
    if explain:
        return [f"{row.entry.name} {row.choice}" for row in rows]
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(f"{row.choice.name}: {row.choice.reason}", []).append(row.entry.name)
    return [f"{reason} ({', '.join(names)})" for reason, names in groups.items()]


def survey_to_json(rows: list[SurveyRow]) -> dict[str, Any]:
    """All entries of the table, and the violation of each law."""
    return {
        row.entry.name: {
            "formula": row.entry.formula,
            "source": row.entry.source,
            "domain": domain_text(row),
            "laws": {
                law: {"statement": LAWS[law].statement, "violation": value, "tolerance": LAWS[law].tolerance}
                for law, value in row.violations.items()
            },
            "lowering": row.choice.name,
            "why": row.choice.reason,
            "passed_over": row.choice.rejections,
            "weights": row.weights.tolist(),
        }
        for row in rows
    }


def survey_page(rows: list[SurveyRow], png_bytes: bytes, n_tokens: int) -> Page:
    """The survey as a page: the picture, then the table with tooltips for laws and lowerings."""
    lead = Message(
        "Attention has five parts: a score, a mask, a position, a normaliser and a value map. Each mechanism below is one choice of "
        "them. Its laws were checked on the cloud of the picture."
    )
    caption = Message("Shade: the score of a key at that point. Area: the weight of a token. Ring: the query.")
    table_rows: list[list[str | Cell]] = [
        [
            row.entry.name,
            row.entry.formula,
            domain_text(row),
            Cell(f"{row.n_laws_satisfied}/{len(row.violations)}", violations_text(row)),
            Cell(row.choice.name, str(row.choice)),
            row.entry.source,
        ]
        for row in rows
    ]
    header: list[str | Cell] = [
        Message("mechanism"),
        Cell(
            Message("score or weight"),
            Message("the score f(q, k) under softmax, or the weight as a function of the score s"),
        ),
        Cell(Message("domain"), Message("the inputs on which it is defined; others are refused")),
        Cell(
            Message("laws satisfied"),
            Message("declared laws whose violation on this cloud in float64 is within tolerance"),
        ),
        Cell(
            Message("runs as"),
            Message(
                "the implementation for {n} tokens, 8 heads of width 64, float32, causal where allowed", n=n_tokens
            ),
        ),
        Message("source"),
    ]
    return (
        Page(Message("Mechanisms of attention"), lead)
        .with_png(Message("Scores and weights"), png_bytes, caption)
        .with_table(Message("Laws and lowerings"), header, table_rows)
    )


def violations_text(row: SurveyRow) -> Message:
    lines = [
        Message("{law}: violated by {value:.1e}", law=LAWS[law].statement, value=value)
        for law, value in row.violations.items()
    ]
    return join("\n", lines)


def show_mechanisms(out: Path, json_file: Path | None, n_tokens: int, explain: bool) -> None:
    """Run `rheoscope attention`: survey, table, files. Raises if a declared law is broken."""
    from rheoscope.report.pictures.attention import figure

    output_paths = [out / f"rheoscope-attention.{kind}" for kind in ("png", "html")]
    check_outputs(output_paths if json_file is None else [*output_paths, json_file])
    terminal = Terminal(console(), [])
    with console(stderr=True).status(render(Message("checking the laws of every mechanism"))):
        points = example_cloud()
        rows = survey_mechanisms(points, n_tokens)
    with console(stderr=True).status(render(Message("drawing"))):
        picture = figure_png(figure(rows, points))
        messages = [
            save_bytes(picture, output_paths[0]),
            survey_page(rows, picture, n_tokens).save(output_paths[1]),
        ]
    if json_file is not None:
        messages.append(write_json(survey_to_json(rows), json_file))
    terminal.print_block(mechanism_table(rows))
    heading = Message(
        "Laws were checked on {points} points in float64. Lowerings are for {tokens} tokens in 8 heads of width 64",
        points=len(points),
        tokens=n_tokens,
    )
    terminal.print_block(Lines(heading, lowering_reasons(rows, explain)))
    terminal.print_files(messages)
    broken_mechanisms = [row.entry.name for row in rows if row.broken_laws]
    if broken_mechanisms:
        names = ", ".join(broken_mechanisms)
        raise RheoscopeError(Message("declared laws are broken for {names} (see the table above)", names=names))

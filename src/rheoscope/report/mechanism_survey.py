"""The survey of mechanisms as a terminal table, as JSON and as a page."""

from pathlib import Path
from typing import Any

from rheoscope.attention.laws import LAWS
from rheoscope.attention.survey import SurveyRow, example_cloud, survey_mechanisms
from rheoscope.files import check_outputs
from rheoscope.picture.blocks import Cell, Lines, Table, to_cells
from rheoscope.report.console import console
from rheoscope.report.json_file import write_json
from rheoscope.report.page import Page, figure_png, save_bytes
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError


def domain_text(row: SurveyRow) -> str:
    domain = row.mechanism.domain
    restrictions = [
        "square" * domain.requires_square,
        "no mask" * (not domain.allows_masks),
        "no gradient" * (not domain.is_differentiable),
    ]
    return ", ".join(restriction for restriction in restrictions if restriction) or "any"


def mechanism_table(rows: list[SurveyRow]) -> Table:
    """A row a mechanism: what it is, where it is defined, its laws, how it runs."""
    table_rows = []
    for row in rows:
        laws_text = f"{row.n_laws_satisfied}/{len(row.violations)}" + f", broken: {', '.join(row.broken_laws)}" * bool(
            row.broken_laws
        )
        laws_cell = Cell(laws_text, style="red" if row.broken_laws else "green")
        name_cell = Cell(row.entry.name, style="bold")
        table_rows.append(
            [name_cell, Cell(row.entry.formula), Cell(domain_text(row)), laws_cell, Cell(row.choice.name)]
        )
    header = to_cells(["mechanism", "score or weight", "domain", "laws", "runs as"])
    return Table("Mechanisms of attention", header, table_rows, frozenset(range(len(header))))


def lowering_reasons(rows: list[SurveyRow], explain: bool) -> list[str]:
    """Why each lowering is taken, one line a reason with the mechanisms that it holds for; `explain` adds why not."""
    if explain:
        return [f"{row.entry.name} {row.choice}" for row in rows]
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(f"{row.choice.name}: {row.choice.reason}", []).append(row.entry.name)
    return [f"{reason} ({', '.join(names)})" for reason, names in groups.items()]


def survey_to_json(rows: list[SurveyRow]) -> dict[str, Any]:
    """Every number and word that the table shows, and the violation of each law."""
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
    """The same as a page: the picture, then the table with a definition behind every law and lowering."""
    lead = (
        "Attention is a score, a mask, a position, a normaliser and a value map. Each mechanism below is one choice of "
        "the five; its laws were checked on the cloud of the picture when this page was made."
    )
    caption = "Shade: the score that a key at that place would get. Area: the weight of each token. Ring: the query."
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
        "mechanism",
        Cell("score or weight", "the score f(q, k) under softmax, or the weight as a function of the score s"),
        Cell("domain", "where it is defined; outside it refuses"),
        Cell("laws kept", "declared laws that hold on this cloud in float64, largest violation within tolerance"),
        Cell(
            "runs as",
            f"the implementation taken for {n_tokens} tokens, 8 heads of width 64, float32, causal where allowed",
        ),
        "source",
    ]
    return (
        Page("Mechanisms of attention", lead)
        .with_png("What each one sees", png_bytes, caption)
        .with_table("Laws and lowerings", header, table_rows)
    )


def violations_text(row: SurveyRow) -> str:
    return "\n".join(f"{LAWS[law].statement}: off by {value:.1e}" for law, value in row.violations.items())


def show_mechanisms(out: Path, json_file: Path | None, n_tokens: int, explain: bool) -> None:
    """What `rheoscope attention` does: survey, table, files; fails when a declared law is broken."""
    from rheoscope.report.pictures.attention import figure

    output_paths = [out / f"rheoscope-attention.{kind}" for kind in ("png", "html")]
    check_outputs(output_paths if json_file is None else [*output_paths, json_file])
    terminal = Terminal(console(), [])
    with console(stderr=True).status("checking the laws of every mechanism"):
        points = example_cloud()
        rows = survey_mechanisms(points, n_tokens)
    with console(stderr=True).status("drawing"):
        picture = figure_png(figure(rows, points))
        messages = [
            save_bytes(picture, output_paths[0]),
            survey_page(rows, picture, n_tokens).save(output_paths[1]),
        ]
    if json_file is not None:
        messages.append(write_json(survey_to_json(rows), json_file))
    terminal.print_block(mechanism_table(rows))
    heading = f"Laws kept on a cloud of {len(points)} points in float64; runs as, for {n_tokens} tokens in 8 heads of width 64"
    terminal.print_block(Lines(heading, lowering_reasons(rows, explain)))
    terminal.print_files(messages)
    broken_mechanisms = [row.entry.name for row in rows if row.broken_laws]
    if broken_mechanisms:
        raise RheoscopeError(f"declared laws are broken for {', '.join(broken_mechanisms)}; the table above names them")

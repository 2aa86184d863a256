"""The survey of mechanisms as a terminal table, as JSON and as a page."""

from pathlib import Path
from typing import Any

from rheoscope.attention.laws import LAWS
from rheoscope.attention.survey import Surveyed, cloud, survey
from rheoscope.files import check_outputs
from rheoscope.picture.blocks import Cell, Lines, Table, cells
from rheoscope.report.console import console
from rheoscope.report.json_file import write_json
from rheoscope.report.page import Page, png, save
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError


def domain_words(row: Surveyed) -> str:
    domain = row.mechanism.domain
    words = ["square" * domain.square, "no mask" * (not domain.masked), "no gradient" * (not domain.differentiable)]
    return ", ".join(word for word in words if word) or "any"


def terminal_table(rows: list[Surveyed]) -> Table:
    """A row a mechanism: what it is, where it is defined, its laws, how it runs."""
    told = []
    for row in rows:
        laws = f"{row.kept}/{len(row.violations)}" + f", broken: {', '.join(row.broken)}" * bool(row.broken)
        kept = Cell(laws, style="red" if row.broken else "green")
        named = Cell(row.named.name, style="bold")
        told.append([named, Cell(row.named.formula), Cell(domain_words(row)), kept, Cell(row.choice.name)])
    header = cells(["mechanism", "score or weight", "domain", "laws", "runs as"])
    return Table("Mechanisms of attention", header, told, frozenset(range(len(header))))


def reasons(rows: list[Surveyed], explain: bool) -> list[str]:
    """Why each lowering is taken, one line a reason with the mechanisms that it holds for; `explain` adds why not."""
    if explain:
        return [f"{row.named.name} {row.choice}" for row in rows]
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(f"{row.choice.name}: {row.choice.why}", []).append(row.named.name)
    return [f"{why} ({', '.join(names)})" for why, names in groups.items()]


def as_json(rows: list[Surveyed]) -> dict[str, Any]:
    """Every number and word that the table shows, and the violation of each law."""
    return {
        row.named.name: {
            "formula": row.named.formula,
            "source": row.named.source,
            "domain": domain_words(row),
            "laws": {
                law: {"statement": LAWS[law].statement, "violation": value, "tolerance": LAWS[law].tolerance}
                for law, value in row.violations.items()
            },
            "lowering": row.choice.name,
            "why": row.choice.why,
            "passed_over": row.choice.passed_over,
            "weights": row.weights.tolist(),
        }
        for row in rows
    }


def page(rows: list[Surveyed], picture: bytes, tokens: int) -> Page:
    """The same as a page: the picture, then the table with a definition behind every law and lowering."""
    lead = (
        "Attention is a score, a mask, a position, a normaliser and a value map. Each mechanism below is one choice of "
        "the five; its laws were checked on the cloud of the picture when this page was made."
    )
    caption = "Shade: the score that a key at that place would get. Area: the weight of each token. Ring: the query."
    body: list[list[str | Cell]] = [
        [
            row.named.name,
            row.named.formula,
            domain_words(row),
            Cell(f"{row.kept}/{len(row.violations)}", laws_in_words(row)),
            Cell(row.choice.name, str(row.choice)),
            row.named.source,
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
            f"the implementation taken for {tokens} tokens, 8 heads of width 64, float32, causal where allowed",
        ),
        "source",
    ]
    return (
        Page("Mechanisms of attention", lead)
        .picture("What each one sees", picture, caption)
        .table("Laws and lowerings", header, body)
    )


def laws_in_words(row: Surveyed) -> str:
    return "\n".join(f"{LAWS[law].statement}: off by {value:.1e}" for law, value in row.violations.items())


def show(out: Path, json_file: Path | None, tokens: int, explain: bool) -> None:
    """What `rheoscope attention` does: survey, table, files; fails when a declared law is broken."""
    from rheoscope.report.pictures.attention import figure

    drawn = [out / f"rheoscope-attention.{kind}" for kind in ("png", "html")]
    check_outputs(drawn if json_file is None else [*drawn, json_file])
    terminal = Terminal(console(), [])
    with console(stderr=True).status("checking the laws of every mechanism"):
        points = cloud()
        rows = survey(points, tokens)
    with console(stderr=True).status("drawing"):
        picture = png(figure(rows, points))
        said = [
            save(picture, drawn[0]),
            page(rows, picture, tokens).save(drawn[1]),
        ]
    if json_file is not None:
        said.append(write_json(as_json(rows), json_file))
    terminal.show(terminal_table(rows))
    runs = (
        f"Laws kept on a cloud of {len(points)} points in float64; runs as, for {tokens} tokens in 8 heads of width 64"
    )
    terminal.show(Lines(runs, reasons(rows, explain)))
    terminal.files(said)
    broken = [row.named.name for row in rows if row.broken]
    if broken:
        raise RheoscopeError(f"declared laws are broken for {', '.join(broken)}; the table above names them")

"""The survey of mechanisms as a terminal table, as JSON and as a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.attention.laws import LAWS
from rheoscope.attention.survey import Surveyed, cloud, survey
from rheoscope.files import check_outputs
from rheoscope.report.json_file import write_json
from rheoscope.report.page import Page, png, save
from rheoscope.report.telling import Cell
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from rich.table import Table


def domain_words(row: Surveyed) -> str:
    domain = row.mechanism.domain
    words = ["square" * domain.square, "no mask" * (not domain.masked), "no gradient" * (not domain.differentiable)]
    return ", ".join(word for word in words if word) or "any"


def terminal_table(rows: list[Surveyed]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("mechanism", "score or weight", "domain", "laws", "runs as"):
        table.add_column(column, no_wrap=column == "mechanism", overflow="fold")
    for row in rows:
        laws = f"[green]{row.kept}/{len(row.violations)}[/]"
        if row.broken:
            laws = f"[red]{row.kept}/{len(row.violations)}, broken: {', '.join(row.broken)}[/]"
        table.add_row(f"[bold]{row.named.name}[/]", escape(row.named.formula), domain_words(row), laws, row.choice.name)
    return table


def reasons(rows: list[Surveyed], explain: bool) -> str:
    """Why each lowering is taken, one line a reason with the mechanisms that it holds for; `explain` adds why not."""
    if explain:
        return "\n".join(f"[bold]{row.named.name}[/] {row.choice}" for row in rows)
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(f"[bold]{row.choice.name}[/]: {row.choice.why}", []).append(row.named.name)
    return "\n".join(f"{why} [dim]({', '.join(names)})[/]" for why, names in groups.items())


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
    cells: list[list[str | Cell]] = [
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
        .table("Laws and lowerings", header, cells)
    )


def laws_in_words(row: Surveyed) -> str:
    return "\n".join(f"{LAWS[law].statement}: off by {value:.1e}" for law, value in row.violations.items())


def show(out: Path, json_file: Path | None, tokens: int, explain: bool) -> None:
    """What `rheoscope attention` does: survey, table, files; fails when a declared law is broken."""
    from rich.console import Console

    from rheoscope.report.plot.attention import figure

    drawn = [out / f"rheoscope-attention.{kind}" for kind in ("png", "html")]
    check_outputs(drawn if json_file is None else [*drawn, json_file])
    console = Console(highlight=False)
    with Console(stderr=True).status("checking the laws of every mechanism"):
        points = cloud()
        rows = survey(points, tokens)
    console.print(terminal_table(rows))
    console.print(
        f"\n[dim]laws kept on a cloud of {len(points)} points in float64; runs as, for {tokens} tokens in 8 heads of width 64:[/]"
    )
    console.print(reasons(rows, explain))
    with Console(stderr=True).status("drawing"):
        picture = png(figure(rows, points))
        said = [
            save(picture, drawn[0]),
            page(rows, picture, tokens).save(drawn[1]),
        ]
    if json_file is not None:
        said.append(write_json(as_json(rows), json_file))
    console.print("\n".join(said), soft_wrap=True)
    broken = [row.named.name for row in rows if row.broken]
    if broken:
        raise RheoscopeError(f"declared laws are broken for {', '.join(broken)}; the table above names them")

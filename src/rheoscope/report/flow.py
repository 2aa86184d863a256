"""A text in a model, in the terminal: how every layer moves the cloud, what it predicts, what kind of operators its heads are."""

from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.files import free
from rheoscope.flow.cloud import SPACES
from rheoscope.flow.readout import DEFINITIONS
from rheoscope.report.answers import ANALYSES, WEIGHTS, Answers, answers
from rheoscope.report.compared_page import compared_page
from rheoscope.report.dataset import save_json
from rheoscope.report.findings import COVERS, as_dataset, findings
from rheoscope.report.flow_page import flow_page, sentences
from rheoscope.report.layers import NEXT, Words, columns, prediction, said
from rheoscope.report.operators import terminal_table
from rheoscope.report.tokens import shown
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.step import Step

if TYPE_CHECKING:
    import xarray
    from rich.console import Console
    from rich.table import Table

HEADINGS = {"probability": "p(answer)", "rank": "rank", "entropy": "entropy"}
WIDE = 110
"""Columns of a terminal that has room for nulls; the page and --json have them always."""
REPORT = Path("report.html")
"""Where the page goes when nobody says; a name that is taken is left alone."""


def lens_table(lens: "xarray.Dataset", words: Words) -> "Table":
    """A row a layer: the answer's probability and rank, entropy, and the likeliest tokens."""
    from rich.markup import escape

    table = _table(("after", *HEADINGS.values()))
    table.add_column("likeliest next tokens", overflow="ellipsis", no_wrap=True)
    ends = [step for step in map(str, lens.point.values) if (at := Step.parse(step)).is_embed or at.is_end_of_layer]
    for point in ends:
        row = lens.sel(point=point)
        likely = (
            f"{escape(shown(words([int(t)])[0]))} [dim]{float(p):.2f}[/]"
            for t, p in zip(row.top_tokens.values[:4], row.top_probabilities.values, strict=False)
        )
        figures = f"{float(row.probability):.3f}", f"{int(row['rank'])}", f"{float(row.entropy):.2f}"
        table.add_row(point.removesuffix(".resid_post"), *figures, "  ".join(likely))
    return table


def layer_table(told: Answers, layers: int, words: Words, nulls: bool) -> "Table":
    """A row a layer: every number, its null dim beside it where there is room, and what it would say next."""
    asked = columns(told.found)
    table = _table(("layer", *(column.title for column in asked)))
    if "readout" in told.found:
        table.add_column("next", overflow="ellipsis", no_wrap=True)
    for layer in range(layers):
        table.add_row(f"L{layer}", *_figures(told, layer, nulls), *_next(told, layer, words))
    return table


def compared_table(first: Answers, second: Answers, layers: int, words: Words) -> "Table":
    """Three rows a layer: the first text, the second, and the second minus the first."""
    both = [column for column in columns(first.found) if column.analysis in second.found]
    table = _table(("layer", "text", *(column.title for column in both)))
    table.add_column("next", overflow="ellipsis", no_wrap=True)
    for layer in range(layers):
        values = [[column.value(told.found[column.analysis], layer) for column in both] for told in (first, second)]
        for name, row, told in zip(("1", "2"), values, (first, second), strict=True):
            table.add_row(f"L{layer}" if name == "1" else "", name, *map(said, row), *_next(told, layer, words))
        table.add_row("", "2−1", *(said(b - a) for a, b in zip(*values, strict=True)), style="dim", end_section=True)
    return table


def _table(headings: tuple[str, ...]) -> "Table":
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        side = "left" if heading in ("layer", "after", "text") else "right"
        table.add_column(heading, justify=side, min_width=len(heading), no_wrap=True)  # type: ignore[arg-type]
    return table


def _figures(told: Answers, layer: int, nulls: bool) -> list[str]:
    cells = []
    for column in columns(told.found):
        dataset = told.found[column.analysis]
        null = f" [dim]{said(column.null(dataset, layer)):>4}[/]" if column.null and nulls else ""
        cells.append(said(column.value(dataset, layer)) + null)
    return cells


def _next(told: Answers, layer: int, words: Words) -> list[str]:
    from rich.markup import escape

    if "readout" not in told.found:
        return []
    word, chance = prediction(told.found, layer, words)
    return [f"{escape(word)} [dim]{said(chance)}[/]"]


def show(
    model: Model,
    text: str,
    second: str | None = None,
    space: str = "raw",
    explain: bool = False,
    json_file: Path | None = None,
    html: Path | None = None,
    no_html: bool = False,
) -> None:
    """What `rheoscope TEXT` does: every layer in a table, what each predicts, the heads as operators, and a report."""
    from rich.console import Console

    if space not in SPACES:
        raise RheoscopeError(f"unknown space {space!r}; type one of {', '.join(SPACES)}")
    if html is not None and no_html:
        raise RheoscopeError("--html and --no-html exclude each other; type one of them")
    console = Console(highlight=False)
    told = _asked(model, text, space)
    other = None if second is None else _asked(model, second, space)
    tell(console, model, told, other)
    if explain:
        explained(console, told)
    if json_file is not None:
        compared = None if other is None else other.found
        numbers = told.found | {"findings": as_dataset(*findings(told.found))}
        numbers |= {"findings_covers": as_dataset(*findings(told.found, candidates=COVERS))}
        console.print(save_json(numbers, json_file, compared), soft_wrap=True)
    if not no_html:
        _reported(console, model, told, other, html)


def _asked(model: Model, text: str, space: str) -> Answers:
    """All answers about a text, with a word on stderr about what takes so long."""
    from rich.console import Console

    trace = model.trace(text)
    with Console(stderr=True).status("reading") as status:
        return answers(model, trace, space, ANALYSES | WEIGHTS, lambda name: status.update(f"asking {name}"))


def tell(console: "Console", model: Model, told: Answers, other: Answers | None) -> None:
    """Everything that is printed."""
    facts, view = model.view.facts, model.view
    console.print(f"[dim]{facts['model']} · {view.layers} layers, {view.heads} heads · {facts['certificate']}[/]")
    for name, one in (("", told),) if other is None else (("text 1, ", told), ("text 2, ", other)):
        tokens = " ".join(shown(token) for token in one.trace.tokens)
        console.print(f"{name}{len(one.trace)} tokens: {tokens}", markup=False)
        left_out = [f"{at} {shown(one.trace.tokens[at])}" for at in one.trace.massive()]
        console.print(f"massive tokens left out: {', '.join(left_out) or 'none'}", markup=False, style="dim")
    if columns(told.found) and other is None:
        wide = console.width >= WIDE
        console.print(f"\nHow each layer moves the cloud{', the null dim beside each number' if wide else ''}")
        console.print(layer_table(told, view.layers, model.words, wide))
    elif columns(told.found) and other is not None:
        console.print("\nHow each layer moves the cloud of each text, and the difference")
        console.print(compared_table(told, other, view.layers, model.words))
    if "readout" in told.found:
        lens = told.found["readout"]
        answer = shown(model.words([int(lens.attrs["answer"])])[0])
        console.print(f"\nWhat each layer says comes next; the answer is {answer}", markup=False)
        console.print(lens_table(lens, model.words))
    for name, why in told.left_out.items():
        console.print(f"\n{name} is left out: {why}", markup=False)
    console.print("\nFindings")
    for line in sentences(*findings(told.found)):
        console.print(f"• {line}", markup=False)
    console.print("\nThe covers: what heads make of similarity")
    for line in sentences(*findings(told.found, candidates=COVERS)):
        console.print(f"• {line}", markup=False)
    console.print("\nHeads as operators: median over the heads of a layer")
    console.print(terminal_table(told.found["operators"]))


def explained(console: "Console", told: Answers) -> None:
    """What every column means."""
    defined = {column.title: column.definition for column in columns(told.found)} | {"next": NEXT}
    defined |= {title: DEFINITIONS[name] for name, title in HEADINGS.items()}
    console.print("\n".join(f"[bold]{title}[/]: {text}" for title, text in defined.items()))


def _reported(console: "Console", model: Model, told: Answers, other: Answers | None, html: Path | None) -> None:
    """The page where it was asked for, or beside the user; only an asked one fails aloud."""
    page = flow_page(model, told) if other is None else compared_page(model, told, other)
    try:
        console.print(page.save(free(REPORT) if html is None else html), soft_wrap=True)
    except RheoscopeError as error:
        if html is not None:
            raise
        console.print(f"no report: {error}", soft_wrap=True, markup=False, style="dim")

"""Two texts in a model as one page: what each shows, every layer side by side, then every picture of both."""

from rheoscope.report.answers import Answers
from rheoscope.report.findings import findings
from rheoscope.report.flow_page import lead, pictures, provenance, sentences, shortened, token_strip
from rheoscope.report.layers import NEXT, columns, prediction, said
from rheoscope.report.page import Cell, Page
from rheoscope.report.plot.compared import picture_compared
from rheoscope.space.model import Model


def compared_page(model: Model, first: Answers, second: Answers) -> Page:
    """The page of two texts."""
    both = {"text 1": first, "text 2": second}
    page = Page(f"{shortened(first.trace)} | {shortened(second.trace)}", lead(model, first, second))
    for name, told in both.items():
        page = page.section(name.capitalize(), token_strip(told))
        page = page.lines(f"Findings, {name}", sentences(*findings(told.found)))
    page = beside(page, model, first, second)
    if columns(first.found):
        page = page.drawing(picture_compared(first, second))
    for name, told in both.items():
        page = pictures(page, model, told, f" ({name})")
    for name, told in both.items():
        page = page.facts(f"Where the numbers of {name} come from", provenance(told.trace, told))
    return page


def beside(page: Page, model: Model, first: Answers, second: Answers) -> Page:
    """Three rows a layer: the first text, the second, and the second minus the first."""
    both = [column for column in columns(first.found) if column.analysis in second.found]
    read = "readout" in first.found and "readout" in second.found
    header: list[str | Cell] = ["layer", "text", *(Cell(column.title, column.definition) for column in both)]
    rows: list[list[str | Cell]] = []
    for layer in range(model.view.layers):
        values = [[column.value(told.found[column.analysis], layer) for column in both] for told in (first, second)]
        for at, (row, told) in enumerate(zip(values, (first, second), strict=True)):
            word, chance = prediction(told.found, layer, model.words) if read else ("", float("nan"))
            ending: list[str | Cell] = [Cell(word, "", said(chance))] if read else []
            rows.append([f"L{layer}" if at == 0 else "", str(at + 1), *map(said, row), *ending])
        rows.append(["", "2−1", *(said(b - a) for a, b in zip(*values, strict=True)), *[""] * read])
    return page.table("Layer by layer", [*header, *[Cell("next", NEXT)] * read], rows, "numbers")

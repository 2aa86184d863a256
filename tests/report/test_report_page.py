"""The page of a report: complete, escaped and self-contained, with a list of skipped analyses."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.covers.agreement.analysis import AGREEMENT
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Story
from rheoscope.picture.head_map import TYPE_COLOURS
from rheoscope.picture.picture import Line
from rheoscope.report.card_cache import find_card
from rheoscope.report.comparison_picture import picture as picture_compared
from rheoscope.report.draw_result import picture_of
from rheoscope.report.findings import finding_sentences, findings
from rheoscope.report.layer_table import available_columns
from rheoscope.report.report_page import comparison_page, report_page, result_pictures
from rheoscope.report.report_plans import REPORTS, report_of_analysis
from rheoscope.report.run_report import all_datasets
from rheoscope.report.story import picture_blocks
from tests.report.cases import SHORT_TEXT, TEXT, Parts, flow_results, model, report_results, small

FLOW = REPORTS["flow"]


@contextmanager
def no_model_runs() -> Iterator[None]:
    """Fail if a renderer loads or runs a model, or runs an analysis."""

    def fail_if_called(*_: object, **__: object) -> None:
        pytest.fail("a renderer has run the model")

    with pytest.MonkeyPatch.context() as patch:
        for method in ("forward_logits", "forward_points", "trace", "run", "run_batch", "block_outputs", "gradients"):
            patch.setattr(type(model()), method, fail_if_called)
        patch.setattr("rheoscope.opening.load", fail_if_called)
        patch.setattr("rheoscope.report.analysis_runs.run_analysis", fail_if_called)
        yield


@pytest.fixture(scope="module")
def html() -> str:
    results = flow_results()
    with no_model_runs():
        return report_page(FLOW, results).to_html()


@pytest.fixture(scope="module")
def comparison_html() -> str:
    first, second = flow_results(), flow_results(SHORT_TEXT)
    with no_model_runs():
        return comparison_page(FLOW, first, second).to_html()


# One text


def test_a_page_is_well_formed_and_has_every_section(html: str) -> None:
    parts = Parts(html)
    assert [tag for tag in parts.open if tag not in ("html", "meta")] == []
    assert parts.texts["h1"] == [FLOW.title(flow_results())]
    tables = ["How each layer moves the cloud", "Prediction after each layer", "Heads as operators", "Heads by type"]
    heads = parts.texts["h2"]
    assert heads[0] == "The text"
    assert heads[1:4] == ["What happens to this text", "The card of this model", "Next"]
    assert [next(head for head in heads if head.startswith(table)) for table in tables] == heads[4:8]
    assert heads[8] == "Significant findings"
    datasets = [flow_results().datasets[name] for name in ANALYSIS_MODULES if name in flow_results().datasets]
    assert heads[9:-2] == [picture_of(dataset, token_strings=model().token_strings).title for dataset in datasets]
    assert parts.count("details", "fold") == len(heads[4:-1])
    assert len(datasets) == len(flow_results().datasets)
    assert heads[-2:] == ["Origin of the numbers", "Open this in the studio"]
    for line in finding_sentences(*findings(flow_results())):
        assert line in parts.texts["li"]
    assert f"The null has {AGREEMENT.report['draws']} draws per head." in html
    for command in ("rheoscope reverse", "rheoscope covers", "rheoscope surgery"):
        assert f"<code>{command} " in html
    assert str(flow_results().required_trace.facts["weights"]) in parts.texts["dd"]


def test_the_page_has_the_card_of_the_model_or_the_command_that_makes_one(html: str) -> None:
    assert "<li>No card of this model is stored. rheoscope card answers claims about it over many texts.</li>" in html
    card = find_card(model().view)
    assert card is not None
    with no_model_runs():
        parts = Parts(report_page(FLOW, replace(flow_results(), card=card)).to_html())
    assert parts.texts["h2"][2] == "The card of the default model: 14 claims over 96 texts"
    assert parts.count("summary", "row") == card.sizes["claim"]
    assert parts.count("div", "detail") == card.sizes["interval"]
    assert "card" in all_datasets(replace(flow_results(), card=card))
    assert "card" not in all_datasets(flow_results())


def test_a_page_loads_nothing_external(html: str, comparison_html: str) -> None:
    for page in (html, comparison_html):
        path_exists = re.sub(
            r'<a href="http://127\.0\.0\.1:8642/#[\w+%.&;=~*-]*" rel="noreferrer">', "", page
        )  # asked for by a hand alone
        assert re.findall(r"https?:|url\(|@import|src=|href=", path_exists) == []
        assert path_exists != page
    assert len(html) < 540_000


def test_every_picture_has_a_text_alternative(html: str) -> None:
    sheets = [attrs for tag, attrs in Parts(html).elements if tag == "svg"]
    (story,) = picture_blocks(flow_results())
    assert isinstance(story, Story)
    n_panels = sum(len(drawing.picture.panels) for drawing in result_pictures(flow_results()))
    assert len(sheets) == len(story.panels) + n_panels
    for attrs in sheets:
        assert attrs["role"] == "img"
        assert len(str(attrs["aria-label"])) > 30


def test_the_page_has_every_number_of_every_layer(html: str) -> None:
    table = html[html.index("<table") : html.index("</table>")]
    rows = table.split("<tr>")[2:]
    assert Parts(table).count("tr") == 7
    for column in available_columns(flow_results().datasets):
        dataset = flow_results().datasets[column.analysis]
        for layer, row in enumerate(rows):
            assert f"<span>{format_number(column.value(dataset, layer))}</span>" in row
            if column.null and format_number(column.null(dataset, layer)) != "none":
                assert f"<small>{format_number(column.null(dataset, layer))}</small>" in row
    assert [len(re.findall("<td", row)) for row in rows] == [len(available_columns(flow_results().datasets)) + 1] * 6


def test_the_text_is_escaped(html: str) -> None:
    text = "<script>alert(1)</script> a & b \"quoted\" 'so' </svg></title> $x$ <b> \x00\x1b[31m red"
    results = report_results(FLOW, text, of=small())
    parts = Parts(report_page(FLOW, results).to_html())
    assert {tag for tag, _ in parts.elements} <= {tag for tag, _ in Parts(html).elements}
    assert parts.count("script") == 1
    assert "alert(1)" not in "".join(parts.texts["script"])
    assert not any(name.startswith("on") for _, attrs in parts.elements for name in attrs)
    assert "\x1b" not in "".join((*parts.texts["li"], *parts.texts["h1"]))
    assert parts.count("li") >= len(results.required_trace)


def test_tokens_are_escaped() -> None:
    tokens = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', *flow_results().required_trace.tokens[2:]]
    parts = Parts(
        report_page(
            FLOW, replace(flow_results(), trace=replace(flow_results().required_trace, tokens=tokens))
        ).to_html()
    )
    assert parts.count("script") == 1
    assert parts.count("img") == 0
    assert "<script>alert(1)</script>" in parts.texts["li"]


def test_massive_tokens_are_named_and_marked(html: str) -> None:
    trace = flow_results().required_trace
    points = trace.points.clone()
    points[3, 4] *= 1000
    bare = replace(flow_results(), trace=replace(trace, points=points), datasets={})
    page = report_page(FLOW, bare).to_html()
    assert Parts(page).count("li", "massive") == 1
    assert f"massive tokens left out of the clouds: {trace.tokens[4].replace(' ', '·')} at 4" in page
    assert Parts(html).count("li", "massive") == 0


def test_a_short_text_lists_skipped_analyses() -> None:
    parts = Parts(report_page(FLOW, flow_results("a")).to_html())
    assert any(
        line.startswith("clusters was skipped: this analysis needs at least 3 tokens") for line in parts.texts["li"]
    )
    assert "Do tokens form clusters?" not in parts.texts["h2"]
    assert "Where the prediction forms" in parts.texts["h2"]
    assert "Skipped" in parts.texts["h2"]


def test_maps_of_heads_are_coloured_by_the_types_of_heads(html: str) -> None:
    n_typed = int(np.isin(flow_results().datasets["head_types"].type.values, list(TYPE_COLOURS)).sum())
    assert n_typed > 0
    assert html.count("<circle class=on") % n_typed == 0
    assert html.count("<circle class=on") > 8 * n_typed
    bare = replace(
        flow_results(), datasets={name: x for name, x in flow_results().datasets.items() if name != "head_types"}
    )
    assert "<circle class=on" not in report_page(FLOW, bare).to_html()


def test_repeated_analyses_are_drawn_once() -> None:
    repeated = flow_results().with_result("distorted_pairs L1.H1", flow_results().datasets["distorted_pairs"])
    assert len(result_pictures(repeated)) == len(result_pictures(flow_results()))


def test_save_report_writes_replaces_and_checks_its_arguments(tmp_path: Path) -> None:
    trace, path = small().trace("The keys to the cabinet"), tmp_path / "new" / "report.html"
    assert rs.save_report(small(), trace, path, space="sphere") == f"wrote {path}"
    assert "<dd>sphere</dd>" in path.read_text()
    assert rs.save_report(small(), trace, str(path)) == f"replaced {path}"
    assert "<dd>sphere</dd>" not in path.read_text()
    assert "numbers were tested" in path.read_text()
    with pytest.raises(rs.RheoscopeError, match=r"rs\.save_report expects a Trace, got several Traces"):
        rs.save_report(small(), [trace], path)


# Every command has a page, and every page is made of answers alone


@pytest.mark.parametrize(
    ("name", "options", "titles"),
    [
        (
            "covers",
            {"draws": 4},
            ["Does attention read similarity?", "Types of heads", "How projections change the geometry",
             "Geometry that heads recover together (queries)", "Which heads work together", "Is a layer close to a fixed point?",
             "Significant findings", "Similarity in this text", "Heads, and the pairs of tokens that they separate or merge"],
        ),
        ("reverse", {"target": " on", "token": -1}, ["Gradient of the loss by the scores", "How a gradient step would change attention"]),
        ("surgery", {"M": "symmetric", "heads": [(2, 1)]}, ["Comparison with random changes and ablation"]),
    ],
)  # fmt: skip
def test_every_report_has_a_page(name: str, options: dict[str, Any], titles: list[str]) -> None:
    results = report_results(REPORTS[name], of=small(), **options)
    assert results.skipped == {}
    parts = Parts(report_page(REPORTS[name], results).to_html())
    assert set(titles) <= set(parts.texts["h2"])
    assert parts.count("svg") == sum(len(drawing.picture.panels) for drawing in result_pictures(results))
    assert "Skipped" not in parts.texts["h2"]


def test_weights_alone_have_a_page_without_a_text() -> None:
    for job in (REPORTS["operators"], report_of_analysis("operators")):
        parts = Parts(report_page(job, report_results(job, None, of=small())).to_html())
        assert "The text" not in parts.texts["h2"]
        assert str(small().view.facts["weights"]) in parts.texts["dd"]


def test_rendering_a_page_does_not_run_the_model(html: str, comparison_html: str) -> None:
    """The fixtures fail if it does."""
    assert html.startswith("<!doctype html>")
    assert comparison_html.startswith("<!doctype html>")


# Two texts


def test_both_texts_have_their_tokens_findings_and_pictures(comparison_html: str) -> None:
    parts = Parts(comparison_html)
    heads = parts.texts["h2"]
    assert heads[:2] == ["Text 1", "Text 2"]
    for name in ("text 1", "text 2"):
        assert {
            f"Significant findings ({name})",
            f"Do tokens form clusters? ({name})",
            f"Origin of the numbers of {name}",
        } <= set(heads)
    assert "Layer by layer, both texts" in heads
    assert parts.count("script") == 1
    assert f"{len(flow_results().required_trace)} tokens" in comparison_html
    assert f"{len(flow_results(SHORT_TEXT).required_trace)} tokens" in comparison_html


def test_the_comparison_table_has_both_texts_and_the_difference(comparison_html: str) -> None:
    table = comparison_html[comparison_html.index("<table") : comparison_html.index("</table>")]
    assert Parts(table).count("tr") == 1 + 3 * 6
    rows = table.split("<tr>")[2:]
    for column in available_columns(flow_results().datasets):
        a, b = (
            column.value(drawing.datasets[column.analysis], 2) for drawing in (flow_results(), flow_results(SHORT_TEXT))
        )
        for row, value in zip(rows[6:9], (a, b, b - a), strict=True):
            assert f"<span>{format_number(value)}</span>" in row


def test_comparison_curves_have_the_numbers_of_the_table() -> None:
    comparison = picture_compared(flow_results(), flow_results(SHORT_TEXT))
    titles = [column.title for column in available_columns(flow_results().datasets)]
    assert [panel.title for panel in comparison.panels] == titles
    kappa = comparison.panels[titles.index("κ")]
    lines_by_name = {mark.name: mark for mark in kappa.marks if isinstance(mark, Line)}
    assert lines_by_name["text 2"].y == pytest.approx(flow_results(SHORT_TEXT).datasets["transport"].kappa.values)
    assert lines_by_name["text 1, null"].y == pytest.approx(flow_results().datasets["transport"].kappa_null.values)
    assert lines_by_name["text 1, null"].style == "dashed"


def test_skipped_analyses_are_listed_per_text() -> None:
    parts = Parts(comparison_page(FLOW, flow_results(), flow_results("a")).to_html())
    assert any(
        line.startswith("clusters was skipped: this analysis needs at least 3 tokens") for line in parts.texts["li"]
    )
    assert "Skipped (text 2)" in parts.texts["h2"]
    assert "Skipped (text 1)" not in parts.texts["h2"]
    assert TEXT.split()[1] in parts.texts["h1"][0]

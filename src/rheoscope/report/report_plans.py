"""What every command asks and tells: one row a command, the only table. All of them are run the same way (`command.py`)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.covers.agreement import words as agreement
from rheoscope.covers.operators import words as operators
from rheoscope.covers.reversed_attention import words as reversed_attention
from rheoscope.covers.surgery import words as surgery
from rheoscope.flow.readout import words as readout
from rheoscope.picture.blocks import Block, Lines
from rheoscope.report import field_blocks, layer_table, question_blocks, text_blocks
from rheoscope.report.analysis_runs import MAX_CONTROLS, Request, request
from rheoscope.report.findings import finding_sentences, findings
from rheoscope.report.report_settings import clearest_head_settings, report_request
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.space.results import Results

Options = dict[str, Any]
"""What was typed behind a command, by name."""


@dataclass(frozen=True, eq=False)
class Section:
    """Blocks that can be told once everything they need was asked; `aside` ones only on a page."""

    needs: tuple[str, ...]
    blocks: Callable[[Results], list[Block]]
    page_only: bool = False


@dataclass(frozen=True, eq=False)
class ReportPlan:
    """A command: what it asks (with the options that were typed), what it asks besides for files and pages, what it tells.

    `must` names the analysis without whose answer there is nothing to tell: its reason is then the error.
    """

    title: Callable[[Results], str]
    requests: Callable[[Options], list[Request]]
    sections: tuple[Section, ...]
    file_requests: Callable[[Options], list[Request]] = field(default=lambda options: [])
    required: str = ""


# The rows


def _finding_blocks(results: Results) -> list[Block]:
    if not results.has_nulls:
        return [Lines("What else beat chance", ["Nothing is told: nulls are left out (--fast)."])]
    return [Lines("What else beat chance", finding_sentences(*findings(results)))]


QUESTIONS_BY_COST = sorted(
    QUESTIONS, key=lambda question: max(analysis_by_name(name).controls for name in question.needs) == MAX_CONTROLS
)
FIRST_ANALYSES = tuple(dict.fromkeys(name for question in QUESTIONS_BY_COST for name in question.needs))
"""What the seven questions need, asked before everything else, so that answers stand there at once: in their order, but that
what waits for several controls comes last."""
LAST_ANALYSES = ("head_types", "distorted_pairs", "score_attribution")
"""What takes longest, and stands on what came before."""


def text_analyses() -> list[str]:
    """What the main job asks: every analysis of a text or of weights that is not dear, in an order that tells early."""
    inexpensive = [
        name
        for name in ANALYSIS_MODULES
        if not (spec := analysis_by_name(name)).expensive and spec.needs in ("trace", "view")
    ]
    return [
        *FIRST_ANALYSES,
        *(name for name in inexpensive if name not in (*FIRST_ANALYSES, *LAST_ANALYSES)),
        *LAST_ANALYSES,
    ]


def _flow_requests(options: Options) -> list[Request]:
    space = {"space": options.get("space", "raw")}
    return [
        report_request(name, **(space if "space" in analysis_by_name(name).settings else {}))
        for name in text_analyses()
    ]


def _covers_requests(options: Options) -> list[Request]:
    settings = {name: options[name] for name in ("draws", "control") if options.get(name) is not None}
    return [
        report_request("agreement", **settings),
        Request("distorted_pairs", clearest_head_settings(1)),
        report_request("head_types"),
        report_request("distortion"),
    ]


def _covers_file_requests(options: Options) -> list[Request]:
    names = ("distorted_pairs", "stack", "composition", "score_attribution", "rollout", "fixed_point", "operators")
    return [*map(report_request, names), Request("distorted_pairs", clearest_head_settings(agreement.MAX_LISTED_HEADS))]


def _surgery_requests(options: Options) -> list[Request]:
    return [request("surgery", **{name: value for name, value in options.items() if value is not None})]


def _reverse_requests(options: Options) -> list[Request]:
    settings = {name: options[name] for name in ("target", "token") if options.get(name) is not None}
    etas = {"etas": (reversed_attention.PATCH_ETA, 0.0)}
    return [request("reversed_attention", **settings), request("attention_patching", **settings | etas)]


def _reverse_file_requests(options: Options) -> list[Request]:
    settings = {name: options[name] for name in ("target", "token") if options.get(name) is not None}
    return [request("attention_patching", **settings), report_request("head_types")]


def _operators_requests(options: Options) -> list[Request]:
    scores = [report_request("scores")] if options.get("text") is not None else []
    return [request("operators", raw=bool(options.get("raw"))), *scores]


def _prefixed_title(prefix: str) -> Callable[[Results], str]:
    return lambda results: f"{prefix}: {text_blocks.report_title(results)}"


REPORTS: dict[str, ReportPlan] = {
    "flow": ReportPlan(
        text_blocks.report_title,
        _flow_requests,
        (
            *(Section(question.needs, question_blocks.blocks(question)) for question in QUESTIONS),
            Section((), question_blocks.control_note),
            Section(layer_table.NEEDS, layer_table.blocks),
            Section(("readout",), readout.blocks),
            Section(("operators", "energy"), operators.blocks),
            Section(("geometry_kept", "massive_tokens", "operators", "agreement", "distortion"), _finding_blocks),
        ),
    ),
    "covers": ReportPlan(
        _prefixed_title("Covers"),
        _covers_requests,
        (
            Section(("agreement", "head_types", "distortion"), agreement.blocks),
            Section(("agreement", "distortion"), _finding_blocks),
            Section((), agreement.head_table, page_only=True),
        ),
        _covers_file_requests,
        required="agreement",
    ),
    "surgery": ReportPlan(
        _prefixed_title("Surgery"), _surgery_requests, (Section(("surgery",), surgery.blocks),), required="surgery"
    ),
    "reverse": ReportPlan(
        _prefixed_title("Reversed attention"),
        _reverse_requests,
        (Section(("reversed_attention", "attention_patching"), reversed_attention.blocks),),
        _reverse_file_requests,
        required="reversed_attention",
    ),
    "operators": ReportPlan(
        lambda results: f"Operators of {results.view.facts['model']}",
        _operators_requests,
        (
            Section(("operators",), operators.blocks),
            Section(("operators",), operators.extreme_heads),
            Section(("scores",), operators.score_blocks),
        ),
        lambda options: [report_request("head_types")],
        required="operators",
    ),
}
"""Command → what it asks and tells."""


def report_of_analysis(name: str) -> ReportPlan:
    """Any analysis of the catalogue as a command of its own."""
    return ReportPlan(
        lambda results: f"{name}: {text_blocks.report_title(results)}",
        lambda options: [request(name, **options)],
        (Section((name,), lambda results: field_blocks.blocks(results, name)),),
        required=name,
    )

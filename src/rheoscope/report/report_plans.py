"""The plan of every report: the analyses that it runs, and the sections that it shows.

A plan is derived from the declarations of the analyses. An analysis with a report of its own declares it in its `words.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name, words_by_name
from rheoscope.messages.message import Message
from rheoscope.picture.blocks import Block, Lines
from rheoscope.report import card_section, field_blocks, layer_table, next_steps, text_blocks
from rheoscope.report.analysis_runs import Request, request
from rheoscope.report.findings import ALL_WORDS, analyses_with_findings, finding_sentences, findings
from rheoscope.report.report_settings import report_request
from rheoscope.report.story import STORY_ANALYSES, STORY_LINES, line_blocks, missing_blocks, picture_blocks
from rheoscope.space.report_run import ReportRun
from rheoscope.space.results import Results
from rheoscope.space.words import OwnReport

Options = dict[str, Any]
"""The options of a command, by name."""
FLOW = "flow"
"""The report on a text, which belongs to no single analysis."""


@dataclass(frozen=True, eq=False)
class Section:
    """Blocks that are shown once the analyses in `needs` have run.

    `page_only` ones appear only on a page, `full_only` ones in the terminal only with `--full`.
    """

    needs: tuple[str, ...]
    blocks: Callable[[Results], list[Block]]
    page_only: bool = False
    full_only: bool = False


@dataclass(frozen=True, eq=False)
class ReportPlan:
    """What a report runs under the options of its command, what it runs in addition for files, and what it shows.

    Without a result of the analysis `required` there is no report: the reason is raised as an error.
    """

    title: Callable[[Results], str]
    requests: Callable[[Options], list[Request]]
    sections: tuple[Section, ...]
    file_requests: Callable[[Options], list[Request]] = field(default=lambda options: [])
    required: str = ""

    def all_requests(self, options: Options) -> list[Request]:
        """Everything that the report runs if it writes files."""
        return [*self.requests(options), *self.file_requests(options)]


# The report on a text


def text_analyses() -> list[str]:
    """The analyses that the report on a text runs, in this order: all inexpensive ones of a text or of weights."""
    declarations = {name: analysis_by_name(name) for name in ANALYSIS_MODULES}
    last = sorted(
        (name for name in declarations if declarations[name].last and name not in STORY_ANALYSES),
        key=lambda name: declarations[name].last,
    )
    inexpensive = [
        name for name, spec in declarations.items() if not spec.expensive and spec.needs in ("trace", "view")
    ]
    return [*STORY_ANALYSES, *(name for name in inexpensive if name not in (*STORY_ANALYSES, *last)), *last]


def _flow_requests(for_files: bool, options: Options) -> list[Request]:
    """The analyses of the story, or in addition for files all others."""
    space = {"space": options.get("space", "raw")}
    return [
        report_request(name, **(space if "space" in analysis_by_name(name).settings else {}))
        for name in text_analyses()
        if (name not in STORY_ANALYSES) == for_files
    ]


def flow_plan() -> ReportPlan:
    """The plan of the report on a text."""
    sections = (
        *(Section(line.needs, line_blocks(line)) for line in STORY_LINES),
        Section(STORY_ANALYSES, missing_blocks),
        Section(STORY_ANALYSES, picture_blocks, page_only=True),
        Section(STORY_ANALYSES, card_section.blocks, page_only=True),
        Section(STORY_ANALYSES, next_steps.blocks),
        Section(layer_table.NEEDS, layer_table.blocks, full_only=True),
        *(replace(section, full_only=True) for section in declared_sections(FLOW)),
        replace(findings_section(text_analyses()), full_only=True),
        Section(layer_table.NEEDS, sampling_blocks, full_only=True),
    )
    return ReportPlan(text_blocks.report_title, partial(_flow_requests, False), sections, partial(_flow_requests, True))


def sampling_blocks(results: Results) -> list[Block]:
    """What each analysis sampled from a long text, and the error of that."""
    notes = [words.sampling_note(results.datasets[name]) for name, words in ALL_WORDS.items() if results.has(name)]
    lines = [note for note in notes if note is not None]
    return [Lines(Message("Samples of this long text"), lines)] if lines else []


# Reports that an analysis declares


def own_plan(owner: str, report: OwnReport) -> ReportPlan:
    """The plan of a report that an analysis declares as its own."""
    sections = declared_sections(report.name)
    in_terminal = [section for section in sections if not section.page_only]
    page_only = [section for section in sections if section.page_only]
    names = [name for name, _ in report_runs(report.name, for_files=False)]
    finding_sections = [findings_section(names)] if report.has_findings else []
    return ReportPlan(
        partial(_own_title, report.title),
        partial(_declared_requests, report.name, False),
        (*in_terminal, *finding_sections, *page_only),
        partial(_declared_requests, report.name, True),
        required=owner,
    )


def _own_title(title: Message, results: Results) -> Message:
    return Message(title.template, text=text_blocks.report_title(results), model=results.view.facts["model"])


def report_runs(report: str, for_files: bool) -> list[tuple[str, ReportRun]]:
    """The analyses that a report runs, in their order, for the terminal or in addition for files."""
    runs = [(name, run) for name in ANALYSIS_MODULES for run in analysis_by_name(name).report_runs]
    return sorted(
        ((name, run) for name, run in runs if (run.report, run.for_files) == (report, for_files)),
        key=lambda name_and_run: name_and_run[1].order,
    )


def _declared_requests(report: str, for_files: bool, options: Options) -> list[Request]:
    return [
        Request(name, run.settings_by_key)
        if run.settings_by_key is not None
        else report_request(name, **run.chosen_settings(options))
        for name, run in report_runs(report, for_files)
        if run.applies(options)
    ]


def declared_sections(report: str) -> list[Section]:
    """The sections that analyses declare for a report, in their order."""
    declared = [(name, section) for name, words in ALL_WORDS.items() for section in words.sections]
    ordered = sorted((pair for pair in declared if pair[1].report == report), key=lambda pair: pair[1].order)
    return [Section((name, *section.needs), section.blocks, section.page_only) for name, section in ordered]


def findings_section(names: list[str]) -> Section:
    """The findings, shown once those of these analyses that have candidates have run."""
    return Section(tuple(name for name in analyses_with_findings() if name in names), _finding_blocks)


def _finding_blocks(results: Results) -> list[Block]:
    heading = Message("Significant findings")
    if not results.has_nulls:
        return [Lines(heading, [Message("Nothing was tested: null distributions were not drawn (--fast).")])]
    return [Lines(heading, finding_sentences(*findings(results)))]


def _own_plans() -> Iterator[tuple[str, ReportPlan]]:
    for name, words in ALL_WORDS.items():
        if words.report is not None:
            yield words.report.name, own_plan(name, words.report)


REPORTS: dict[str, ReportPlan] = {FLOW: flow_plan(), **dict(_own_plans())}
"""Name of a report → its plan."""


def report_of_analysis(name: str) -> ReportPlan:
    """The plan of a report on any single analysis of the catalogue: its own tables, or one for each axis of its fields."""
    tables = words_by_name(name).tables or (lambda results: field_blocks.blocks(results, name))
    return ReportPlan(
        lambda results: Message("{analysis}: {text}", analysis=name, text=text_blocks.report_title(results)),
        lambda options: [request(name, **options)],
        (Section((name,), tables),),
        required=name,
    )

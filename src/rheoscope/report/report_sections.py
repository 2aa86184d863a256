"""What the report on a text runs, and the sections of reports, as the analyses declare them."""

from dataclasses import replace

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.messages.message import Message
from rheoscope.picture.blocks import Block, Lines
from rheoscope.report import card_section, layer_table, next_steps
from rheoscope.report.analysis_runs import Request
from rheoscope.report.findings import ALL_WORDS, analyses_with_findings, finding_sentences, findings
from rheoscope.report.report_plan import FLOW, Options, Section
from rheoscope.report.report_settings import report_request
from rheoscope.report.story import STORY_ANALYSES, STORY_LINES, line_blocks, missing_blocks, picture_blocks
from rheoscope.space.results import Results


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


def text_requests(for_files: bool, options: Options) -> list[Request]:
    """The analyses of the story, or in addition for files all others."""
    space = {"space": options.get("space", "raw")}
    return [
        report_request(name, **(space if "space" in analysis_by_name(name).settings else {}))
        for name in text_analyses()
        if (name not in STORY_ANALYSES) == for_files
    ]


def text_sections() -> tuple[Section, ...]:
    """The sections of the report on a text."""
    return (
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


def sampling_blocks(results: Results) -> list[Block]:
    """What each analysis sampled from a long text, and the error of that."""
    notes = [words.sampling_note(results.datasets[name]) for name, words in ALL_WORDS.items() if results.has(name)]
    lines = [note for note in notes if note is not None]
    return [Lines(Message("Samples of this long text"), lines)] if lines else []


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

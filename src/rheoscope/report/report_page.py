"""A report as one HTML page: the text, the answers, every table, every picture, and the origin of the numbers."""

from collections.abc import Sequence
from pathlib import Path

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.files import check_writable
from rheoscope.messages.catalogue import current_language, use_language
from rheoscope.messages.message import Message, join
from rheoscope.picture.blocks import Block, Drawing, Story, with_text_number
from rheoscope.report import card_section, layer_table, text_blocks
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.block_html import block_heading, block_html
from rheoscope.report.card_cache import find_card
from rheoscope.report.comparison_picture import picture as comparison_picture
from rheoscope.report.draw_result import picture_of
from rheoscope.report.page import Page
from rheoscope.report.report_plan import ReportPlan
from rheoscope.report.studio_link import add_studio_link
from rheoscope.report.text_report import TEXT_REPORT
from rheoscope.space.model import Model, check_same_weights
from rheoscope.space.results import Results
from rheoscope.space.trace import Trace


def save_report(model: Model, trace: Trace, path: str | Path, space: str = "raw") -> str:
    """One self-contained HTML file about a text in a model. It works offline, in print and on a phone.

    **Returns** the sentence "wrote …" or "replaced …", followed by the analyses that failed. A file that Rheoscope did not write
    is never overwritten.

    **Contents** The page shows the tokens, the story of the text with its pictures, and the card of the model if one is stored.
    Everything else is folded below: a table of layers, the prediction after each layer, the heads as operators and by type, and
    up to five significant findings. The picture of every inexpensive analysis of a text follows, with heads coloured by type,
    and the provenance of every number. Skipped analyses are listed with the reason.

    **Settings** `space` is raw, normed or sphere.

    **See also** `rs.plot` and `rs.show` draw one of the pictures, for papers and for notebooks.

    >>> import rheoscope as rs, tempfile
    >>> model = rs.load()
    >>> rs.save_report(model, model.trace("The keys to the cabinet are"), tempfile.mkdtemp() + "/report.html").split()[0]
    'wrote'
    """
    check_same_weights(model, trace)
    check_writable(Path(path))
    requests = TEXT_REPORT.all_requests({"space": space})
    results = run_analyses(Subject(model, trace.source, trace), requests, card=find_card(model.view))
    failures = [
        Message("{analysis} failed: {reason}", analysis=key, reason=results.reason(key)) for key in results.failed_keys
    ]
    return join("; ", [report_page(TEXT_REPORT, results).save(Path(path)), *failures])


def report_page(plan: ReportPlan, results: Results) -> Page:
    """The page of one report: what the terminal shows, the card, then all other sections and the pictures, which open."""
    with use_language(current_language()):  # asked once, not for each of thousands of messages
        return _report_page(plan, results)


def _report_page(plan: ReportPlan, results: Results) -> Page:
    page = Page(plan.title(results), text_blocks.lead_text(results))
    tokens: list[Block] = [*text_blocks.source_blocks(results)]
    tokens += [] if results.trace is None else [text_blocks.token_block(results)]
    pictures = result_pictures(results)
    first, others = (
        merge_stories(
            [block for section in plan.sections if section.full_only == is_full for block in section.blocks(results)]
        )
        for is_full in (False, True)
    )
    skipped, origin = text_blocks.skipped_blocks(results), text_blocks.provenance_block(results)
    if not others:
        return add_studio_link(add_blocks(page, [*tokens, *first, *pictures, *skipped, origin]), results)
    page = add_folds(add_blocks(page, [*tokens, *first]), [*others, *pictures, *skipped, origin])
    return add_studio_link(page, results)


def comparison_page(plan: ReportPlan, first_results: Results, second_results: Results) -> Page:
    """The page of two texts: every layer of both, then the sections and pictures of each."""
    page = Page(
        join(" | ", [text_blocks.report_title(first_results), text_blocks.report_title(second_results)]),
        text_blocks.lead_text(first_results, second_results),
    )
    blocks: list[Block] = [
        text_blocks.token_block(first_results, Message("Text {number}", number=1)),
        text_blocks.token_block(second_results, Message("Text {number}", number=2)),
    ]
    blocks += layer_table.comparison_blocks(first_results, second_results)
    if layer_table.available_columns(first_results.datasets):
        blocks.append(Drawing(comparison_picture(first_results, second_results)))
    for number, results in enumerate((first_results, second_results), 1):
        section_blocks = [
            block
            for section in plan.sections
            if section.blocks not in (layer_table.blocks, card_section.blocks)
            for block in section.blocks(results)
        ]
        blocks += [
            with_text_number(block, number)
            for block in (
                *merge_stories(section_blocks),
                *result_pictures(results),
                *text_blocks.skipped_blocks(results),
            )
        ]
        blocks.append(
            text_blocks.provenance_block(results, Message("Origin of the numbers of text {number}", number=number))
        )
    return add_studio_link(add_blocks(page, blocks), first_results, second_results)


def result_pictures(results: Results) -> list[Drawing]:
    """The picture of every result, in the order of the catalogue. Maps of heads are coloured by the types of heads."""
    names = [name for name in ANALYSIS_MODULES if results.has(name)]
    types = next((results.datasets[name] for name in names if analysis_by_name(name).classifies_heads), None)
    return [
        Drawing(picture_of(results.datasets[key], token_strings=results.token_strings, types=types)) for key in names
    ]


def add_blocks(page: Page, blocks: Sequence[Block]) -> Page:
    """The page with these blocks at its end."""
    for block in blocks:
        page = page.with_section(block_heading(block), block_html(block))
    return page


def add_folds(page: Page, blocks: Sequence[Block]) -> Page:
    """The page with these blocks at its end. Each shows its heading and opens."""
    for block in blocks:
        page = page.with_fold(block_heading(block), block_html(block))
    return page


def merge_stories(blocks: Sequence[Block]) -> list[Block]:
    """Consecutive lines and pictures of a story as one block. The terminal prints them one by one."""
    merged: list[Block] = []
    for block in blocks:
        if isinstance(block, Story) and not block.heading and merged and isinstance(previous := merged[-1], Story):
            merged[-1] = Story(
                previous.heading,
                [*previous.lines, *block.lines],
                block.note or previous.note,
                [*previous.panels, *block.panels],
            )
        else:
            merged.append(block)
    return merged

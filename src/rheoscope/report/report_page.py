"""Answers as one page: the text, what was found, every table, every picture, and where the numbers come from."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.files import check_writable
from rheoscope.picture.blocks import Block, Drawing, Facts, Lines, Questions, Table, Tokens, with_heading_suffix
from rheoscope.report import layer_table, text_blocks
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.comparison_picture import picture as comparison_picture
from rheoscope.report.draw_result import picture_of
from rheoscope.report.page import Page
from rheoscope.report.report_plans import REPORTS, ReportPlan
from rheoscope.report.studio_link import add_studio_link
from rheoscope.space.model import Model, check_same_weights
from rheoscope.space.results import Results
from rheoscope.space.trace import Trace


def save_report(model: Model, trace: Trace, path: str | Path, space: str = "raw") -> str:
    """One self-contained HTML file about a text in a model: opens without a network, prints, and fits a phone.

    **Gives** the sentence "wrote …", or "replaced …" where there was a report of that name, and behind it the names of analyses
    that failed, where there are any. A file that Rheoscope did not write is never overwritten.

    **Holds** the text as tokens, a row a layer, what each layer says comes next, up to five findings that beat their nulls, the
    heads as operators, and the picture of every analysis of a text that is not dear (`rs.analyses()` lists them all), maps of
    heads coloured by their types; and the provenance of every number. An analysis that cannot say anything of this text is
    named with its reason. `space` is raw, normed or sphere.

    **Relation** `plot` and `show` draw one of the pictures, for papers and for notebooks.

    >>> import rheoscope as rs, tempfile
    >>> model = rs.load()
    >>> rs.save_report(model, model.trace("The keys to the cabinet are"), tempfile.mkdtemp() + "/report.html").split()[0]
    'wrote'
    """
    check_same_weights(model, trace)
    check_writable(Path(path))
    plan = REPORTS["flow"]
    results = run_analyses(Subject(model, trace.text or trace.ids, trace), plan.requests({"space": space}))
    failure_note = "".join(f"; {name} failed, {results.skipped[name]}" for name in results.failed_keys)
    return report_page(plan, results).save(Path(path)) + failure_note


def report_page(plan: ReportPlan, results: Results) -> Page:
    """The page of one command: questions and their answers, the cloud itself, every table, every other picture."""
    page = Page(plan.title(results), text_blocks.lead_text(results))
    blocks: list[Block] = [] if results.trace is None else [text_blocks.token_block(results)]
    blocks += merge_questions([block for section in plan.sections for block in section.blocks(results)])
    pictures = result_pictures(results)
    split_index = next((index + 1 for index, block in enumerate(blocks) if isinstance(block, Questions)), len(blocks))
    blocks = [*blocks[:split_index], *pictures[:1], *blocks[split_index:], *pictures[1:]]
    return add_studio_link(
        add_blocks(page, [*blocks, *text_blocks.skipped_blocks(results), text_blocks.provenance_block(results)]),
        results,
    )


def comparison_page(plan: ReportPlan, first_results: Results, second_results: Results) -> Page:
    """Two texts: every layer side by side, then each with its tables and pictures."""
    page = Page(
        f"{text_blocks.report_title(first_results)} | {text_blocks.report_title(second_results)}",
        text_blocks.lead_text(first_results, second_results),
    )
    blocks: list[Block] = [
        text_blocks.token_block(first_results, "Text 1"),
        text_blocks.token_block(second_results, "Text 2"),
    ]
    blocks += layer_table.comparison_blocks(first_results, second_results)
    if layer_table.available_columns(first_results.datasets):
        blocks.append(Drawing(comparison_picture(first_results, second_results)))
    for name, results in (("text 1", first_results), ("text 2", second_results)):
        section_blocks = [
            block
            for section in plan.sections
            if section.blocks is not layer_table.blocks
            for block in section.blocks(results)
        ]
        blocks += [
            with_heading_suffix(block, f" ({name})")
            for block in (
                *merge_questions(section_blocks),
                *result_pictures(results),
                *text_blocks.skipped_blocks(results),
            )
        ]
        blocks.append(text_blocks.provenance_block(results, f"Where the numbers of {name} come from"))
    return add_studio_link(add_blocks(page, blocks), first_results, second_results)


def result_pictures(results: Results) -> list[Drawing]:
    """The picture of every answer, in the order in which people read them (that of the catalogue); one where it was asked
    several times. Maps of heads are coloured by the types of heads.
    """
    types = results.datasets.get("head_types")
    names = [name for name in ANALYSIS_MODULES if name in results.datasets]
    return [
        Drawing(picture_of(results.datasets[key], token_strings=results.token_strings, types=types)) for key in names
    ]


def add_blocks(page: Page, blocks: list[Block]) -> Page:
    """Every block on the page, one after the other."""
    for block in blocks:
        match block:
            case Questions():
                page = page.with_section(block.heading, questions_html(block))
            case Table():
                page = page.with_table(
                    block.heading, block.header, block.rows, block.text_columns, block.small_caption or block.note
                )
            case Lines():
                page = page.with_lines(block.heading, block.lines)
            case Tokens():
                page = page.with_section(block.heading, tokens_html(block))
            case Drawing():
                page = page.with_picture(block.picture)
            case Facts():
                page = page.with_facts(block.heading, block.facts)
    return page


def merge_questions(blocks: Sequence[Block]) -> list[Block]:
    """Questions that follow each other as one block: the terminal tells them one by one."""
    merged: list[Block] = []
    for block in blocks:
        if (
            isinstance(block, Questions)
            and not block.heading
            and merged
            and isinstance(previous := merged[-1], Questions)
        ):
            merged[-1] = replace(
                previous, questions=[*previous.questions, *block.questions], note=block.note or previous.note
            )
        else:
            merged.append(block)
    return merged


def questions_html(block: Questions) -> str:
    """Every question with its answer as a mark, the line that says why, and the command that goes deeper."""
    items = []
    for item in block.questions:
        css_class = item.answer.split(" · ")[0].replace(" ", "-")
        badge = f'<b class="answer {escape(css_class, quote=True)}">{escape(item.answer)}</b>'
        deeper = f"<code>{escape(item.deeper)}</code>"
        items.append(f"<dt>{badge} {escape(item.question)}</dt><dd>{escape(item.line)} {deeper}</dd>")
    return f'<dl class="questions">{"".join(items)}</dl><p class="caption">{escape(block.note)}</p>'


def tokens_html(block: Tokens) -> str:
    """Every token in its place, marked ones standing out, the rest under the pointer."""
    items = []
    for index, (token_text, tip) in enumerate(zip(block.token_texts, block.tips, strict=True)):
        css_class = ' class="massive"' if index in block.marked_tokens else ""
        items.append(f'<li{css_class} title="{escape(tip, quote=True)}">{escape(token_text)}</li>')
    return f'<ol class="tokens">{"".join(items)}</ol>'

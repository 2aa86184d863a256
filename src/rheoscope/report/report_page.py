"""Answers as one page: the text, what was found, every table, every picture, and where the numbers come from."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from rheoscope.catalogue import TABLE
from rheoscope.files import check_free
from rheoscope.picture.blocks import Block, Drawing, Facts, Lines, Questions, Table, Tokens, named
from rheoscope.report import layer_table, text_blocks
from rheoscope.report.comparison_picture import picture as picture_compared
from rheoscope.report.draw_result import picture_of
from rheoscope.report.page import Page
from rheoscope.report.report_plans import JOBS, Job
from rheoscope.report.run_analyses import Subject, ask
from rheoscope.report.studio_link import with_studio
from rheoscope.space.model import Model, check_made_by
from rheoscope.space.results import Answers
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
    check_made_by(model, trace)
    check_free(Path(path))
    job = JOBS["flow"]
    answers = ask(Subject(model, trace.text or trace.ids, trace), job.asks({"space": space}))
    failed = "".join(f"; {name} failed, {answers.left_out[name]}" for name in answers.failed)
    return page_of(job, answers).save(Path(path)) + failed


def page_of(job: Job, answers: Answers) -> Page:
    """The page of one command: questions and their answers, the cloud itself, every table, every other picture."""
    page = Page(job.title(answers), text_blocks.lead(answers))
    blocks: list[Block] = [] if answers.trace is None else [text_blocks.tokens(answers)]
    blocks += joined([block for one in job.tells for block in one.blocks(answers)])
    pictures = drawings(answers)
    after = next((at + 1 for at, block in enumerate(blocks) if isinstance(block, Questions)), len(blocks))
    blocks = [*blocks[:after], *pictures[:1], *blocks[after:], *pictures[1:]]
    return with_studio(drawn(page, [*blocks, *text_blocks.left_out(answers), text_blocks.provenance(answers)]), answers)


def compared_page(job: Job, first: Answers, second: Answers) -> Page:
    """Two texts: every layer side by side, then each with its tables and pictures."""
    page = Page(f"{text_blocks.title(first)} | {text_blocks.title(second)}", text_blocks.lead(first, second))
    blocks: list[Block] = [text_blocks.tokens(first, "Text 1"), text_blocks.tokens(second, "Text 2")]
    blocks += layer_table.compared(first, second)
    if layer_table.columns(first.found):
        blocks.append(Drawing(picture_compared(first, second)))
    for name, answers in (("text 1", first), ("text 2", second)):
        told = [block for one in job.tells if one.blocks is not layer_table.blocks for block in one.blocks(answers)]
        blocks += [
            named(block, f" ({name})") for block in (*joined(told), *drawings(answers), *text_blocks.left_out(answers))
        ]
        blocks.append(text_blocks.provenance(answers, f"Where the numbers of {name} come from"))
    return with_studio(drawn(page, blocks), first, second)


def drawings(answers: Answers) -> list[Drawing]:
    """The picture of every answer, in the order in which people read them (that of the catalogue); one where it was asked
    several times. Maps of heads are coloured by the types of heads.
    """
    types = answers.found.get("head_types")
    once = [name for name in TABLE if name in answers.found]
    return [Drawing(picture_of(answers.found[key], words=answers.words, types=types)) for key in once]


def drawn(page: Page, blocks: list[Block]) -> Page:
    """Every block on the page, one after the other."""
    for block in blocks:
        match block:
            case Questions():
                page = page.section(block.heading, question_list(block))
            case Table():
                page = page.table(block.heading, block.header, block.rows, block.words, block.small or block.note)
            case Lines():
                page = page.lines(block.heading, block.lines)
            case Tokens():
                page = page.section(block.heading, token_strip(block))
            case Drawing():
                page = page.drawing(block.picture)
            case Facts():
                page = page.facts(block.heading, block.facts)
    return page


def joined(blocks: Sequence[Block]) -> list[Block]:
    """Questions that follow each other as one block: the terminal tells them one by one."""
    found: list[Block] = []
    for block in blocks:
        if isinstance(block, Questions) and not block.heading and found and isinstance(last := found[-1], Questions):
            found[-1] = replace(last, answered=[*last.answered, *block.answered], note=block.note or last.note)
        else:
            found.append(block)
    return found


def question_list(block: Questions) -> str:
    """Every question with its answer as a mark, the line that says why, and the command that goes deeper."""
    items = []
    for one in block.answered:
        kind = one.answer.split(" · ")[0].replace(" ", "-")
        mark = f'<b class="answer {escape(kind, quote=True)}">{escape(one.answer)}</b>'
        deeper = f"<code>{escape(one.deeper)}</code>"
        items.append(f"<dt>{mark} {escape(one.question)}</dt><dd>{escape(one.line)} {deeper}</dd>")
    return f'<dl class="questions">{"".join(items)}</dl><p class="caption">{escape(block.note)}</p>'


def token_strip(block: Tokens) -> str:
    """Every token in its place, marked ones standing out, the rest under the pointer."""
    items = []
    for at, (word, tip) in enumerate(zip(block.words, block.tips, strict=True)):
        kind = ' class="massive"' if at in block.marked else ""
        items.append(f'<li{kind} title="{escape(tip, quote=True)}">{escape(word)}</li>')
    return f'<ol class="tokens">{"".join(items)}</ol>'

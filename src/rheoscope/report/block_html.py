"""The blocks of a report as HTML: tables, rows that open, sentences, tokens, facts, stories and pictures."""

from collections.abc import Mapping, Sequence

from rheoscope.messages.message import Message
from rheoscope.picture.blocks import (
    Block,
    Cell,
    Commands,
    Drawing,
    Facts,
    Lines,
    OpeningRow,
    OpeningRows,
    RowDetail,
    Story,
    Table,
    Tokens,
    to_cells,
)
from rheoscope.report.draw.inline import captioned_html, legend_html, panel_html, picture_html
from rheoscope.report.draw.strip import strip_svg
from rheoscope.report.html_text import html_text


def block_heading(block: Block) -> str:
    """The heading of a block. That of a picture is its title."""
    return block.picture.title if isinstance(block, Drawing) else block.heading


def block_html(block: Block) -> str:
    """The content of a block, below its heading."""
    match block:
        case Story():
            return story_html(block)
        case Table():
            note = block.small_caption or block.note
            return table_html(block.header, block.rows, block.text_columns, note)
        case OpeningRows():
            return rows_html(block)
        case Commands():
            return commands_html(block)
        case Lines():
            return lines_html(block.lines)
        case Tokens():
            return tokens_html(block)
        case Drawing():
            return picture_html(block.picture)
        case Facts():
            return facts_html(block.facts)


def story_html(block: Story) -> str:
    """Every line with its title, its sentence, and the command that shows more. Pictures follow, with their captions."""
    items = [
        f"<dt>{html_text(line.title)}</dt><dd>{html_text(line.sentence)}{deeper_html(line.deeper)}</dd>"
        for line in block.lines
    ]
    note = f'<p class="caption">{html_text(block.note)}</p>' if block.note else ""
    pictures = f'<div class="panels story">{"".join(map(captioned_html, block.panels))}</div>' if block.panels else ""
    return f'<dl class="story">{"".join(items)}</dl>{note}{pictures}'


def deeper_html(command: str) -> str:
    """The command behind a line of a story. Empty without one."""
    return f" <code>{html_text(command)}</code>" if command else ""


def commands_html(block: Commands) -> str:
    """The sentence, and every command below its purpose."""
    setup = {block.setup: Message("First, the text:")} if block.setup else {}
    items = [
        f"<dt>{html_text(purpose)}</dt><dd><code>{html_text(command)}</code></dd>"
        for command, purpose in {**setup, **block.purposes}.items()
    ]
    return f'<p>{html_text(block.line)}</p><dl class="commands">{"".join(items)}</dl>'


def tokens_html(block: Tokens) -> str:
    """The tokens of the text. Marked ones are highlighted, and every token has a tooltip."""
    items = []
    for index, (token_text, tip) in enumerate(zip(block.token_texts, block.tips, strict=True)):
        css_class = ' class="massive"' if index in block.marked_tokens else ""
        items.append(f'<li{css_class} title="{html_text(tip)}">{html_text(token_text)}</li>')
    return f'<ol class="tokens">{"".join(items)}</ol>'


def lines_html(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html_text(line)}</li>' for line in lines)}</ul>"


def facts_html(facts: Mapping[str, str]) -> str:
    """Names and values in two columns."""
    rows = "".join(f"<dt>{html_text(name)}</dt><dd>{html_text(value)}</dd>" for name, value in facts.items())
    return f"<dl>{rows}</dl>"


def table_html(
    header: Sequence[str | Cell],
    rows: Sequence[Sequence[str | Cell]],
    text_columns: frozenset[int] | None = None,
    note: str = "",
) -> str:
    """A table. Columns outside `text_columns` are right-aligned; by default all columns hold text."""
    css_class = "" if text_columns is None else " class=numbers"
    left_aligned = text_columns or frozenset()
    head = "".join(_cell_html("th", cell, index in left_aligned) for index, cell in enumerate(to_cells(header)))
    body = "".join(
        f"<tr>{''.join(_cell_html('td', cell, index in left_aligned) for index, cell in enumerate(to_cells(row)))}</tr>"
        for row in rows
    )
    table = f"<table{css_class}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    note_html = f'<p class="caption">{html_text(note)}</p>' if note else ""
    return f'<div class="scroll">{table}</div>{note_html}'


def _cell_html(tag: str, cell: Cell, is_text: bool) -> str:
    title_attribute = f' title="{html_text(cell.definition)}"' if cell.definition else ""
    small_html = f" <small>{html_text(cell.small_text)}</small>" if cell.small_text else ""
    css_class = " class=word" if is_text else ""
    return f"<{tag}{css_class}><span{title_attribute}>{html_text(cell.text)}</span>{small_html}</{tag}>"


def rows_html(block: OpeningRows) -> str:
    """A forest plot whose rows open. Its scale is above the strips."""
    scale = f'<div class="row scale-row"><span></span>{strip_svg(block.scale)}<span></span><span></span></div>'
    header = f'<p class="caption">{html_text(block.caption)}</p>{legend_html(dict(block.legend))}'
    return f'{header}<div class="rows">{scale}{"".join(map(row_html, block.rows))}</div>'


def row_html(row: OpeningRow) -> str:
    """One row: its title, its strip, its answer and its number, and the details that it opens to."""
    cells = f"<b>{html_text(row.answer)}</b><small>{html_text(row.number)}</small>"
    summary = f'<summary class="row"><span>{html_text(row.title)}</span>{strip_svg(row.strip)}{cells}</summary>'
    return f"<details>{summary}{''.join(map(detail_html, row.details))}</details>"


def detail_html(detail: RowDetail) -> str:
    """Names and values, next to their panel."""
    return f'<div class="detail">{facts_html(detail.facts)}{panel_html(detail.panel)}</div>'

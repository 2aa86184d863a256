"""`rheoscope heal`: how soon a loss is back, as a table in the terminal, as files, and as a page."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rheoscope.learn.healing import ARMS, HEALING, Healing, heal
from rheoscope.models.text_files import fragments
from rheoscope.picture.blocks import Cell, Table
from rheoscope.report.console import console
from rheoscope.report.draw_result import picture_of
from rheoscope.report.page import Page
from rheoscope.report.progress_bars import asking_bar, opened
from rheoscope.report.run_report import Files, write
from rheoscope.report.terminal import Terminal
from rheoscope.running.runner import Running

if TYPE_CHECKING:
    import xarray

SAID = {
    "untouched": "the model as it is, trained on",
    "symmetric": "M made symmetric at step 0, then free",
    "symmetric_kept": "M made symmetric, and kept so",
    "size": "random, of the same singular values",
    "cloud": "random, as large on the text",
    "spectrum": "M at random, of the spectrum of the symmetric one",
}
LETTERS = 20_000
"""Of a text that is tokenised as one."""
TOGETHER = 64
"""Such texts that are tokenised at once."""
NOTE = "Back: within 1 % of the untouched model's loss, before any training (healed) or trained on as many tokens (caught up)."


def show(
    name: str | None,
    device: str | None,
    data: Sequence[Path],
    out: Path,
    how: Healing,
    arms: Sequence[str] | None,
    files: Files,
    explain: bool = False,
) -> None:
    """What `rheoscope heal` does."""
    terminal, model = Terminal(console(), [], explain), opened(name, device, "float32")
    found = heal(model, tokens_of(model, data), out, how, arms or ARMS, tell)
    terminal.show(table_of(found))
    terminal.files(write({"healing": found}, page_of(found).save if files.page else None, files))


def tell(arm: str, tokens: int, loss: float) -> None:
    """A line for every measurement, on stderr."""
    console(stderr=True).print(f"{arm}: held-out loss {loss:.4f} after {tokens:,} tokens")


def tokens_of(model: Running, files: Sequence[Path]) -> torch.Tensor:
    """All tokens of some files, read as `rheoscope train` reads them, an empty line between documents; a tokenizer that begins every
    text with a token begins one in so many letters with it."""
    with asking_bar("reading") as told:
        text = "".join("\n\n" if one is None else one for file in files for one in fragments(file))
        pieces = [text[at : at + LETTERS] for at in range(0, len(text), LETTERS)]
        hear, found = told("tokenising"), [torch.zeros(0, dtype=torch.long)]
        for low in range(0, len(pieces), TOGETHER):
            found += map(torch.tensor, model.encode_many(pieces[low : low + TOGETHER]))
            hear(len(found) - 1, len(pieces))
    return torch.cat(found)


def table_of(found: "xarray.Dataset") -> Table:
    """A row an arm."""
    header = [
        Cell("arm"),
        Cell("what it is"),
        Cell("loss at first"),
        Cell("at the end", found.loss.attrs["definition"]),
        Cell("healed after", found.tokens_to_heal.attrs["definition"]),
        Cell("caught up after", found.tokens_to_catch_up.attrs["definition"]),
    ]
    rows = []
    for arm in map(str, found.arm.values):
        one = found.sel(arm=arm)
        after = [tokens_in_words(float(one[name])) for name in ("tokens_to_heal", "tokens_to_catch_up")]
        ends = f"{float(one.loss[0]):.4f}", f"{float(one.loss[-1]):.4f}"
        rows.append([Cell(arm, style="bold"), Cell(SAID[arm]), *map(Cell, (*ends, *after))])
    return Table(HEALING.question, header, rows, frozenset({0, 1}), note=NOTE)


def tokens_in_words(count: float) -> str:
    """A number of tokens, or that it did not come to it.

    >>> tokens_in_words(4096.0), tokens_in_words(float("nan"))
    ('4,096', 'not yet')
    """
    return "not yet" if math.isnan(count) else f"{count:,.0f}"


def page_of(found: "xarray.Dataset") -> Page:
    """The losses, and the table."""
    table = table_of(found)
    page = Page(HEALING.question, NOTE).drawing(picture_of(found))
    return page.table("Every arm", table.header, table.rows, table.words).facts(
        "How", {str(name): str(value) for name, value in found.attrs.items()}
    )

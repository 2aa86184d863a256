"""The output of `rheoscope heal`: a table in the terminal, files and a page."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rheoscope.learn.healing import ARMS, HEALING, HealingSettings, heal
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.models.text_files import read_fragments
from rheoscope.picture.blocks import Cell, Table
from rheoscope.report.console import console
from rheoscope.report.draw_result import picture_of
from rheoscope.report.page import Page
from rheoscope.report.progress_bars import load_model, progress_bar
from rheoscope.report.run_report import OutputFiles, write_files
from rheoscope.report.terminal import Terminal
from rheoscope.running.runner import RunnableModel

if TYPE_CHECKING:
    import xarray

ARM_DESCRIPTIONS = {
    "untouched": Message("the model as it is, fine-tuned"),
    "symmetric": Message("M made symmetric at step 0, then free"),
    "symmetric_kept": Message("M kept symmetric at every step"),
    "size": Message("random change with the same singular values"),
    "cloud": Message("random change of the same size on the text"),
    "spectrum": Message("random M with the spectrum of the symmetric M"),
}
CHUNK_CHARACTERS = 20_000
"""The length of the pieces that are tokenised separately."""
CHUNKS_PER_BATCH = 64
"""The number of pieces that are tokenised in one call."""
NOTE = Message(
    "A loss has healed when it is within 1 % of the untouched model's initial loss. It has caught up when it is within 1 % "
    "of the untouched model after the same number of tokens."
)


def run_healing(
    model_name: str | None,
    device: str | None,
    data: Sequence[Path],
    out: Path,
    settings: HealingSettings,
    arms: Sequence[str] | None,
    files: OutputFiles,
    explain: bool = False,
) -> None:
    """Run `rheoscope heal`."""
    terminal, model = Terminal(console(), [], explain), load_model(model_name, device, "float32")
    result = heal(model, tokenise_files(model, data), out, settings, arms or ARMS, print_measurement)
    terminal.print_block(build_table(result))
    terminal.print_files(write_files({"healing": result}, build_page(result).save if files.wants_page else None, files))


def print_measurement(arm: str, tokens: int, loss: float) -> None:
    """Print a measurement on stderr."""
    line = Message("{arm}: held-out loss {loss:.4f} after {tokens:,} tokens", arm=arm, loss=loss, tokens=tokens)
    console(stderr=True).print(render(line))


def tokenise_files(model: RunnableModel, files: Sequence[Path]) -> torch.Tensor:
    """The tokens of all files, read as `rheoscope train` reads them, with an empty line between documents.

    The text is tokenised in pieces of `CHUNK_CHARACTERS`. A tokenizer that starts every text with a special token
    starts every piece with it.
    """
    with progress_bar(Message("reading")) as start_task:
        text = "".join("\n\n" if fragment is None else fragment for file in files for fragment in read_fragments(file))
        chunks = [text[start : start + CHUNK_CHARACTERS] for start in range(0, len(text), CHUNK_CHARACTERS)]
        on_progress, token_ids = start_task(Message("tokenising")), [torch.zeros(0, dtype=torch.long)]
        for first_chunk in range(0, len(chunks), CHUNKS_PER_BATCH):
            token_ids += map(torch.tensor, model.encode_batch(chunks[first_chunk : first_chunk + CHUNKS_PER_BATCH]))
            on_progress(len(token_ids) - 1, len(chunks))
    return torch.cat(token_ids)


def build_table(result: "xarray.Dataset") -> Table:
    """One row per arm."""
    header = [
        Cell(Message("arm")),
        Cell(Message("description")),
        Cell(Message("initial loss")),
        Cell(Message("final loss"), result.loss.attrs["definition"]),
        Cell(Message("healed after"), result.tokens_to_heal.attrs["definition"]),
        Cell(Message("caught up after"), result.tokens_to_catch_up.attrs["definition"]),
    ]
    rows = []
    for arm in map(str, result.arm.values):
        arm_result = result.sel(arm=arm)
        token_counts = [format_tokens(float(arm_result[name])) for name in ("tokens_to_heal", "tokens_to_catch_up")]
        first_and_last_loss = f"{float(arm_result.loss[0]):.4f}", f"{float(arm_result.loss[-1]):.4f}"
        rows.append(
            [Cell(arm, style="bold"), Cell(ARM_DESCRIPTIONS[arm]), *map(Cell, (*first_and_last_loss, *token_counts))]
        )
    return Table(HEALING.question, header, rows, frozenset({0, 1}), note=NOTE)


def format_tokens(n_tokens: float) -> str:
    """A number of tokens, or "not yet".

    >>> format_tokens(4096.0), format_tokens(float("nan"))
    ('4,096', 'not yet')
    """
    return Message("not yet") if math.isnan(n_tokens) else f"{n_tokens:,.0f}"


def build_page(result: "xarray.Dataset") -> Page:
    """The losses, and the table."""
    table = build_table(result)
    page = Page(HEALING.question, NOTE).with_picture(picture_of(result))
    return page.with_table(Message("All arms"), table.header, table.rows, table.text_columns).with_facts(
        Message("Settings"), {str(name): str(value) for name, value in result.attrs.items()}
    )

"""How the loss wants attention to change, in the terminal: the heads it pulls at most, and the tokens they should look at."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.covers.patching import ETAS, attention_patching
from rheoscope.covers.reversed_attention import backward, of_one, reversed_attention
from rheoscope.report.answers import Answers, types_of
from rheoscope.report.dataset import save_json
from rheoscope.report.flow_page import picture_of, provenance, shortened, token_strip
from rheoscope.report.page import Page
from rheoscope.report.tokens import shown
from rheoscope.space.model import Model
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray
    from rich.table import Table

STEP = -0.1
"""The η whose effect is told: weights moved a tenth of R against it."""


@dataclass(frozen=True)
class Pulled:
    """A head, ‖R‖, and the tokens whose scores should rise and fall, with Σ_i R_ij of each."""

    layer: int
    head: int
    norm: float
    more: list[tuple[int, float]]
    less: list[tuple[int, float]]


def strongest(model: Model, trace: Trace, found: "xarray.Dataset", top: int) -> list[Pulled]:
    """The heads that are pulled at most, and at what; one backward pass for all of them."""
    pulled = backward(model, trace, int(found.attrs["target"]), int(found.attrs["position"]))[1]
    norm, heads = found.norm.values, found.sizes["head"]
    rows = []
    for at in norm.ravel().argsort()[::-1][:top]:
        layer, head = divmod(int(at), heads)
        column = of_one(trace, layer, head, pulled[layer]).sum(0)
        order = column.argsort().tolist()
        more = [(token, float(column[token])) for token in order[:2] if column[token] < 0]
        less = [(token, float(column[token])) for token in order[::-1][:2] if column[token] > 0]
        rows.append(Pulled(layer, head, float(norm[layer, head]), more, less))
    return rows


def pull_table(rows: list[Pulled], tokens: list[str]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("head", "‖R‖"):
        table.add_column(column, justify="left" if column == "head" else "right", no_wrap=True, min_width=7)
    for column in ("should look more at", "should look less at"):
        table.add_column(column, overflow="ellipsis", no_wrap=True)

    def named(some: list[tuple[int, float]]) -> str:
        return "  ".join(f"{escape(shown(tokens[token]))} [dim]{token} {value:+.3f}[/]" for token, value in some)

    for row in rows:
        table.add_row(f"L{row.layer}.H{row.head}", f"{row.norm:.4f}", named(row.more), named(row.less))
    return table


def sentences(
    found: "xarray.Dataset", patched: "xarray.Dataset", rows: list[Pulled], tokens: list[str], target: str
) -> list[str]:
    """What the pull says: how likely the target is, which head, how gathered the pull is, and whether following it helps."""
    norm, loss = found.norm.values.ravel(), float(found.loss)
    few = max(1, len(norm) // 20)
    share = sum(sorted(norm.tolist())[-few:]) / max(float(norm.sum()), 1e-30)
    first = rows[0]
    at = f" at {shown(tokens[first.more[0][0]])} (token {first.more[0][0]})" if first.more else ""
    after, expected = float(patched.loss.sel(eta=STEP)), float(patched.predicted.sel(eta=STEP))
    return [
        f"The model gives {target} the probability {math.exp(-loss):.3g} ({loss:.3f} nats).",
        f"The loss pulls hardest at L{first.layer}.H{first.head}, which should look more{at}.",
        f"The strongest {few} of {len(norm)} heads have {share:.0%} of the pull; spread evenly it would be {few / len(norm):.0%}.",
        f"All weights moved by {STEP} R: the loss becomes {after:.3f} (to first order {expected:.3f}).",
    ]


def reverse_page(model: Model, told: Answers, rows: list[Pulled], lines: list[str], target: str) -> Page:
    """The sentences, the heads that are pulled at, and both pictures, heads marked by their types."""
    tokens, at = told.trace.tokens, int(told.found["reversed_attention"].attrs["position"])
    lead = (
        f"{model.view.facts['model']}: how the loss −log p({target}) after {shown(tokens[at])}, token {at}, wants attention to change. "
        "R is the gradient of the scores; where it is negative, a score should rise."
    )
    page = Page(f"Reversed attention: {shortened(told.trace)}", lead).section("The text", token_strip(told))
    page = page.lines("What the pull says", lines)

    def named(some: list[tuple[int, float]]) -> str:
        return ", ".join(f"{shown(tokens[token])} {token} ({value:+.3f})" for token, value in some)

    table = [[f"L{row.layer}.H{row.head}", f"{row.norm:.4f}", named(row.more), named(row.less)] for row in rows]
    page = page.table(
        "The heads that are pulled at most", ["head", "‖R‖", "should look more at", "should look less at"], table
    )
    for name in ("reversed_attention", "patching"):
        page = page.drawing(picture_of(name, told, model.words))
    return page.facts("Where the numbers come from", provenance(told.trace, told))


def show(
    model: Model,
    text: str,
    target: str | None,
    position: int,
    top: int,
    json_file: Path | None,
    html: Path | None = None,
) -> None:
    """What `rheoscope reverse` does: one backward pass, the heads and tokens that are pulled at, and the file asked for."""
    from rich.console import Console

    console, trace = Console(highlight=False), model.trace(text)
    found = reversed_attention(model, trace, target, position)
    wanted, at = int(found.attrs["target"]), int(found.attrs["position"])
    patched = attention_patching(model, trace, wanted, (STEP, 0.0) if html is None else ETAS, position=at)
    rows, name = strongest(model, trace, found, top), shown(model.words([wanted])[0])
    after = shown(trace.tokens[at])
    console.print(
        f"{model.view.facts['model']} · L = −log p({name}) after {after}, token {at}", style="dim", markup=False
    )
    console.print(pull_table(rows, trace.tokens))
    lines = sentences(found, patched, rows, trace.tokens, name)
    for line in lines:
        console.print(f"• {line}", markup=False)
    if json_file is not None:
        console.print(save_json({"reversed_attention": found, "patching": patched}, json_file), soft_wrap=True)
    if html is not None:
        types = types_of(model)
        drawn = {"reversed_attention": found, "patching": patched} | ({} if types is None else {"head_types": types})
        told = Answers(trace, drawn, {})
        console.print(reverse_page(model, told, rows, lines, name).save(html), soft_wrap=True)

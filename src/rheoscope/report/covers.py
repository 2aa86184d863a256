"""Does attention read similarity? Every head beside its null and an untrained one, and the pairs of tokens it changes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.covers.agreement import DEFINITIONS, agreement
from rheoscope.covers.distortion import distortion
from rheoscope.covers.head_types import head_types
from rheoscope.covers.torn import torn
from rheoscope.report.dataset import save_json
from rheoscope.report.flow_page import shortened
from rheoscope.report.layers import said
from rheoscope.report.page import Cell, Page
from rheoscope.report.plot.agreement import picture_agreement
from rheoscope.report.tokens import shown
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray
    from rich.table import Table

LEVEL = 0.05
COLUMNS = {
    "agreement": "agreement",
    "null_sd": "null sd",
    "agreement_untrained": "untrained",
    "agreement_raw": "raw",
    "position_baseline": "position",
}
LISTS = {
    "similar": "read similarity",
    "opposite": "read its opposite",
    "random": "ignore it, as far as can be told from random heads",
}
LISTED = 8
"""Heads of a list that are named."""


def layer_table(found: "xarray.Dataset", kinds: "xarray.Dataset") -> "Table":
    """A row a layer: medians over heads, how many heads read similarity or its opposite beyond chance, and their types."""
    from rich.table import Table

    shown_here = {name: title for name, title in COLUMNS.items() if name in found}
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("layer", *shown_here.values(), "similar", "opposite"):
        side = "left" if heading == "layer" else "right"
        table.add_column(heading, justify=side, no_wrap=True, min_width=max(4, len(heading)))  # type: ignore[arg-type]
    table.add_column("types", overflow="ellipsis", no_wrap=True)
    sure = found.q_value.values <= LEVEL
    for layer in range(found.sizes["layer"]):
        medians = [said(float(found[name][layer].median())) for name in shown_here]
        signs = np.sign(found.z.values[layer]) * sure[layer]
        names, counts = np.unique(kinds.type.values[layer], return_counts=True)
        types = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in zip(names, counts, strict=True))
        table.add_row(f"L{layer}", *medians, str(int((signs > 0).sum())), str(int((signs < 0).sum())), types)
    return table


def lists(found: "xarray.Dataset") -> dict[str, list[tuple[int, int]]]:
    """Heads that read similarity, those that read its opposite, and the rest; the clearest of each first."""
    sure, z, own = (x.ravel() for x in (found.q_value.values <= LEVEL, found.z.values, found.agreement.values))
    there = np.isfinite(z)
    ranked = {
        "similar": (sure & (z > 0), -own),
        "opposite": (sure & (z < 0), own),
        "random": (there & ~sure, np.abs(z)),
    }
    heads = found.sizes["head"]
    return {
        name: [(int(at) // heads, int(at) % heads) for at in np.argsort(order, kind="stable") if chosen[at]]
        for name, (chosen, order) in ranked.items()
    }


def sentences(found: "xarray.Dataset", kept: "xarray.Dataset") -> list[str]:
    """What was settled for this text: how many heads read similarity, how strongly, and what a head's image keeps."""
    listed, heads = lists(found), found.z.size
    mean, raw, position, embedding = (
        float(found[name].mean()) for name in ("agreement", "agreement_raw", "position_baseline", "agreement_embedding")
    )
    rsa, null = float(kept.rsa.sel(image="query").median()), float(kept.rsa_null.sel(image="query").median())
    lines = [
        f"{len(listed['similar'])} of {heads} heads read similarity in E beyond random heads of the same spectrum, "
        f"{len(listed['opposite'])} read its opposite, {len(listed['random'])} cannot be told from random "
        f"({found.attrs['draws']} draws a head, false discovery rate 5 %).",
        f"How much they read of it: the mean rank correlation of score and similarity is {said(mean)} once distance and length are taken "
        f"out ({said(raw)} with them; nearness alone explains {said(position)}; with the embedding {said(embedding)}); 1 would be "
        f"attention as similarity.",
        f"What a head's queries keep of the distances between tokens: a correlation of {rsa:.2f} (median head), a random projection "
        f"of the same rank {null:.2f}.",
    ]
    return lines if "agreement_untrained" not in found else [*lines[:2], untrained(found), *lines[2:]]


def untrained(found: "xarray.Dataset") -> str:
    """What the same architecture reads before it has learned anything."""
    controlled, raw = (float(found[f"{name}_untrained"].mean()) for name in ("agreement", "agreement_raw"))
    return f"The same architecture at initial weights: {said(controlled)} with distance and length taken out, {said(raw)} with them."


def changed(model: Any, trace: Trace, layer: int, head: int, top: int = 1) -> dict[str, str]:
    """The tokens that a head tears apart and those that it glues together, among its queries, by name and place."""
    pairs = torn(model.view, trace, layer, head, top=top)
    return {
        kind: "; ".join(
            f"{shown(str(a))} ({int(i)}) and {shown(str(b))} ({int(j)})"
            for a, i, b, j in zip(
                *(pairs.sel(kind=kind)[name].values for name in ("first_token", "first", "second_token", "second")),
                strict=True,
            )
        )
        for kind in ("torn", "glued")
    }


def list_lines(model: Any, trace: Trace, found: "xarray.Dataset") -> list[str]:
    """A line a list: its clearest heads, and what the first of them does to pairs of tokens."""
    lines = []
    for name, heads in lists(found).items():
        if not heads:
            continue
        named = ", ".join(
            f"L{layer}.H{head} {said(float(found.agreement[layer, head]))}" for layer, head in heads[:LISTED]
        )
        more = f" and {len(heads) - LISTED} more" if len(heads) > LISTED else ""
        pairs = changed(model, trace, *heads[0], top=2)
        lines.append(
            f"{len(heads)} {LISTS[name]}: {named}{more}. L{heads[0][0]}.H{heads[0][1]} has torn apart (near in E, far in its image): "
            f"{pairs['torn']}; glued together (far in E, near in its image): {pairs['glued']}."
        )
    return lines


def head_rows(model: Any, trace: Trace, found: "xarray.Dataset") -> tuple[list[str | Cell], list[list[str | Cell]]]:
    """The table of the page: the clearest heads of every list with their numbers, and the pair that each changes most."""
    numbers = {"agreement_raw": "raw", "agreement": "agreement", "agreement_untrained": "untrained", "z": "z"}
    numbers = {name: title for name, title in numbers.items() if name in found}
    header: list[str | Cell] = [
        "head",
        *(Cell(title, DEFINITIONS[name]) for name, title in numbers.items()),
        "does",
        "tears apart",
        "glues together",
    ]
    rows: list[list[str | Cell]] = []
    for name, heads in lists(found).items():
        for layer, head in heads[:LISTED]:
            pairs = changed(model, trace, layer, head)
            values = [said(float(found[number][layer, head])) for number in numbers]
            rows.append([f"L{layer}.H{head}", *values, LISTS[name], pairs["torn"], pairs["glued"]])
    return header, rows


def show(
    model: Any, control: Any | None, text: str, draws: int, explain: bool, json_file: Path | None, html: Path | None
) -> None:
    """What `rheoscope covers TEXT` does."""
    from rich.console import Console
    from rich.progress import Progress

    console, trace = Console(highlight=False), model.trace(text)
    beside = None if control is None else control.trace(trace.ids)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("agreement and its null", total=None)

        def tell(done: int, every: int) -> None:
            progress.update(bar, completed=done, total=every)

        found = agreement(model.view, trace, draws, control=beside, progress=tell)
        kinds, kept = head_types(model), distortion(model.view, trace, k=min(5, len(trace) - 3), draws=2)
    told = [*sentences(found, kept), *list_lines(model, trace, found)]
    console.print(f"[dim]{model.view.facts['model']} · {model.view.facts['certificate']}[/]")
    console.print(f"{len(trace)} tokens; massive tokens left out: {trace.massive() or 'none'}", markup=False)
    console.print("\nDoes attention read similarity in E? Medians over the heads of a layer")
    console.print(layer_table(found, kinds))
    for line in told:
        console.print(f"• {line}", markup=False)
    if explain:
        named = {name: title for name, title in COLUMNS.items() if name in found}
        console.print("\n".join(f"[bold]{title}[/]: {DEFINITIONS[name]}" for name, title in named.items()))
    if json_file is not None:
        numbers = {"agreement": found, "head_types": kinds, "distortion": kept}
        console.print(save_json(numbers, json_file), soft_wrap=True)
    if html is not None:
        console.print(page(model, trace, found, told).save(html), soft_wrap=True)


def page(model: Any, trace: Trace, found: "xarray.Dataset", told: list[str]) -> Page:
    """Findings, maps of all heads, the clearest heads with the tokens that they confuse."""
    whole = Page(f"Covers: {shortened(trace)}", "Whether attention measures similarity where the tokens live.")
    return (
        whole.lines("Findings", told)
        .drawing(picture_agreement(found))
        .table("Heads and the tokens that they see otherwise", *head_rows(model, trace, found))
        .facts("Where the numbers come from", trace.provenance | {"control": str(found.attrs.get("control", "none"))})
    )

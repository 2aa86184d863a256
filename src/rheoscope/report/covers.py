"""Does attention read similarity? In the terminal and on a page: every head against its null, and the pairs that covers change."""

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
from rheoscope.report.page import Page
from rheoscope.report.plot.agreement import picture_agreement
from rheoscope.report.progress import progress
from rheoscope.report.tokens import shown
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray
    from rich.table import Table

LEVEL = 0.05
COLUMNS = {
    "agreement": "agreement",
    "null_sd": "null sd",
    "agreement_raw": "raw",
    "position_baseline": "position",
    "agreement_embedding": "embedding",
}


def layer_table(found: "xarray.Dataset", kinds: "xarray.Dataset") -> "Table":
    """A row a layer: medians over heads, how many heads read similarity or its opposite beyond chance, and their types."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("layer", *COLUMNS.values(), "similar", "opposite"):
        side = "left" if heading == "layer" else "right"
        table.add_column(heading, justify=side, no_wrap=True, min_width=len(heading))  # type: ignore[arg-type]
    table.add_column("types", overflow="ellipsis", no_wrap=True)
    sure = found.q_value.values <= LEVEL
    for layer in range(found.sizes["layer"]):
        medians = [said(float(found[name][layer].median())) for name in COLUMNS]
        signs = np.sign(found.z.values[layer]) * sure[layer]
        names, counts = np.unique(kinds.type.values[layer], return_counts=True)
        types = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in zip(names, counts, strict=True))
        table.add_row(f"L{layer}", *medians, str(int((signs > 0).sum())), str(int((signs < 0).sum())), types)
    return table


def sentences(found: "xarray.Dataset", kept: "xarray.Dataset") -> list[str]:
    """What was settled for this text: how many heads read similarity, how strongly, and what a head's image keeps."""
    sure, z, heads = found.q_value.values <= LEVEL, found.z.values, found.z.size
    like, unlike = int((sure & (z > 0)).sum()), int((sure & (z < 0)).sum())
    mean, raw, position = (float(found[name].mean()) for name in ("agreement", "agreement_raw", "position_baseline"))
    rsa, null = float(kept.rsa.sel(image="query").median()), float(kept.rsa_null.sel(image="query").median())
    return [
        f"{like} of {heads} heads read similarity in E beyond random heads of the same spectrum, {unlike} read its opposite, "
        f"{heads - like - unlike} cannot be told from random ({found.attrs['draws']} draws a head, false discovery rate 5 %).",
        f"How much they read of it: the mean rank correlation of score and similarity is {said(mean)} once distance and length are taken "
        f"out ({said(raw)} with them; nearness alone explains {said(position)}); 1 would be attention as similarity.",
        f"What a head's queries keep of the distances between tokens: a correlation of {rsa:.2f} (median head), a random projection "
        f"of the same rank {null:.2f}.",
    ]


def pairs(model: Any, trace: Trace, found: "xarray.Dataset") -> list[str]:
    """The tokens that the head furthest from similarity tears apart, and those that it glues together."""
    layer, head = np.unravel_index(int(np.nanargmin(found.agreement.values)), found.agreement.shape)
    changed = torn(model.view, trace, int(layer), int(head), top=3)
    lines = []
    for kind, how in (("torn", "near in E, far in the image"), ("glued", "far in E, near in the image")):
        row = changed.sel(kind=kind)
        named = [
            f"{shown(str(a))} ({int(i)}) and {shown(str(b))} ({int(j)})"
            for a, i, b, j in zip(
                row.first_token.values, row["first"].values, row.second_token.values, row.second.values, strict=True
            )
        ]
        lines.append(f"L{layer}.H{head} has {kind} ({how}): {'; '.join(named)}.")
    return lines


def show(model: Any, text: str, draws: int, explain: bool, json_file: Path | None, html: Path | None) -> None:
    """What `rheoscope covers TEXT` does."""
    from rich.console import Console

    console, trace = Console(highlight=False), model.trace(text)
    with progress("agreement and its null") as tell:
        found = agreement(model.view, trace, draws, progress=tell)
        kinds, kept = head_types(model), distortion(model.view, trace, k=min(5, len(trace) - 3), draws=2)
    told = [*sentences(found, kept), *pairs(model, trace, found)]
    console.print(f"[dim]{model.view.facts['model']} · {model.view.facts['certificate']}[/]")
    console.print(f"{len(trace)} tokens; massive tokens left out: {trace.massive() or 'none'}", markup=False)
    console.print("\nDoes attention read similarity in E? Medians over the heads of a layer")
    console.print(layer_table(found, kinds))
    for line in told:
        console.print(f"• {line}", markup=False)
    if explain:
        console.print("\n".join(f"[bold]{title}[/]: {DEFINITIONS[name]}" for name, title in COLUMNS.items()))
    if json_file is not None:
        numbers = {"agreement": found, "head_types": kinds, "distortion": kept}
        console.print(save_json(numbers, json_file), soft_wrap=True)
    if html is not None:
        page = Page(f"Covers: {shortened(trace)}", "Whether attention measures similarity where the tokens live.")
        page = (
            page.lines("Findings", told)
            .drawing(picture_agreement(found))
            .facts("Where the numbers come from", trace.provenance)
        )
        console.print(page.save(html), soft_wrap=True)

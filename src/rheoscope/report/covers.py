"""Does attention read similarity? In the terminal and on a page: every head against its null, and the pairs that covers change."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.covers.agreement import DEFINITIONS, agreement
from rheoscope.covers.composition import composition
from rheoscope.covers.distortion import distortion
from rheoscope.covers.fixed_point import fixed_point
from rheoscope.covers.rollout import rollout
from rheoscope.covers.stack import stack
from rheoscope.covers.why import why
from rheoscope.report.answers import ANALYSES, WEIGHTS, Answers, Ask, Found, answers
from rheoscope.report.dataset import save_json
from rheoscope.report.findings import COVERS, as_dataset, findings
from rheoscope.report.flow_page import picture_of, provenance, shortened, token_strip
from rheoscope.report.flow_page import sentences as as_sentences
from rheoscope.report.layers import said
from rheoscope.report.page import Page
from rheoscope.report.tokens import shown
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray
    from rich.table import Table

Progress = Callable[[int, int], None]
LEVEL = 0.05
COLUMNS = {
    "agreement": "agreement",
    "null_sd": "null sd",
    "agreement_raw": "raw",
    "position_baseline": "position",
    "agreement_embedding": "embedding",
}


def layer_table(found: "xarray.Dataset", kinds: "xarray.Dataset | None") -> "Table":
    """A row a layer: medians over heads, how many heads read similarity or its opposite beyond chance, and their types."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("layer", *COLUMNS.values(), "similar", "opposite"):
        side = "left" if heading == "layer" else "right"
        table.add_column(heading, justify=side, no_wrap=True, min_width=max(4, len(heading)))  # type: ignore[arg-type]
    table.add_column("types", overflow="ellipsis", no_wrap=True)
    sure = found.q_value.values <= LEVEL
    for layer in range(found.sizes["layer"]):
        medians = [said(float(found[name][layer].median())) for name in COLUMNS]
        signs = np.sign(found.z.values[layer]) * sure[layer]
        counted = Counter([] if kinds is None else sorted(map(str, kinds.type.values[layer])))
        types = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in counted.items())
        table.add_row(f"L{layer}", *medians, str(int((signs > 0).sum())), str(int((signs < 0).sum())), types)
    return table


def verdict(found: "xarray.Dataset") -> list[str]:
    """What was settled for this text: how many heads read similarity, and how strongly."""
    sure, z, heads = found.q_value.values <= LEVEL, found.z.values, found.z.size
    like, unlike = int((sure & (z > 0)).sum()), int((sure & (z < 0)).sum())
    mean, raw, position = (float(found[name].mean()) for name in ("agreement", "agreement_raw", "position_baseline"))
    return [
        f"{like} of {heads} heads read similarity in E beyond random heads of the same spectrum, {unlike} read its opposite, "
        f"{heads - like - unlike} cannot be told from random ({found.attrs['draws']} draws a head, false discovery rate 5 %).",
        f"How much they read of it: the mean rank correlation of score and similarity is {said(mean)} once distance and length are taken "
        f"out ({said(raw)} with them; nearness alone explains {said(position)}); 1 would be attention as similarity.",
    ]


def pairs(changed: "xarray.Dataset", top: int = 3) -> list[str]:
    """The tokens that a head tears apart, and those that it glues together."""
    where, lines = f"L{changed.attrs['layer']}.H{changed.attrs['head']}", []
    for kind, how in (("torn", "near in E, far in the image"), ("glued", "far in E, near in the image")):
        row = changed.sel(kind=kind).isel(pair=slice(top))
        named = [
            f"{shown(str(a))} ({int(i)}) and {shown(str(b))} ({int(j)})"
            for a, i, b, j in zip(
                row.first_token.values, row["first"].values, row.second_token.values, row.second.values, strict=True
            )
        ]
        lines.append(f"{kind.capitalize()} by {where} ({how}): {'; '.join(named)}.")
    return lines


def asked(draws: int, tell: Progress) -> dict[str, Ask]:
    """What the terminal tells."""
    return {
        "agreement": lambda model, trace, space, found: agreement(model.view, trace, draws, progress=tell),
        "torn": ANALYSES["torn"],
        "head_types": ANALYSES["head_types"],
        "distortion": lambda model, trace, space, found: distortion(model.view, trace, _k(trace), draws=2),
    }


def more() -> dict[str, Ask]:
    """What the page shows besides, and --json holds."""
    return {
        "stack": lambda model, trace, space, found: stack(model.view, trace),
        "composition": lambda model, trace, space, found: composition(model.view),
        "why": lambda model, trace, space, found: _why(model, trace, found),
        "rollout": lambda model, trace, space, found: rollout(model, trace, probes=8),
        "fixed_point": lambda model, trace, space, found: fixed_point(model, trace, iterations=10),
        "operators": WEIGHTS["operators"],
    }


def _k(trace: Trace) -> int:
    return max(1, min(5, (len(trace) - len(trace.massive()) - 1) // 2))


def _why(model: Any, trace: Trace, found: Found) -> "xarray.Dataset":
    """The pattern of the head that reads similarity most surely."""
    z = found["agreement"].z.values
    layer, head = divmod(int(np.nanargmax(z)), z.shape[1])
    return why(model.view, trace, layer, head)


def covers_page(model: Any, told: Answers) -> Page:
    """Every picture of the covers on one page."""
    view, found = model.view, told.found
    lead = (
        f"{view.facts['model']}: {view.layers} layers, {view.heads} heads, width {view.width}; {len(told.trace)} tokens. Whether attention "
        "measures similarity where the tokens live, what projections do to it, which heads work together. Definitions are under the "
        "dotted words, numbers under the pictures."
    )
    page = Page(f"Covers: {shortened(told.trace)}", lead).section("The text", token_strip(told))
    page = page.lines("What it settles", [*verdict(found["agreement"]), *pairs(found["torn"])])
    page = page.lines("Findings", as_sentences(*findings(found, 8, COVERS)))
    for name in found:
        page = page.drawing(picture_of(name, told, model.words))
    if told.left_out:
        page = page.lines("Left out", [f"{name}: {reason}" for name, reason in told.left_out.items()])
    return page.facts("Where the numbers come from", provenance(told.trace, told))


def show(model: Any, text: str, draws: int, explain: bool, json_file: Path | None, html: Path | None) -> None:
    """What `rheoscope covers TEXT` does."""
    from rich.console import Console

    console, trace = Console(highlight=False), model.trace(text)
    told = _answered(model, trace, draws, json_file is not None or html is not None)
    found = told.found
    console.print(f"[dim]{model.view.facts['model']} · {model.view.facts['certificate']}[/]")
    console.print(f"{len(trace)} tokens; massive tokens left out: {trace.massive() or 'none'}", markup=False)
    console.print("\nDoes attention read similarity in E? Medians over the heads of a layer")
    console.print(layer_table(found["agreement"], found.get("head_types")))
    lines = [*verdict(found["agreement"]), *pairs(found["torn"]), *as_sentences(*findings(found, 8, COVERS))]
    for line in lines:
        console.print(f"• {line}", markup=False)
    if explain:
        console.print("\n".join(f"[bold]{title}[/]: {DEFINITIONS[name]}" for name, title in COLUMNS.items()))
    if json_file is not None:
        numbers = found | {"findings": as_dataset(*findings(found, 8, COVERS))}
        console.print(save_json(numbers, json_file), soft_wrap=True)
    if html is not None:
        console.print(covers_page(model, told).save(html), soft_wrap=True)


def _answered(model: Any, trace: Trace, draws: int, everything: bool) -> Answers:
    """The answers, with a bar on stderr; without agreement there is nothing to tell, and its reason is the error."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("agreement", total=None)
        wanted = asked(draws, lambda done, total: progress.update(bar, completed=done, total=total))
        wanted |= more() if everything else {}
        told = answers(model, trace, "raw", wanted, lambda name: progress.update(bar, description=name))
    if "agreement" in told.left_out:
        raise RheoscopeError(told.left_out["agreement"])
    return told

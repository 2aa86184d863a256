"""Does attention read similarity? Every head beside its null and an untrained one, and the pairs of tokens it changes."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.covers.agreement import DEFINITIONS, agreement
from rheoscope.covers.composition import composition
from rheoscope.covers.distortion import distortion
from rheoscope.covers.fixed_point import fixed_point
from rheoscope.covers.rollout import rollout
from rheoscope.covers.stack import stack
from rheoscope.covers.torn import torn
from rheoscope.covers.why import why
from rheoscope.report.answers import ANALYSES, WEIGHTS, Answers, Ask, Found, answers
from rheoscope.report.dataset import save_json
from rheoscope.report.findings import COVERS, as_dataset, findings
from rheoscope.report.flow_page import picture_of, provenance, shortened, token_strip
from rheoscope.report.flow_page import sentences as as_sentences
from rheoscope.report.layers import said
from rheoscope.report.page import Cell, Page
from rheoscope.report.tokens import shown
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray
    from rich.table import Table

Progress = Callable[[int, int], None]
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


def layer_table(found: "xarray.Dataset", kinds: "xarray.Dataset | None") -> "Table":
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
        counted = Counter([] if kinds is None else sorted(map(str, kinds.type.values[layer])))
        types = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in counted.items())
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


def verdict(found: "xarray.Dataset") -> list[str]:
    """What was settled for this text: how many heads read similarity, and how strongly."""
    listed, heads = lists(found), found.z.size
    mean, raw, position, embedding = (
        float(found[name].mean()) for name in ("agreement", "agreement_raw", "position_baseline", "agreement_embedding")
    )
    lines = [
        f"{len(listed['similar'])} of {heads} heads read similarity in E beyond random heads of the same spectrum, "
        f"{len(listed['opposite'])} read its opposite, {len(listed['random'])} cannot be told from random "
        f"({found.attrs['draws']} draws a head, false discovery rate 5 %).",
        f"How much they read of it: the mean rank correlation of score and similarity is {said(mean)} once distance and length are taken "
        f"out ({said(raw)} with them; nearness alone explains {said(position)}; with the embedding {said(embedding)}); 1 would be "
        f"attention as similarity.",
    ]
    return [*lines, untrained(found)] if "agreement_untrained" in found else lines


def untrained(found: "xarray.Dataset") -> str:
    """What the same architecture reads before it has learned anything."""
    controlled, raw = (float(found[f"{name}_untrained"].mean()) for name in ("agreement", "agreement_raw"))
    return f"The same architecture at initial weights: {said(controlled)} with distance and length taken out, {said(raw)} with them."


def changed(model: Model, trace: Trace, layer: int, head: int, top: int = 1) -> dict[str, str]:
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


def list_lines(model: Model, trace: Trace, found: "xarray.Dataset") -> list[str]:
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


def head_rows(model: Model, trace: Trace, found: "xarray.Dataset") -> tuple[list[str | Cell], list[list[str | Cell]]]:
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


def asked(draws: int, tell: Progress, control: Model | None = None) -> dict[str, Ask]:
    """What the terminal tells; `control` is the same architecture untrained."""

    def read(model: Model, trace: Trace, space: str, found: Found) -> "xarray.Dataset":
        beside = None if control is None else control.trace(trace.ids)
        return agreement(model.view, trace, draws, control=beside, progress=tell)

    return {
        "agreement": read,
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


def _why(model: Model, trace: Trace, found: Found) -> "xarray.Dataset":
    """The pattern of the head that reads similarity most surely."""
    z = found["agreement"].z.values
    layer, head = divmod(int(np.nanargmax(z)), z.shape[1])
    return why(model.view, trace, layer, head)


def covers_page(model: Model, told: Answers) -> Page:
    """Every picture of the covers on one page."""
    view, found = model.view, told.found
    lead = (
        f"{view.facts['model']}: {view.layers} layers, {view.heads} heads, width {view.width}; {len(told.trace)} tokens. Whether attention "
        "measures similarity where the tokens live, what projections do to it, which heads work together. Definitions are under the "
        "dotted words, numbers under the pictures."
    )
    page = Page(f"Covers: {shortened(told.trace)}", lead).section("The text", token_strip(told))
    page = page.lines("What it settles", settled(model, told))
    page = page.lines("Findings", as_sentences(*findings(found, 8, COVERS)))
    for name in found:
        page = page.drawing(picture_of(name, told, model.words))
    page = page.table("Heads and the tokens that they see otherwise", *head_rows(model, told.trace, found["agreement"]))
    if told.left_out:
        page = page.lines("Left out", [f"{name}: {reason}" for name, reason in told.left_out.items()])
    return page.facts("Where the numbers come from", provenance(told.trace, told))


def settled(model: Model, told: Answers) -> list[str]:
    """How many heads read similarity, and the lists of them with the pairs of tokens that they change."""
    found = told.found["agreement"]
    return [*verdict(found), *list_lines(model, told.trace, found)]


def show(
    model: Model, control: Model | None, text: str, draws: int, explain: bool, json_file: Path | None, html: Path | None
) -> None:
    """What `rheoscope covers TEXT` does."""
    from rich.console import Console

    console, trace = Console(highlight=False), model.trace(text)
    told = _answered(model, control, trace, draws, json_file is not None or html is not None)
    found = told.found
    console.print(f"[dim]{model.view.facts['model']} · {model.view.facts['certificate']}[/]")
    console.print(f"{len(trace)} tokens; massive tokens left out: {trace.massive() or 'none'}", markup=False)
    console.print("\nDoes attention read similarity in E? Medians over the heads of a layer")
    console.print(layer_table(found["agreement"], found.get("head_types")))
    for line in (*settled(model, told), *as_sentences(*findings(found, 8, COVERS))):
        console.print(f"• {line}", markup=False)
    if explain:
        named = {name: title for name, title in COLUMNS.items() if name in found["agreement"]}
        console.print("\n".join(f"[bold]{title}[/]: {DEFINITIONS[name]}" for name, title in named.items()))
    if json_file is not None:
        numbers = found | {"findings": as_dataset(*findings(found, 8, COVERS))}
        console.print(save_json(numbers, json_file), soft_wrap=True)
    if html is not None:
        console.print(covers_page(model, told).save(html), soft_wrap=True)


def _answered(model: Model, control: Model | None, trace: Trace, draws: int, everything: bool) -> Answers:
    """The answers, with a bar on stderr; without agreement there is nothing to tell, and its reason is the error."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("agreement", total=None)
        wanted = asked(draws, lambda done, total: progress.update(bar, completed=done, total=total), control)
        wanted |= more() if everything else {}
        told = answers(model, trace, "raw", wanted, lambda name: progress.update(bar, description=name))
    if "agreement" in told.left_out:
        raise RheoscopeError(told.left_out["agreement"])
    return told

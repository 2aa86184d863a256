"""A text in a model, in the terminal: what every layer predicts, and what kind of operators its heads are."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.covers.operators import operators
from rheoscope.flow.readout import DEFINITIONS, readout
from rheoscope.report.dataset import save_json
from rheoscope.report.operators import terminal_table

if TYPE_CHECKING:
    import xarray
    from rich.table import Table

HEADINGS = {"probability": "p(answer)", "rank": "rank", "entropy": "entropy"}


def shown(token: str) -> str:
    """A token as one sees it: white space made visible, nothing that moves the cursor."""
    marked = token.replace("\n", "↵").replace("\t", "⇥").replace(" ", "·")
    return "".join(character if character.isprintable() else "�" for character in marked)


def layer_table(lens: "xarray.Dataset", words: dict[int, str]) -> "Table":
    """A row a layer: the answer's probability and rank, entropy, and the likeliest tokens."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("after", *HEADINGS.values()):
        table.add_column(
            heading, justify="left" if heading == "after" else "right", min_width=len(heading), no_wrap=True
        )
    table.add_column("likeliest next tokens", overflow="ellipsis", no_wrap=True)
    for point in [str(step) for step in lens.point.values if not str(step).endswith("resid_mid")]:
        row = lens.sel(point=point)
        likely = (
            f"{escape(shown(words[int(t)]))} [dim]{float(p):.2f}[/]"
            for t, p in zip(row.top_tokens.values, row.top_probabilities.values, strict=True)
        )
        figures = f"{float(row.probability):.3f}", f"{int(row['rank'])}", f"{float(row.entropy):.2f}"
        table.add_row(point.removesuffix(".resid_post"), *figures, "  ".join(likely))
    return table


def show(model: Any, text: str, explain: bool, json_file: Path | None) -> None:
    """What `rheoscope TEXT` does: the tokens, what each layer predicts, the heads as operators."""
    from rich.console import Console

    console, trace = Console(highlight=False), model.trace(text)
    lens, heads = readout(model.view, trace, k=4), operators(model.view)
    facts = model.view.facts
    console.print(
        f"[dim]{facts['model']} · {model.view.layers} layers, {model.view.heads} heads · {facts['certificate']}[/]"
    )
    console.print(f"{len(trace)} tokens: " + " ".join(shown(token) for token in trace.tokens), markup=False)
    words = {int(t): model.words([int(t)])[0] for t in {*lens.top_tokens.values.ravel().tolist(), lens.attrs["answer"]}}
    answer = shown(words[lens.attrs["answer"]])
    console.print(f"\nWhat each layer says comes next; the answer is {answer}", markup=False)
    console.print(layer_table(lens, words))
    console.print("\nHeads as operators: median over the heads of a layer")
    console.print(terminal_table(heads))
    if explain:
        console.print("\n".join(f"[bold]{title}[/]: {DEFINITIONS[name]}" for name, title in HEADINGS.items()))
    if json_file is not None:
        console.print(save_json({"readout": lens, "operators": heads}, json_file), soft_wrap=True)

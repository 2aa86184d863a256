"""A text in a model, in the terminal: what every layer predicts, how it moves the cloud, what kind of operators its heads are."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.covers.operators import operators
from rheoscope.flow.clusters import clusters
from rheoscope.flow.readout import DEFINITIONS, readout
from rheoscope.flow.trajectory import trajectory
from rheoscope.flow.transport import transport
from rheoscope.report.dataset import save_json
from rheoscope.report.operators import terminal_table
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray
    from rich.table import Table

HEADINGS = {"probability": "p(answer)", "rank": "rank", "entropy": "entropy"}
MOTION = {
    "moved": "the way that the layer makes a token go, over its length before each half-layer; median over tokens",
    "attention": "attention's share of that way, the rest is the MLP's",
    "κ": "1 where keeping every token's identity is the cheapest way to get the next cloud, 0 where it is no better than chance",
    "κ null": "the same with the displacements permuted among the tokens",
    "rank": "effective rank of the cloud after the layer: directions in use",
    "rank null": "the same with every coordinate shuffled among the tokens",
    "dimension": "intrinsic dimension (TwoNN) of the cloud after the layer",
    "clusters": "groups of tokens that chains of steps below 45° hold together",
}


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


def motion_table(path: "xarray.Dataset", moved: "xarray.Dataset", gathered: "xarray.Dataset") -> "Table":
    """A row a layer: how far it moves the cloud, who moves it, whether identity is the cheapest way, how the cloud spreads."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("layer", *MOTION):
        table.add_column(heading, justify="left" if heading == "layer" else "right", no_wrap=True)
    ways = path.relative_speed.median("token")
    for layer in range(path.sizes["layer"]):
        steps = [step for step in path.step.values if str(step).startswith(f"L{layer}.")]
        figures = (
            ways.sel(step=steps).sum(),
            path.attention_share[layer],
            moved.kappa[layer],
            moved.kappa_null[layer],
            gathered.effective_rank[layer + 1],
            gathered.effective_rank_null[layer + 1],
            gathered.intrinsic_dimension[layer + 1],
        )
        table.add_row(f"L{layer}", *(f"{float(x):.2f}" for x in figures), str(int(gathered.cluster_count[layer + 1])))
    return table


def show(model: Any, text: str, explain: bool, json_file: Path | None) -> None:
    """What `rheoscope TEXT` does: the tokens, what each layer predicts, how the cloud moves, the heads as operators."""
    from rich.console import Console

    console, trace = Console(highlight=False), model.trace(text)
    lens, heads = readout(model.view, trace, k=4), operators(model.view)
    facts, found = model.view.facts, {"readout": lens, "operators": heads}
    console.print(
        f"[dim]{facts['model']} · {model.view.layers} layers, {model.view.heads} heads · {facts['certificate']}[/]"
    )
    console.print(f"{len(trace)} tokens: " + " ".join(shown(token) for token in trace.tokens), markup=False)
    words = {int(t): model.words([int(t)])[0] for t in {*lens.top_tokens.values.ravel().tolist(), lens.attrs["answer"]}}
    answer = shown(words[lens.attrs["answer"]])
    console.print(f"\nWhat each layer says comes next; the answer is {answer}", markup=False)
    console.print(layer_table(lens, words))
    try:
        motion = {"trajectory": trajectory(trace), "transport": transport(trace), "clusters": clusters(trace)}
    except RheoscopeError as error:
        console.print(f"\nHow the cloud moves is left out: {error}", markup=False)
    else:
        console.print("\nHow each layer moves the cloud")
        console.print(motion_table(*motion.values()))
        left_out = [f"{at} {shown(trace.tokens[at])}" for at in trace.massive()]
        console.print(f"massive tokens left out: {', '.join(left_out) or 'none'}", markup=False, style="dim")
        found |= motion
    console.print("\nHeads as operators: median over the heads of a layer")
    console.print(terminal_table(heads))
    if explain:
        told = {title: DEFINITIONS[name] for name, title in HEADINGS.items()} | MOTION
        console.print("\n".join(f"[bold]{title}[/]: {said}" for title, said in told.items()))
    if json_file is not None:
        console.print(save_json(found, json_file), soft_wrap=True)

"""Does attention read similarity? A row a layer, how many heads read it, and the tokens that the clearest of them see otherwise."""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number, pluralise
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.picture.token_labels import display_token
from rheoscope.shapes import RheoscopeError
from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray

FDR_LEVEL = 0.05
COLUMNS = {
    "agreement": "agreement",
    "null_sd": "null sd",
    "agreement_untrained": "untrained",
    "agreement_raw": "raw",
    "position_baseline": "position",
}
HEAD_LISTS = {
    "similar": "reads similarity",
    "opposite": "reads its opposite",
    "random": "ignores it, as far as can be told from random heads",
}
"""What a head of each list does."""
MAX_LISTED_HEADS = 8
"""Heads of a list that are named."""
HeadList = list[tuple[int, int]]


def blocks(results: Results) -> list[Block]:
    """The table, and what it settles."""
    if "agreement" not in results.datasets:
        return []
    return [layer_table(results), Lines("What it settles", [*summary_lines(results), *head_list_lines(results)])]


def layer_table(results: Results) -> Table:
    """A row a layer: medians over heads, how many heads read similarity or its opposite beyond chance, and their types."""
    agreement, head_types = results.datasets["agreement"], results.datasets.get("head_types")
    columns = {name: title for name, title in COLUMNS.items() if name in agreement}
    header = [
        Cell("layer"),
        *(Cell(title, str(agreement[name].attrs["definition"])) for name, title in columns.items()),
    ]
    header += [
        Cell("similar", "heads that read similarity beyond chance"),
        Cell("opposite", "heads that read its opposite"),
    ]
    rows = []
    for layer in range(agreement.sizes["layer"]):
        medians = [format_number(float(agreement[name][layer].median())) for name in columns]
        type_counts = Counter([] if head_types is None else sorted(map(str, head_types.type.values[layer])))
        types_text = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in type_counts.items())
        rows.append([*map(Cell, (f"L{layer}", *medians, *_significant_counts(agreement, layer), types_text))])
    text_columns = frozenset({0, len(header)})
    heading = "Does attention read similarity in E? Medians over the heads of a layer"
    return Table(heading, [*header, Cell("types", "what kinds of heads they are")], rows, text_columns)


def _significant_counts(agreement: "xarray.Dataset", layer: int) -> tuple[str, str]:
    if "z" not in agreement:
        return "none", "none"
    signs = np.sign(agreement.z.values[layer]) * (agreement.q_value.values[layer] <= FDR_LEVEL)
    return str(int((signs > 0).sum())), str(int((signs < 0).sum()))


def head_lists(agreement: "xarray.Dataset") -> dict[str, HeadList]:
    """Heads that read similarity, those that read its opposite, and the rest; the clearest of each first."""
    if "z" not in agreement:
        return {name: [] for name in HEAD_LISTS}
    significant, z, values = (
        x.ravel() for x in (agreement.q_value.values <= FDR_LEVEL, agreement.z.values, agreement.agreement.values)
    )
    criteria = {
        "similar": (significant & (z > 0), -values),
        "opposite": (significant & (z < 0), values),
        "random": (np.isfinite(z) & ~significant, np.abs(z)),
    }
    n_heads = agreement.sizes["head"]
    return {
        name: [
            (int(index) // n_heads, int(index) % n_heads)
            for index in np.argsort(sort_key, kind="stable")
            if selected[index]
        ]
        for name, (selected, sort_key) in criteria.items()
    }


def clearest_heads(agreement: "xarray.Dataset", max_per_list: int) -> HeadList:
    """The clearest heads of every list."""
    return [head for heads in head_lists(agreement).values() for head in heads[:max_per_list]]


def required_agreement(results: Results) -> "xarray.Dataset":
    """The result of `agreement`, which picks the heads that are shown."""
    if not results.has("agreement"):
        raise RheoscopeError(Message("agreement has no result, so no head can be picked"))
    return results.datasets["agreement"]


def least_similar_head(agreement: "xarray.Dataset") -> tuple[int, int]:
    """The head that reads similarity least."""
    layer, head = np.unravel_index(int(np.nanargmin(agreement.agreement.values)), agreement.agreement.shape)
    return int(layer), int(head)


def most_similar_head(agreement: "xarray.Dataset") -> tuple[int, int]:
    """The head that reads similarity most surely, or most where nothing is told from a null."""
    has_z = "z" in agreement and bool(agreement.z.notnull().any())
    values = agreement["z" if has_z else "agreement"].values
    layer, head = np.unravel_index(int(np.nanargmax(values)), values.shape)
    return int(layer), int(head)


def summary_lines(results: Results) -> list[str]:
    """What was settled for this text: how many heads read similarity, and how strongly."""
    agreement = results.datasets["agreement"]
    heads_by_list, n_heads = head_lists(agreement), agreement.agreement.size
    mean, raw, position, embedding = (
        format_number(float(agreement[name].mean()))
        for name in ("agreement", "agreement_raw", "position_baseline", "agreement_embedding")
    )
    count_line = (
        f"Similarity in E is read beyond random heads of the same spectrum by {len(heads_by_list['similar'])} "
        f"of {pluralise(n_heads, 'head')}, "
        f"its opposite by {len(heads_by_list['opposite'])}; not to be told from random: {len(heads_by_list['random'])} "
        f"({pluralise(int(agreement.attrs['draws']), 'draw')} a head, false discovery rate 5 %)."
    )
    strength_line = (
        f"How much they read of it: the mean rank correlation of score and similarity is {mean} once distance and length are taken "
        f"out ({raw} with them; nearness alone explains {position}; with the embedding {embedding}); 1 would be attention as similarity."
    )
    lines = [count_line, strength_line] if "z" in agreement else [strength_line]
    return [*lines, control_line(agreement)] if "agreement_untrained" in agreement else lines


def control_line(agreement: "xarray.Dataset") -> str:
    """What the same architecture reads before it has learned anything."""
    controlled_mean, raw_mean = (
        float(agreement[f"{name}_untrained"].mean()) for name in ("agreement", "agreement_raw")
    )
    return (
        f"The same architecture at initial weights: {format_number(controlled_mean)} with distance and "
        f"length taken out, {format_number(raw_mean)} with them."
    )


def pair_texts(results: Results, layer: int, head: int, n_pairs: int) -> dict[str, str]:
    """The tokens that a head tears apart and those that it glues together, among its queries, by name and place."""
    dataset = results.datasets.get(f"distorted_pairs L{layer}.H{head}")
    if dataset is None:
        return {"torn": "not asked", "glued": "not asked"}
    names = ("earlier_token_text", "earlier_token", "later_token_text", "later_token")
    return {
        kind: "; ".join(
            f"{display_token(str(a))} ({int(i)}) and {display_token(str(b))} ({int(j)})"
            for a, i, b, j in zip(*(dataset.sel(kind=kind)[name].values[:n_pairs] for name in names), strict=True)
        )
        for kind in ("torn", "glued")
    }


def head_list_lines(results: Results) -> list[str]:
    """A line a list: its clearest heads, and what the first of them does to pairs of tokens."""
    agreement, lines = results.datasets["agreement"], []
    for name, heads in head_lists(agreement).items():
        if not heads:
            continue
        head_names = ", ".join(
            f"L{layer}.H{head} {format_number(float(agreement.agreement[layer, head]))}"
            for layer, head in heads[:MAX_LISTED_HEADS]
        )
        more_note = f" and {len(heads) - MAX_LISTED_HEADS} more" if len(heads) > MAX_LISTED_HEADS else ""
        pairs_of_head = pair_texts(results, *heads[0], n_pairs=2)
        lines.append(
            f"{HEAD_LISTS[name].capitalize()} ({pluralise(len(heads), 'head')}): {head_names}{more_note}. "
            f"L{heads[0][0]}.H{heads[0][1]} has torn apart "
            f"(near in E, far in its image): {pairs_of_head['torn']}; glued together (far in E, near in its "
            f"image): {pairs_of_head['glued']}."
        )
    return lines


def head_table(results: Results) -> list[Block]:
    """The clearest heads of every list with their numbers, and the pair of tokens that each changes most."""
    if "agreement" not in results.datasets:
        return []
    agreement = results.datasets["agreement"]
    columns = {"agreement_raw": "raw", "agreement": "agreement", "agreement_untrained": "untrained", "z": "z"}
    columns = {name: title for name, title in columns.items() if name in agreement}
    header = [Cell("head"), *(Cell(title, str(agreement[name].attrs["definition"])) for name, title in columns.items())]
    rows = []
    for name, heads in head_lists(agreement).items():
        for layer, head in heads[:MAX_LISTED_HEADS]:
            pairs_of_head, values = (
                pair_texts(results, layer, head, 1),
                [format_number(float(agreement[column][layer, head])) for column in columns],
            )
            rows.append(
                [
                    *map(
                        Cell,
                        (f"L{layer}.H{head}", *values, HEAD_LISTS[name], pairs_of_head["torn"], pairs_of_head["glued"]),
                    )
                ]
            )
    text_columns = frozenset({0, *range(len(header), len(header) + 3)})
    header += [Cell("does"), Cell("tears apart"), Cell("glues together")]
    return [Table("Heads and the tokens that they see otherwise", header, rows, text_columns)] if rows else []

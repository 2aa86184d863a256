"""Does attention read similarity? A row a layer, how many heads read it, and the tokens that the clearest of them see otherwise."""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.numbers import plural, short
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.picture.token_labels import shown
from rheoscope.space.results import Answers

if TYPE_CHECKING:
    import xarray

LEVEL = 0.05
COLUMNS = {
    "agreement": "agreement",
    "null_sd": "null sd",
    "agreement_untrained": "untrained",
    "agreement_raw": "raw",
    "position_baseline": "position",
}
LISTS = {
    "similar": "reads similarity",
    "opposite": "reads its opposite",
    "random": "ignores it, as far as can be told from random heads",
}
"""What a head of each list does."""
LISTED = 8
"""Heads of a list that are named."""
Heads = list[tuple[int, int]]


def blocks(answers: Answers) -> list[Block]:
    """The table, and what it settles."""
    if "agreement" not in answers.found:
        return []
    return [layer_table(answers), Lines("What it settles", [*verdict(answers), *list_lines(answers)])]


def layer_table(answers: Answers) -> Table:
    """A row a layer: medians over heads, how many heads read similarity or its opposite beyond chance, and their types."""
    found, kinds = answers.found["agreement"], answers.found.get("head_types")
    columns = {name: title for name, title in COLUMNS.items() if name in found}
    header = [Cell("layer"), *(Cell(title, str(found[name].attrs["definition"])) for name, title in columns.items())]
    header += [
        Cell("similar", "heads that read similarity beyond chance"),
        Cell("opposite", "heads that read its opposite"),
    ]
    rows = []
    for layer in range(found.sizes["layer"]):
        medians = [short(float(found[name][layer].median())) for name in columns]
        counted = Counter([] if kinds is None else sorted(map(str, kinds.type.values[layer])))
        types = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in counted.items())
        rows.append([*map(Cell, (f"L{layer}", *medians, *_counts(found, layer), types))])
    words = frozenset({0, len(header)})
    heading = "Does attention read similarity in E? Medians over the heads of a layer"
    return Table(heading, [*header, Cell("types", "what kinds of heads they are")], rows, words)


def _counts(found: "xarray.Dataset", layer: int) -> tuple[str, str]:
    if "z" not in found:
        return "none", "none"
    signs = np.sign(found.z.values[layer]) * (found.q_value.values[layer] <= LEVEL)
    return str(int((signs > 0).sum())), str(int((signs < 0).sum()))


def lists(found: "xarray.Dataset") -> dict[str, Heads]:
    """Heads that read similarity, those that read its opposite, and the rest; the clearest of each first."""
    if "z" not in found:
        return {name: [] for name in LISTS}
    sure, z, own = (x.ravel() for x in (found.q_value.values <= LEVEL, found.z.values, found.agreement.values))
    ranked = {
        "similar": (sure & (z > 0), -own),
        "opposite": (sure & (z < 0), own),
        "random": (np.isfinite(z) & ~sure, np.abs(z)),
    }
    heads = found.sizes["head"]
    return {
        name: [(int(at) // heads, int(at) % heads) for at in np.argsort(order, kind="stable") if chosen[at]]
        for name, (chosen, order) in ranked.items()
    }


def listed(found: "xarray.Dataset", most: int) -> Heads:
    """The clearest heads of every list."""
    return [head for heads in lists(found).values() for head in heads[:most]]


def furthest(found: "xarray.Dataset") -> tuple[int, int]:
    """The head that reads similarity least."""
    layer, head = np.unravel_index(int(np.nanargmin(found.agreement.values)), found.agreement.shape)
    return int(layer), int(head)


def surest(found: "xarray.Dataset") -> tuple[int, int]:
    """The head that reads similarity most surely, or most where nothing is told from a null."""
    told = "z" in found and bool(found.z.notnull().any())
    values = found["z" if told else "agreement"].values
    layer, head = np.unravel_index(int(np.nanargmax(values)), values.shape)
    return int(layer), int(head)


def verdict(answers: Answers) -> list[str]:
    """What was settled for this text: how many heads read similarity, and how strongly."""
    found = answers.found["agreement"]
    read, heads = lists(found), found.agreement.size
    mean, raw, position, embedding = (
        short(float(found[name].mean()))
        for name in ("agreement", "agreement_raw", "position_baseline", "agreement_embedding")
    )
    beyond = (
        f"Similarity in E is read beyond random heads of the same spectrum by {len(read['similar'])} of {plural(heads, 'head')}, "
        f"its opposite by {len(read['opposite'])}; not to be told from random: {len(read['random'])} "
        f"({plural(int(found.attrs['draws']), 'draw')} a head, false discovery rate 5 %)."
    )
    much = (
        f"How much they read of it: the mean rank correlation of score and similarity is {mean} once distance and length are taken "
        f"out ({raw} with them; nearness alone explains {position}; with the embedding {embedding}); 1 would be attention as similarity."
    )
    lines = [beyond, much] if "z" in found else [much]
    return [*lines, untrained(found)] if "agreement_untrained" in found else lines


def untrained(found: "xarray.Dataset") -> str:
    """What the same architecture reads before it has learned anything."""
    controlled, raw = (float(found[f"{name}_untrained"].mean()) for name in ("agreement", "agreement_raw"))
    return f"The same architecture at initial weights: {short(controlled)} with distance and length taken out, {short(raw)} with them."


def pairs(answers: Answers, layer: int, head: int, top: int) -> dict[str, str]:
    """The tokens that a head tears apart and those that it glues together, among its queries, by name and place."""
    found = answers.found.get(f"distorted_pairs L{layer}.H{head}")
    if found is None:
        return {"torn": "not asked", "glued": "not asked"}
    names = ("first_token", "first", "second_token", "second")
    return {
        kind: "; ".join(
            f"{shown(str(a))} ({int(i)}) and {shown(str(b))} ({int(j)})"
            for a, i, b, j in zip(*(found.sel(kind=kind)[name].values[:top] for name in names), strict=True)
        )
        for kind in ("torn", "glued")
    }


def list_lines(answers: Answers) -> list[str]:
    """A line a list: its clearest heads, and what the first of them does to pairs of tokens."""
    found, lines = answers.found["agreement"], []
    for name, heads in lists(found).items():
        if not heads:
            continue
        named = ", ".join(
            f"L{layer}.H{head} {short(float(found.agreement[layer, head]))}" for layer, head in heads[:LISTED]
        )
        more = f" and {len(heads) - LISTED} more" if len(heads) > LISTED else ""
        torn = pairs(answers, *heads[0], top=2)
        lines.append(
            f"{LISTS[name].capitalize()} ({plural(len(heads), 'head')}): {named}{more}. L{heads[0][0]}.H{heads[0][1]} has torn apart "
            f"(near in E, far in its image): {torn['torn']}; glued together (far in E, near in its image): {torn['glued']}."
        )
    return lines


def head_table(answers: Answers) -> list[Block]:
    """The clearest heads of every list with their numbers, and the pair of tokens that each changes most."""
    if "agreement" not in answers.found:
        return []
    found = answers.found["agreement"]
    numbers = {"agreement_raw": "raw", "agreement": "agreement", "agreement_untrained": "untrained", "z": "z"}
    numbers = {name: title for name, title in numbers.items() if name in found}
    header = [Cell("head"), *(Cell(title, str(found[name].attrs["definition"])) for name, title in numbers.items())]
    rows = []
    for name, heads in lists(found).items():
        for layer, head in heads[:LISTED]:
            torn, values = pairs(answers, layer, head, 1), [short(float(found[one][layer, head])) for one in numbers]
            rows.append([*map(Cell, (f"L{layer}.H{head}", *values, LISTS[name], torn["torn"], torn["glued"]))])
    words = frozenset({0, *range(len(header), len(header) + 3)})
    header += [Cell("does"), Cell("tears apart"), Cell("glues together")]
    return [Table("Heads and the tokens that they see otherwise", header, rows, words)] if rows else []

"""The heads of a model as a list: by type, strongest first, each with its score and the score of uniform attention."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, Verbatim
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Block, Cell, Table
from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray

TYPE_NAMES = {
    "previous_token": Message("previous token"),
    "induction": Message("induction"),
    "duplicate_token": Message("duplicate token"),
    "sink": Message("sink"),
    "local": Message("local"),
    "uniform": Message("uniform"),
    "mixed": Message("no single type"),
}
LISTED_TYPES = tuple(name for name in TYPE_NAMES if name != "mixed")
MAX_HEADS = 12
"""The largest number of heads of one type in the table, and of untyped heads in its note."""


def blocks(results: Results) -> list[Block]:
    """One row per head that has a type. Heads without a single type are named below the table."""
    if not results.has("head_types"):
        return []
    dataset = results.datasets["head_types"]
    header = [
        Cell(Message("type")),
        Cell(Message("head")),
        Cell(Message("score"), Message("the score of this type: mean weight on the keys that define it, from 0 to 1")),
        Cell(Message("null"), Message("the score of uniform attention over the permitted keys")),
        Cell(Message("ratio"), Message("the score divided by its null; a type needs at least 2")),
    ]
    heads_by_type = {name: heads_of_type(dataset, name) for name in LISTED_TYPES}
    rows, group_ends = [], []
    for name, heads in heads_by_type.items():
        for index, (layer, head) in enumerate(heads[:MAX_HEADS]):
            rows.append(
                [Cell(type_cell(name, len(heads)) if index == 0 else ""), *head_cells(dataset, name, layer, head)]
            )
        group_ends += [len(rows) - 1] if len(heads) else []
    heading = Message("Heads by type, strongest first; measured on {probe}", probe=dataset.attrs["probe"])
    return [Table(heading, header, rows, frozenset({0, 1}), note=mixed_note(dataset), group_ends=frozenset(group_ends))]


def heads_of_type(dataset: "xarray.Dataset", name: str) -> list[tuple[int, int]]:
    """The (layer, head) of every head of a type, the highest score first. Mixed heads are in the order of the model."""
    heads = np.argwhere(dataset.type.values == name)
    if name in dataset:
        heads = heads[np.argsort(-dataset[name].values[tuple(heads.T)], kind="stable")]
    return [(int(layer), int(head)) for layer, head in heads]


def type_cell(name: str, count: int) -> Message:
    """The type, with the number of its heads. Of many heads the table has the strongest."""
    if count > MAX_HEADS:
        return Message("{type} ({shown} of {n})", type=TYPE_NAMES[name], shown=MAX_HEADS, n=count)
    return Message("{type} ({n})", type=TYPE_NAMES[name], n=count)


def head_cells(dataset: "xarray.Dataset", name: str, layer: int, head: int) -> list[Cell]:
    """The head, its score, the null and their ratio. The entropy of uniform heads has no null."""
    score = float(dataset[name].values[layer, head])
    null = float(dataset[f"{name}_null"].values[layer]) if f"{name}_null" in dataset else float("nan")
    ratio = Message("{ratio} ×", ratio=format_number(score / null)) if null > 0 else format_number(float("nan"))
    return [Cell(f"L{layer}.H{head}"), Cell(format_number(score)), Cell(format_number(null)), Cell(ratio)]


def mixed_note(dataset: "xarray.Dataset") -> str:
    """The heads without a single type, and the rule that decides the type of the others."""
    names = [f"L{layer}.H{head}" for layer, head in heads_of_type(dataset, "mixed")]
    if not names:
        return ""
    shown = ", ".join(names[:MAX_HEADS]) + " …" * (len(names) > MAX_HEADS)
    return Message(
        "No single type ({n} of {total} heads): {heads}", n=len(names), total=dataset.type.size, heads=Verbatim(shown)
    )

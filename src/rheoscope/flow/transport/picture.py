"""Must tokens stay themselves, and where do they go? κ and the identity share beside their nulls, what moving costs, who would swap."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.picture import SERIES_COLOURS, Axis, Label, Line, Panel, Picture
from rheoscope.picture.token_labels import display_token, step_names

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "From cloud to cloud, the optimal coupling finds the cheapest way to get the same set of places, whoever goes there. κ is "
    "1 where every token keeping its identity is that way, and 0 where it is no better than pairing at random. Its null "
    "permutes the same displacements among the tokens: only a gap between the two lines says something about who moves where. "
    "Where they go: from their own words to those of the tokens that come next, as far as the model predicts them."
)
MAX_SWAPS = 22
"""Swapping tokens that one chart can name."""


def picture(dataset: "xarray.Dataset") -> Picture:
    """Over strides, layer by layer, and the layer with most swaps."""
    panels = (
        stride_panel(dataset, "kappa", "κ over strides", "κ"),
        stride_panel(dataset, "identity_share", "Tokens that stay in place", "identity share"),
        destination_panel(dataset),
        layer_panel(dataset),
        cost_panel(dataset),
        swap_panel(dataset),
    )
    return Picture("Must tokens stay themselves?", CAPTION, panels)


def stride_panel(dataset: "xarray.Dataset", name: str, title: str, series: str) -> Panel:
    """Mean over all pairs of layers that far apart, and the null."""
    strides = tuple(str(stride) for stride in dataset.stride.values)
    x = range(len(strides))
    lines = [Line(series, x, dataset[f"{name}_strided"].mean("step").values)]
    description = f"{dataset[name].attrs['definition']}; mean over all pairs of clouds so many layers apart."
    if f"{name}_null" in dataset:
        null = dataset[f"{name}_null_strided"].mean("step").values
        lines.insert(0, Line("null", x, null, "null", "dashed"))
        description += f" Null: {dataset[f'{name}_null'].attrs['definition']}."
    return Panel(title, description, tuple(lines), Axis("layers apart", strides), Axis(high=1.03))


def destination_panel(dataset: "xarray.Dataset") -> Panel:
    """Cosines with the own and the next token's word, point by point, and how many partners have the own type next."""
    names = tuple(step_names(dataset.point.values))
    lines = [Line("own word", range(len(names)), dataset.toward_own.values, "second")]
    description = f"Own: {dataset.toward_own.attrs['definition']}."
    if "toward_next" in dataset:
        lines.append(Line("next word", range(len(names)), dataset.toward_next.values, "first"))
        description += f" Next: {dataset.toward_next.attrs['definition']}: {dataset.attrs['next']}."
        description += f" {float(dataset.next_type_share):.2f} is the {dataset.next_type_share.attrs['definition']}"
    if "toward_next_null" in dataset:
        lines.insert(0, Line("next, null", range(len(names)), dataset.toward_next_null.values, "null", "dashed"))
        description += f"; with partners permuted {float(dataset.next_type_share_null):.2f}"
    return Panel("Where tokens go", f"{description.removesuffix('.')}.", tuple(lines), Axis("", names), Axis("cosine"))


def layer_panel(dataset: "xarray.Dataset") -> Panel:
    names = tuple(step_names(dataset.step.values))
    lines = [Line("κ", range(len(names)), dataset.kappa.values)]
    if "kappa_null" in dataset:
        lines.insert(0, Line("κ null", range(len(names)), dataset.kappa_null.values, "null", "dashed"))
    return Panel("κ of every layer", dataset.kappa.attrs["definition"], tuple(lines), Axis("", names), Axis(high=1.03))


def cost_panel(dataset: "xarray.Dataset") -> Panel:
    names = tuple(step_names(dataset.step.values))
    fields = {
        "random_cost": ("random", "null"),
        "identity_cost": ("identity", "second"),
        "w2_squared": ("W₂²", "first"),
    }
    lines = tuple(
        Line(label, range(len(names)), dataset[name].values, colour, "dashed" if name == "random_cost" else "solid")
        for name, (label, colour) in fields.items()
    )
    description = "; ".join(f"{label}: {dataset[name].attrs['definition']}" for name, (label, _) in fields.items())
    return Panel("What moving costs", description, lines, Axis("", names), Axis("mean squared distance", log=True))


def swap_panel(dataset: "xarray.Dataset") -> Panel:
    """The layer where most tokens would swap: on the left the token, on the right whose place it would take."""
    coupling, identity = dataset.coupling.values, np.arange(dataset.sizes["token"])
    layer = int((coupling != identity).sum(axis=1).argmax())
    moving_tokens = [int(token) for token in np.flatnonzero(coupling[layer] != identity)]
    drawn_swaps = swap_cycles(coupling[layer], moving_tokens)[:MAX_SWAPS]
    token_labels = [
        f"{token} {display_token(str(token_text))}"
        for token, token_text in zip(dataset.token.values, dataset.token_text.values, strict=True)
    ]
    step_name = step_names(dataset.step.values)[layer]
    title = (
        f"{len(moving_tokens)} of {len(identity)} tokens would swap in {step_name}"
        if moving_tokens
        else "No token would swap"
    )
    description = "On the left a token, on the right the token whose new place it would take in the optimal coupling; a colour a cycle."
    description += (
        f" {len(drawn_swaps)} of {len(moving_tokens)} are drawn." if len(drawn_swaps) < len(moving_tokens) else ""
    )
    marks = swap_lines(coupling[layer], drawn_swaps, token_labels) or (
        Label(0.5, 0, "κ is 1 in every layer", "middle"),
    )
    axes = Axis(f"before and after {step_name}", bare=True, low=-0.9, high=1.9), Axis(bare=True)
    return Panel(title, description, marks, *axes, columns=2, height=max(0.6, (len(marks) * 6 + 60) / 236))


def swap_lines(coupling: np.ndarray, swaps: list[tuple[int, int]], token_labels: list[str]) -> tuple[Line | Label, ...]:
    """A line a token, from its place in the text to that of the token it would follow."""
    targets = [int(coupling[token]) for _, token in swaps]
    row_by_token = {token: -index for index, token in enumerate(sorted({*targets, *(token for _, token in swaps)}))}
    marks: list[Line | Label] = []
    for (cycle, token), target in zip(swaps, targets, strict=True):
        tip = f"{token_labels[token]} would take the place of {token_labels[target]}"
        marks.append(
            Line(
                token_labels[token],
                [0, 1],
                [row_by_token[token], row_by_token[target]],
                SERIES_COLOURS[cycle % len(SERIES_COLOURS)],
                tip=tip,
            )
        )
        marks += [
            Label(0, row_by_token[token], token_labels[token], "left"),
            Label(1, row_by_token[target], token_labels[target], "right"),
        ]
    return tuple(marks)


def swap_cycles(coupling: np.ndarray, moving_tokens: list[int]) -> list[tuple[int, int]]:
    """(cycle, token) of all that move, cycle by cycle, so that a chart that shows some shows whole ones first.

    >>> swap_cycles(np.array([1, 0, 2, 4, 3]), [0, 1, 3, 4])
    [(0, 0), (0, 1), (1, 3), (1, 4)]
    """
    cycles: list[tuple[int, int]] = []
    remaining, cycle = set(moving_tokens), 0
    for start in moving_tokens:
        token = start
        while token in remaining:
            remaining.remove(token)
            cycles.append((cycle, token))
            token = int(coupling[token])
        cycle += bool(cycles) and cycles[-1][0] == cycle
    return cycles

"""The plot of `transport`: κ and identity share with their nulls, costs, direction of movement, and swaps."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.flow.transport.words import prediction_condition
from rheoscope.messages.message import Message, join
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Label, Line, Panel, Picture
from rheoscope.picture.token_labels import display_token, step_names

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "The optimal coupling is the cheapest way to move one cloud to the next, whichever token goes where. κ is 1 if keeping every "
    "token's identity is optimal, and 0 if it is no better than random pairing. The null permutes the displacements among the tokens. "
    "The direction of movement compares tokens with their own vectors and with those of the next tokens."
)
MAX_SWAPS = 22
"""The largest number of swapping tokens in the plot."""


def picture(dataset: "xarray.Dataset") -> Picture:
    """κ and identity share over strides and layers, costs, direction, and the layer with the most swaps."""
    panels = (
        stride_panel(dataset, "kappa", Message("κ over strides"), "κ"),
        stride_panel(dataset, "identity_share", Message("Identity share over strides"), Message("identity share")),
        *([destination_panel(dataset)] if "toward_own" in dataset else []),
        layer_panel(dataset),
        cost_panel(dataset),
        swap_panel(dataset),
    )
    return Picture(Message("Is keeping token identity the cheapest transport?"), CAPTION, panels)


def stride_panel(dataset: "xarray.Dataset", name: str, title: str, series: str) -> Panel:
    """The mean over all pairs of layers at each stride, with the null."""
    strides = tuple(str(stride) for stride in dataset.stride.values)
    x = range(len(strides))
    lines = [Line(series, x, dataset[f"{name}_strided"].mean("step").values)]
    definition = dataset[name].attrs["definition"]
    sentences: list[str] = [
        Message("{definition}; mean over all pairs of clouds at this stride.", definition=definition)
    ]
    if f"{name}_null" in dataset:
        null = dataset[f"{name}_null_strided"].mean("step").values
        lines.insert(0, Line(Message("null"), x, null, "null", "dashed"))
        sentences.append(Message("Null: {definition}.", definition=dataset[f"{name}_null"].attrs["definition"]))
    x_axis = Axis(Message("stride in layers"), strides)
    return Panel(title, join(" ", sentences), tuple(lines), x_axis, Axis(high=1.03))


def destination_panel(dataset: "xarray.Dataset") -> Panel:
    """Cosines with the vectors of the own and of the next token at every point, and the share of next types."""
    names = tuple(step_names(dataset.point.values))
    lines = [Line(Message("own token"), range(len(names)), dataset.toward_own.values, "second")]
    sentences: list[str] = [Message("Own token: {definition}.", definition=dataset.toward_own.attrs["definition"])]
    if "toward_next" in dataset:
        lines.append(Line(Message("next token"), range(len(names)), dataset.toward_next.values, "first"))
        sentences += [
            Message("Next token: {definition}.", definition=dataset.toward_next.attrs["definition"]),
            Message("Vectors of the next tokens: {source}.", source=dataset.attrs["next_token_source"]),
            Message(
                "{definition}: {value:.2f}.",
                definition=dataset.next_type_share.attrs["definition"],
                value=float(dataset.next_type_share),
            ),
            Message("Condition: {condition}.", condition=prediction_condition(dataset)),
        ]
    if "toward_next_null" in dataset:
        null = dataset.toward_next_null.values
        lines.insert(0, Line(Message("next token, null"), range(len(names)), null, "null", "dashed"))
        sentences.append(Message("With permuted partners: {value:.2f}.", value=float(dataset.next_type_share_null)))
    title, cosine_axis = Message("Direction of movement"), Axis(Message("cosine"))
    return Panel(title, join(" ", sentences), tuple(lines), Axis("", names), cosine_axis)


def layer_panel(dataset: "xarray.Dataset") -> Panel:
    names = tuple(step_names(dataset.step.values))
    lines = [Line("κ", range(len(names)), dataset.kappa.values)]
    if "kappa_null" in dataset:
        lines.insert(0, Line(Message("null"), range(len(names)), dataset.kappa_null.values, "null", "dashed"))
    definition = dataset.kappa.attrs["definition"]
    return Panel(Message("κ of every layer"), definition, tuple(lines), Axis("", names), Axis(high=1.03))


def cost_panel(dataset: "xarray.Dataset") -> Panel:
    names = tuple(step_names(dataset.step.values))
    fields = {
        "random_cost": (Message("random pairing"), "null"),
        "identity_cost": (Message("identity"), "second"),
        "w2_squared": ("W₂²", "first"),
    }
    lines = tuple(
        Line(label, range(len(names)), dataset[name].values, colour, "dashed" if name == "random_cost" else "solid")
        for name, (label, colour) in fields.items()
    )
    sentences: list[str] = [
        Message("{name}: {definition}.", name=label, definition=dataset[name].attrs["definition"])
        for name, (label, _) in fields.items()
    ]
    cost_axis = Axis(Message("mean squared distance"), log=True)
    return Panel(Message("Transport costs"), join(" ", sentences), lines, Axis("", names), cost_axis)


def swap_panel(dataset: "xarray.Dataset") -> Panel:
    """The layer in which most tokens swap under the optimal coupling: tokens on the left, their partners on the right."""
    coupling, identity = dataset.coupling.values, np.arange(dataset.sizes["token"])
    layer = int((coupling != identity).sum(axis=1).argmax())
    moving_tokens = [int(token) for token in np.flatnonzero(coupling[layer] != identity)]
    drawn_swaps = swap_cycles(coupling[layer], moving_tokens)[:MAX_SWAPS]
    token_labels = [
        f"{token} {display_token(str(token_text))}"
        for token, token_text in zip(dataset.token.values, dataset.token_text.values, strict=True)
    ]
    step_name = step_names(dataset.step.values)[layer]
    title = Message("{n} of {total} tokens swap in {step}", n=len(moving_tokens), total=len(identity), step=step_name)
    description = Message(
        "A token on the left takes the new position of the token on the right in the optimal coupling. One colour per cycle."
    )
    if len(drawn_swaps) < len(moving_tokens):
        note = Message("{n} of {total} tokens are drawn.", n=len(drawn_swaps), total=len(moving_tokens))
        description = join(" ", [description, note])
    marks = swap_lines(coupling[layer], drawn_swaps, token_labels) or (
        Label(0.5, 0, Message("κ is 1 in every layer"), "middle"),
    )
    title = title if moving_tokens else Message("No token swaps")
    axes = Axis(Message("before and after {step}", step=step_name), bare=True, low=-0.9, high=1.9), Axis(bare=True)
    return Panel(title, description, marks, *axes, columns=2, height=max(0.6, (len(marks) * 6 + 60) / 236))


def swap_lines(coupling: np.ndarray, swaps: list[tuple[int, int]], token_labels: list[str]) -> tuple[Line | Label, ...]:
    """One line per token, from its position in the text to that of its partner."""
    targets = [int(coupling[token]) for _, token in swaps]
    row_by_token = {token: -index for index, token in enumerate(sorted({*targets, *(token for _, token in swaps)}))}
    marks: list[Line | Label] = []
    for (cycle, token), target in zip(swaps, targets, strict=True):
        tip = Message(
            "{token} takes the position of {partner}", token=token_labels[token], partner=token_labels[target]
        )
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
    """(cycle, token) for all swapping tokens, cycle by cycle, so that a truncated plot shows whole cycles first.

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

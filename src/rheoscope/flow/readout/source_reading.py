"""What the predicting token of a decoder reads from the source: the heads of cross-attention, and their part of its path."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rheoscope.messages.message import Message, join
from rheoscope.messages.numbers import format_number, format_percent
from rheoscope.picture.picture import Axis, Cells, Panel, format_value
from rheoscope.picture.token_labels import display_token, quoted_token
from rheoscope.space.results import Results
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

N_HEADS = 3
"""The number of heads that the story names."""
N_ROWS = 8
"""The number of heads in the picture."""


def source_values(trace: Trace, token: int) -> dict[str, Tensor]:
    """The weights of every head of cross-attention on the source, and its share of the path. Empty without a source.

    A share is ⟨Δ_h, Δ/‖Δ‖⟩ / (path length of the token), where Δ is the displacement by the cross-attention of the layer. The
    shares of all heads and constants add up to that of cross-attention.
    """
    if trace.memory is None:
        return {}
    weights, shares, total = [], [], []
    path = at_least_float32(trace.points[:, token]).diff(dim=0).norm(dim=-1).sum()
    for layer, heads in enumerate(trace.view.cross_heads):
        displacements, constants = (
            at_least_float32(part[..., 0, :]) for part in trace.cross_attention_parts(layer, [token])
        )
        update = displacements.sum(0) + constants
        total.append(safe_divide(update.norm(), path))
        shares.append(safe_divide(displacements @ update, update.norm() * path))
        weights += [trace.cross_weights(layer, head)[token] for head in range(heads.n_heads)]
    return {
        "source_weight": torch.stack(weights),
        "source_path_share": torch.cat(shares),
        "cross_path_share": torch.stack(total).sum(),
    }


def source_coords(trace: Trace) -> dict[str, object]:
    """The names of the heads of cross-attention and the tokens of the source. Empty without a source."""
    if trace.memory is None:
        return {}
    names = [
        f"L{layer}.cross.H{head}" for layer, heads in enumerate(trace.view.cross_heads) for head in range(heads.n_heads)
    ]
    texts = trace.memory_tokens or [str(position) for position in range(len(trace.memory))]
    return {"cross_head": names, "source_token": range(len(texts)), "source_text": ("source_token", texts)}


def largest_heads(lens: "xarray.Dataset", n_heads: int) -> "xarray.Dataset":
    """The heads of cross-attention with the largest shares of the path, the largest first."""
    return lens.isel(cross_head=np.argsort(-lens.source_path_share.values, kind="stable")[:n_heads])


def read_from_source(results: Results) -> Message:
    """The source token that each of these heads reads most, and its share of the path of the predicting token."""
    lens = results.datasets["readout"]
    heads = largest_heads(lens, N_HEADS)
    texts = heads.source_text.values
    sentences = []
    for name, weights, share in zip(
        heads.cross_head.values, heads.source_weight.values, heads.source_path_share.values, strict=True
    ):
        key = int(weights.argmax())
        sentences.append(
            Message(
                "{head} reads {text} at {key} ({weight} of its weight) and makes {share} of the path",
                head=str(name),
                text=quoted_token(str(texts[key])),
                key=key,
                weight=format_number(float(weights[key])),
                share=format_percent(float(share)),
            )
        )
    return Message(
        "{heads}; all cross-attention makes {share} of the path of {token}; equal weights would be 1/{n}",
        heads=join(" · ", sentences),
        share=format_percent(float(lens.cross_path_share)),
        token=quoted_token(results.required_trace.tokens[int(lens.attrs["token"])]),
        n=len(texts),
    )


def panels(results: Results) -> list[Panel]:
    """The weights of the largest heads on the source, one row per head."""
    lens = results.datasets["readout"]
    heads = largest_heads(lens, N_ROWS)
    names = [str(name) for name in heads.cross_head.values]
    texts = [display_token(str(text)) for text in heads.source_text.values]
    token = display_token(results.required_trace.tokens[int(lens.attrs["token"])])
    tips = [
        [
            Message(
                "{head} reads {text} with {weight} of its weight", head=name, text=text, weight=format_value(weight)
            )
            for text, weight in zip(texts, row, strict=True)
        ]
        for name, row in zip(names, heads.source_weight.values.tolist(), strict=True)
    ]
    about = Message(
        "The heads of cross-attention that move {token} furthest, the first on top. Colours are their weights on the tokens of the "
        "source. Equal weights would be {uniform}.",
        token=token,
        uniform=format_number(1 / len(texts)),
    )
    cells = Cells(heads.source_weight.values, tips=tips, name=Message("weight"))
    x_axis, y_axis = Axis(Message("source"), tuple(texts)), Axis(Message("head"), tuple(names))
    return [Panel(Message("What {token} reads from the source", token=token), about, (cells,), x_axis, y_axis)]

"""The plot of `energy`: maps of cosine and alignment by head, and how far each layer is from a gradient flow."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, join
from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "A framed head is gradient-like. Its cosine with the energy gradient and the alignment of F with Mᵀ "
    "both exceed those of randomly rotated maps. The ledger shows how much each part of the layer changes "
    "the direction of the displacement (0: no change)."
)

LEDGER_TITLES = {
    "mask": Message("mask"),
    "norm": Message("norm layer"),
    "position": Message("position"),
    "mlp": Message("MLP"),
}


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Two maps, four distances to a gradient flow, the ledger over depth, and the change of the landscape."""
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    maps = (
        head_panel(dataset, "cosine", Message("Cosine with the energy gradient: cos(Δ, ∇Λ)"), types),
        head_panel(dataset, "alignment", Message("Alignment of F with Mᵀ: cos⟨F, Mᵀ⟩"), types),
    )
    ledger_lines = [
        Line(
            LEDGER_TITLES[str(difference)], range(len(layers)), dataset.ledger.sel(difference=difference).values, colour
        )
        for colour, difference in zip(SERIES_COLOURS, dataset.difference.values, strict=False)
    ]
    landscape_lines = [
        Line(Message("M of this layer and the next"), range(len(layers)), dataset.landscape.values, "first"),
        Line(
            Message("update by this layer and the next"), range(len(layers)), dataset.landscape_update.values, "second"
        ),
    ]
    return Picture(
        Message("Is it a gradient flow?"),
        CAPTION if types is None else join(" ", [CAPTION, TYPES_CAPTION]),
        (
            *maps,
            distance_panel(dataset, layers),
            Panel(
                Message("Parts that change the direction of the update"),
                dataset.ledger.attrs["definition"],
                tuple(ledger_lines),
                Axis("", layers),
                Axis(low=0.0),
            ),
            Panel(
                Message("Change of the landscape between layers"),
                dataset.landscape.attrs["definition"],
                tuple(landscape_lines),
                Axis("", layers),
            ),
        ),
    )


def distance_panel(dataset: "xarray.Dataset", layers: tuple[str, ...]) -> Panel:
    """The cosine with the gradient under three readings of the energy, and the dissipation. A gradient flow has 1."""
    series = {
        Message("each head's own M, mean over heads"): dataset.cosine.mean("head"),
        Message("symmetrised M, mean over heads"): dataset.symmetric_cosine.mean("head"),
        Message("sum over the heads of a layer"): dataset.layer_cosine,
        Message("dissipation"): dataset.dissipation,
    }
    lines = [
        Line(name, range(len(layers)), values.values, colour)
        for colour, (name, values) in zip(SERIES_COLOURS, series.items(), strict=False)
    ]
    definition = Message(
        "Cosine of the update with the gradient of the energy, and its change relative to a step along the gradient. A gradient "
        "flow has 1, random directions 0."
    )
    return Panel(Message("Distances to a gradient flow"), definition, tuple(lines), Axis("", layers))


def head_panel(dataset: "xarray.Dataset", name: str, title: str, types: "xarray.Dataset | None") -> Panel:
    """One cell per head, with a frame around gradient-like heads."""
    values, z = dataset[name].values, dataset[{"cosine": "z", "alignment": "alignment_z"}[name]].values
    framed_heads = frozenset((int(a), int(b)) for a, b in np.argwhere(dataset.gradient_like.values))
    limit = max(float(np.nanmax(np.abs(values))), 1e-6)
    return head_map(
        title, dataset[name].attrs["definition"], values, (-limit, limit), framed_heads, {"z": z}, types, name="cosine"
    )

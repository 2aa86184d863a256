"""Which heads climb their own energy: a map of layers x heads beside its null, and what keeps layers from a gradient flow."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "A head is gradient-like where it moves tokens up its own energy (cosine) and its content map points along its relevance "
    "(alignment), both beyond what the same maps turned at random give; those heads are framed. The ledger says how much each "
    "part of the layer turns the way of attention: 0 where leaving it out makes no difference."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Two maps, the ledger over depth, and how the landscape changes."""
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    maps = (
        head_panel(dataset, "cosine", "Up the energy: cos(Δ, ∇Λ)", types),
        head_panel(dataset, "alignment", "Along relevance: cos⟨F, Mᵀ⟩", types),
    )
    ledger_lines = [
        Line(str(difference), range(len(layers)), dataset.ledger.sel(difference=difference).values, colour)
        for colour, difference in zip(SERIES_COLOURS, dataset.difference.values, strict=False)
    ]
    landscape_lines = [
        Line("M of this layer and the next", range(len(layers)), dataset.landscape.values, "first"),
        Line("update by this layer and the next", range(len(layers)), dataset.landscape_update.values, "second"),
    ]
    return Picture(
        "Is it a gradient flow?",
        CAPTION + TYPES_CAPTION * (types is not None),
        (
            *maps,
            Panel("What turns attention's way", dataset.ledger.attrs["definition"], tuple(ledger_lines), Axis("", layers), Axis(low=0.0)),
            Panel("How the landscape changes", dataset.landscape.attrs["definition"], tuple(landscape_lines), Axis("", layers)),
        ),
    )  # fmt: skip


def head_panel(dataset: "xarray.Dataset", name: str, title: str, types: "xarray.Dataset | None") -> Panel:
    """One square a head; gradient-like heads are framed."""
    values, z = dataset[name].values, dataset[{"cosine": "z", "alignment": "alignment_z"}[name]].values
    framed_heads = frozenset((int(a), int(b)) for a, b in np.argwhere(dataset.gradient_like.values))
    limit = max(float(np.nanmax(np.abs(values))), 1e-6)
    return head_map(
        title, dataset[name].attrs["definition"], values, (-limit, limit), framed_heads, {"z": z}, types, name="cosine"
    )

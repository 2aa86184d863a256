"""Which heads climb their own energy: a map of layers x heads beside its null, and what keeps layers from a gradient flow."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import TYPED, head_map
from rheoscope.picture.picture import CLUSTERS, Axis, Line, Panel, Picture

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
        heads(dataset, "cosine", "Up the energy: cos(Δ, ∇Λ)", types),
        heads(dataset, "alignment", "Along relevance: cos⟨F, Mᵀ⟩", types),
    )
    ledger = [
        Line(str(part), range(len(layers)), dataset.ledger.sel(difference=part).values, colour)
        for colour, part in zip(CLUSTERS, dataset.difference.values, strict=False)
    ]
    shift = [
        Line("M of this layer and the next", range(len(layers)), dataset.landscape.values, "first"),
        Line("update by this layer and the next", range(len(layers)), dataset.landscape_update.values, "second"),
    ]
    return Picture(
        "Is it a gradient flow?",
        CAPTION + TYPED * (types is not None),
        (
            *maps,
            Panel("What turns attention's way", dataset.ledger.attrs["definition"], tuple(ledger), Axis("", layers), Axis(low=0.0)),
            Panel("How the landscape changes", dataset.landscape.attrs["definition"], tuple(shift), Axis("", layers)),
        ),
    )  # fmt: skip


def heads(dataset: "xarray.Dataset", name: str, title: str, types: "xarray.Dataset | None") -> Panel:
    """One square a head; gradient-like heads are framed."""
    values, z = dataset[name].values, dataset[{"cosine": "z", "alignment": "alignment_z"}[name]].values
    marked = frozenset((int(a), int(b)) for a, b in np.argwhere(dataset.gradient_like.values))
    reach = max(float(np.nanmax(np.abs(values))), 1e-6)
    return head_map(
        title, dataset[name].attrs["definition"], values, (-reach, reach), marked, {"z": z}, types, name="cosine"
    )

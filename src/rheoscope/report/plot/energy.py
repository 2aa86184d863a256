"""Which heads climb their own energy: a map of layers x heads beside its null, and what keeps layers from a gradient flow."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import CLUSTERS, Axis, Cells, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

CAPTION = (
    "A head is gradient-like where it moves tokens up its own energy (cosine) and its content map points along its relevance "
    "(alignment), both beyond what the same maps turned at random give; those heads are framed. The ledger says how much each "
    "part of the layer turns the way of attention: 0 where leaving it out makes no difference."
)


def picture_energy(dataset: "xarray.Dataset") -> Picture:
    """Two maps, the ledger over depth, and how the landscape changes."""
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    maps = (
        heads(dataset, "cosine", "Up the energy: cos(Δ, ∇Λ)"),
        heads(dataset, "alignment", "Along relevance: cos⟨F, Mᵀ⟩"),
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
        CAPTION,
        (
            *maps,
            Panel("What turns attention's way", dataset.ledger.attrs["definition"], tuple(ledger), Axis("", layers), Axis(low=0.0)),
            Panel("How the landscape changes", dataset.landscape.attrs["definition"], tuple(shift), Axis("", layers)),
        ),
    )  # fmt: skip


def heads(dataset: "xarray.Dataset", name: str, title: str) -> Panel:
    """One square a head; gradient-like heads are framed."""
    values, z = dataset[name].values, dataset[{"cosine": "z", "alignment": "alignment_z"}[name]].values
    layers, count = values.shape
    tips = [[f"L{a}.H{b}: {values[a, b]:.3f}, z {z[a, b]:.1f}" for b in range(count)] for a in range(layers)]
    marked = frozenset((int(a), int(b)) for a, b in np.argwhere(dataset.gradient_like.values))
    sides = Axis("head", tuple(str(h) for h in range(count))), Axis("", tuple(f"L{layer}" for layer in range(layers)))
    reach = max(float(np.nanmax(np.abs(values))), 1e-6)
    marks = (Cells(values, tips=tips, marked=marked, low=-reach, high=reach),)
    return Panel(title, dataset[name].attrs["definition"], marks, *sides, height=max(0.8, (layers * 9 + 46) / 236))


def plot_energy(dataset: "xarray.Dataset") -> "Figure":
    """The picture with matplotlib, for papers."""
    return on_paper(picture_energy(dataset))


def interactive_energy(dataset: "xarray.Dataset") -> Any:
    """The picture with plotly, for notebooks."""
    return in_notebook(picture_energy(dataset))

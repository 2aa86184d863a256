"""Every head of a model as an operator: one map of heads x layers per number."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.report.style import INK, MUTED, new_figure, styled

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {
    "symmetry": ("symmetry of M", -1.0, 1.0),
    "positive_share": ("positive share of M (null .5)", 0.0, 1.0),
    "directionality": ("directionality of M", -1.0, 1.0),
    "copying": ("copying of F", -1.0, 1.0),
    "alignment": ("alignment cos⟨F, Mᵀ⟩", -1.0, 1.0),
    "stable_rank_M": ("stable rank of M", None, None),
    "stable_rank_F": ("stable rank of F", None, None),
}


def plot_operators(dataset: "xarray.Dataset") -> "Figure":
    """Maps of all heads, and the fall of the singular values of M and F."""
    layers, heads = dataset.sizes["layer"], dataset.sizes["head"]
    with styled():
        figure = new_figure(12.0, max(4.2, 2 * (1.2 + 0.16 * layers)))
        axes = figure.subplots(2, 4).flatten()
        for axis, (name, (title, low, high)) in zip(axes, PANELS.items(), strict=False):
            draw_map(axis, dataset[name].values, title, low, high)
        draw_spectrum(axes[-1], dataset)
        figure.suptitle(
            f"{dataset.attrs.get('model', '')}: {layers} layers x {heads} heads as operators",
            x=0.01,
            ha="left",
            fontsize=11,
        )
    return figure


def draw_map(axis: "Axes", values: np.ndarray, title: str, low: float | None, high: float | None) -> None:
    cmap = "magma" if low is None else "RdBu_r"
    image = axis.imshow(values, cmap=cmap, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    axis.figure.colorbar(image, ax=axis, fraction=0.05, pad=0.02)
    axis.set_title(title, loc="left", fontsize=9, color=INK)
    axis.set_xlabel("head")
    axis.set_ylabel("layer")
    axis.locator_params(integer=True)
    axis.spines[:].set_visible(False)


def draw_spectrum(axis: "Axes", dataset: "xarray.Dataset") -> None:
    """Median over heads of the singular values, each head's largest set to 1."""
    for name, colour in (("singular_values_M", "#27508f"), ("singular_values_F", "#e4572e")):
        values = dataset[name].values.reshape(-1, dataset[name].shape[-1])
        scaled = values / np.maximum(values[:, :1], 1e-30)
        low, middle, high = np.quantile(scaled, (0.1, 0.5, 0.9), axis=0)
        rank = np.arange(1, len(middle) + 1)
        axis.fill_between(rank, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.plot(rank, middle, color=colour, label=name[-1])
    axis.set_yscale("log")
    axis.set_title("singular values (10–90 % of heads)", loc="left", fontsize=9, color=INK)
    axis.set_xlabel("rank", color=MUTED)
    axis.legend(frameon=False)

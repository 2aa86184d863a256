"""One figure for each experiment of the theory bench: lines are theory, dots are measurements."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.report.style import ACCENT, FIELD_COLOURS, INK, MUTED, figure_style, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, PALE_BLUE = FIELD_COLOURS[-1], FIELD_COLOURS[3]
SHADES = [FIELD_COLOURS[3], FIELD_COLOURS[4], FIELD_COLOURS[5], INK]
TIME = Message("time")
MIN_GAP_PERCENT = 1e-3
"""The smallest gap that is drawn, in percent."""
DOT_STYLE: Any = {"linestyle": "none", "marker": "o", "markersize": 3.4, "markeredgewidth": 0}


def figure(dataset: "xarray.Dataset") -> "Figure":
    """The figure of one experiment, by its name in `attrs`."""
    name = dataset.attrs["experiment"]
    draw = DRAW_FUNCTIONS[name]
    with figure_style():
        sheet = new_figure(9.6, 3.9)
        axes = list(sheet.subplots(1, 2, gridspec_kw={"width_ratios": PANEL_WIDTHS.get(name, (1, 1)), "wspace": 0.08}))
        draw(axes, dataset)
        sheet.suptitle(render(dataset.attrs["shows"]), x=0.008, ha="left", fontsize=11.5, color=INK)
        sheet.text(0.992, 0.985, dataset.attrs["source"], ha="right", va="top", fontsize=7.5, color=MUTED)
    return sheet


def set_titles(axis: "Axes", title: str, x: str = "", y: str = "") -> None:
    axis.set_title(render(title), loc="left", fontsize=9, color=MUTED)
    axis.set_xlabel(render(x))
    axis.set_ylabel(render(y))


def add_legend(axis: "Axes", **placement: Any) -> None:
    axis.legend(frameon=False, fontsize=8, labelcolor=INK, handlelength=1.6, **placement)


def draw_level(axis: "Axes", y: float) -> None:
    axis.axhline(y, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)


def draw_gaps(axis: "Axes", dataset: "xarray.Dataset") -> None:
    """The relative difference between every number and the expected one."""
    gap = np.maximum(dataset.gap.values * 100, MIN_GAP_PERCENT)
    rows = np.arange(len(gap))[::-1]
    axis.hlines(rows, MIN_GAP_PERCENT, gap, color=FIELD_COLOURS[2], linewidth=2.5)
    axis.plot(gap, rows, color=BLUE, clip_on=False, **{**DOT_STYLE, "markersize": 6})
    axis.axvline(2, color=ACCENT, linewidth=1)
    axis.set_xscale("log")
    axis.set_xlim(MIN_GAP_PERCENT, 10)
    axis.set_ylim(-0.6, len(gap) - 0.4)
    axis.set_yticks(rows, [str(quantity) for quantity in dataset.quantity.values], fontsize=7.5)
    axis.tick_params(axis="y", length=0, labelcolor=INK, pad=8)
    axis.spines["left"].set_visible(False)
    set_titles(axis, Message("relative difference from the expected value (line: 2 %)"), "%")


def equiangular(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    for row, (case, colour) in enumerate(zip(dataset.case.values, (PALE_BLUE, ACCENT, BLUE), strict=True)):
        time = dataset.time.values[row]
        left.plot(time, dataset.cosine_ode.values[row], color=colour, label=str(case))
        left.plot(time, dataset.cosine.values[row], color=colour, **DOT_STYLE)
        left.plot([dataset.expected.values[2 * row]] * 2, [0, 0.9], color=colour, linewidth=0.8, linestyle=":")
    draw_level(left, dataset.attrs["level"])
    left.set(xlim=(0, None), ylim=(0, 1.02))
    set_titles(
        left,
        Message("line: equation, dots: particles, dotted: published t(γ = .9)"),
        TIME,
        Message("cosine γ of a pair"),
    )
    add_legend(left, loc=(0.46, 0.45))
    draw_gaps(right, dataset)


def energy(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    for row, (system, colour) in enumerate(zip(dataset.system.values, (BLUE, PALE_BLUE, ACCENT), strict=True)):
        left.plot(dataset.time, dataset.energy.values[row], color=colour, label=str(system))
    draw_level(left, 1.0)
    left.set_xlim(0, 10)
    set_titles(left, Message("energy over its largest value"), TIME, r"$E\,/\,(e^\beta/2\beta)$")
    add_legend(left, loc="center right")
    for row, colour in enumerate((BLUE, PALE_BLUE)):
        slope, height, time = dataset.slope.values[row], dataset.energy.values[row], dataset.time.values
        right.plot(
            time,
            slope,
            color=colour,
            label=render(Message("{system}: formula", system=str(dataset.system.values[row]))),
        )
        right.plot(time[::6], np.gradient(height, time)[::6], color=colour, **DOT_STYLE)
    right.set_xlim(0, 10)
    set_titles(right, Message("line: Σ of squared speeds, dots: numerical slope of the energy"), TIME, "dE/dt")
    add_legend(right)


def metastable(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    time = np.maximum(dataset.time.values, 0.02)
    upper = dataset.angle.values[0] > 0
    for side, colour in ((upper, BLUE), (~upper, ACCENT)):
        left.plot(time, np.degrees(dataset.angle.values[:, side]), color=colour, linewidth=0.9, alpha=0.75)
    left.set_xscale("log")
    left.set_xlim(0.05, time[-1])
    set_titles(
        left,
        Message(
            "{n} particles on the circle, β = {beta:g}",
            n=dataset.sizes["particle"],
            beta=float(dataset.beta.values[-1]),
        ),
        TIME,
        Message("angle (degrees)"),
    )
    right.plot(dataset.beta, dataset.merging_derived, color=BLUE, label=render(Message("two heavy particles: ∫ dγ/γ'")))
    right.plot(
        dataset.beta,
        dataset.merging,
        color=ACCENT,
        label=render(Message("time to merge")),
        **{**DOT_STYLE, "markersize": 6},
    )
    right.plot(
        dataset.beta,
        dataset.formed,
        color=PALE_BLUE,
        label=render(Message("time to form")),
        **{**DOT_STYLE, "markersize": 6},
    )
    right.set_yscale("log")
    right.set_xticks(dataset.beta.values)
    set_titles(right, Message("clusters form fast and merge slowly"), "β", TIME)
    add_legend(right, loc="upper left")


def causal(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    cosine, time = dataset.cosine.values, dataset.time.values
    for token in range(2, cosine.shape[1]):
        left.plot(time, cosine[:, token], color=FIELD_COLOURS[2 + 3 * token // cosine.shape[1]], linewidth=0.9)
    left.plot(time, cosine[:, 1], color=ACCENT, linewidth=1.8, label=render(Message("second token")))
    left.plot(time, cosine[:, 0], color=INK, linewidth=1.8, label=render(Message("first token")))
    left.set_xlim(0, 15)
    set_titles(left, Message("pale: early tokens, dark: late tokens"), TIME, Message("cosine with the first token"))
    add_legend(left, loc="lower right")
    draw_gaps(right, dataset)


def free_space(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    z = dataset.corners.values
    for token in range(z.shape[1]):
        left.plot(z[:, token, 0], z[:, token, 1], color=PALE_BLUE, linewidth=0.8)
    left.plot(z[0, :, 0], z[0, :, 1], color=BLUE, **DOT_STYLE)
    left.scatter(z[-1, :, 0], z[-1, :, 1], s=60, facecolors="none", edgecolors=ACCENT, linewidths=1.3, zorder=3)
    left.set_aspect("equal", adjustable="datalim")
    set_titles(left, Message("V = I: from the start (dots) to the corners (rings)"), "z₁", "z₂")
    right.plot(dataset.time, dataset.planes.values[:, :, 0], color=PALE_BLUE, linewidth=0.8)
    for value in (dataset.planes.values[-1, :, 0].min(), dataset.planes.values[-1, :, 0].max()):
        draw_level(right, value)
    set_titles(right, Message("V = diag(1, −½): the first coordinate takes two values"), TIME, "z₁")


def gaussian(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    start, end = dataset.particles.values
    left.scatter(start[:, 0], start[:, 1], s=4, color=FIELD_COLOURS[2], linewidths=0)
    left.scatter(end[:, 0], end[:, 1], s=4, color=BLUE, linewidths=0)
    for name, colour in (("ode", INK), ("extra", ACCENT)):
        left.plot(*ellipse(dataset[f"covariance_{name}"].values[-1]), color=colour, linewidth=1.6)
    left.set_aspect("equal", adjustable="datalim")
    set_titles(
        left, Message("{n} particles, pale: start, dark: end; ellipses: 2σ of both equations", n=len(start)), "x₁", "x₂"
    )
    trace = {
        name: np.trace(dataset[name].values, axis1=1, axis2=2)
        for name in dataset.data_vars
        if "covariance" in str(name)
    }
    right.plot(dataset.time, trace["covariance_ode"], color=INK, label="Σ' = VΣAΣ + (VΣAΣ)ᵀ")
    right.plot(dataset.time, trace["covariance_extra"], color=ACCENT, label=render(Message("with VΣ + ΣVᵀ added")))
    right.plot(dataset.time, trace["covariance"], color=BLUE, label=render(Message("softmax attention")), **DOT_STYLE)
    right.plot(
        dataset.time,
        trace["covariance_linear"],
        color=PALE_BLUE,
        label=render(Message("linear attention")),
        **{**DOT_STYLE, "marker": "x", "markeredgewidth": 1},
    )
    set_titles(right, Message("trace of the covariance"), TIME, "tr Σ")
    add_legend(right)


def ellipse(covariance: np.ndarray) -> np.ndarray:
    """The ellipse at two standard deviations."""
    angle = np.linspace(0, 2 * np.pi, 120)
    return 2 * np.linalg.cholesky(covariance) @ np.stack([np.cos(angle), np.sin(angle)])


def long_context(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    critical, rho = dataset.attrs["critical"], dataset.attrs["rho"]
    for row, (n, colour) in enumerate(zip(dataset.n.values, SHADES, strict=True)):
        left.plot(
            dataset.c / critical, dataset.cosine.values[row], color=colour, label=f"$n = 10^{{{round(np.log10(n))}}}$"
        )
    left.plot(
        dataset.c_particles / critical,
        dataset.cosine_particles,
        color=ACCENT,
        label=render(Message("1000 tokens")),
        **{**DOT_STYLE, "markersize": 5},
    )
    left.plot(1, 4 * rho / (1 + 3 * rho), marker="D", markersize=6, color=INK, markerfacecolor="none")
    for y in (1.0, rho):
        draw_level(left, y)
    set_titles(
        left,
        Message("one step of attention at β = c log n; diamond: 4ρ/(1+3ρ)"),
        "c (1−ρ)",
        Message("cosine of a pair"),
    )
    add_legend(left, loc="center right")
    draw_gaps(right, dataset)


def rank_collapse(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    for name, colour, label in (
        ("residual", ACCENT, Message("attention alone")),
        ("residual_skip", BLUE, Message("with the residual connection")),
    ):
        left.plot(dataset[name].values, color=colour, label=render(label), marker="o", markersize=4)
    left.set_yscale("log")
    left.set_xticks(range(dataset.sizes["layer"]))
    set_titles(left, Message("distance of the cloud from its mean"), Message("layer"), "‖X − 1x̄‖")
    add_legend(left, loc="lower left")
    pairs = np.arange(dataset.sizes["pair"]) + 2
    right.bar(pairs, dataset.ratio.values, width=0.5, color=FIELD_COLOURS[2])
    for x, ratio in zip(pairs.tolist(), dataset.ratio.values.tolist(), strict=True):
        right.text(x, ratio + 0.05, f"{ratio:.2f}", ha="center", va="bottom", fontsize=8.5, color=INK)
    draw_level(right, 3.0)
    right.set_xticks(pairs)
    right.set_ylim(0, 3.6)
    set_titles(
        right,
        Message("ratio of consecutive decrements of log‖X − 1x̄‖ (3 is cubic)"),
        Message("layer"),
        Message("ratio"),
    )


def shaped(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    layers = np.arange(dataset.sizes["layer"])
    sampled_layers = np.unique(np.geomspace(1, layers[-1], 24).astype(int))
    left.plot(
        layers[1:],
        dataset.correlation_uniform.values[1:],
        color=ACCENT,
        linewidth=1.2,
        label=render(Message("softmax: recursion")),
    )
    left.plot(sampled_layers, dataset.correlation.values[0][sampled_layers], color=ACCENT, **DOT_STYLE)
    left.plot(
        [1, layers[-1]], [dataset.attrs["rho"]] * 2, color=BLUE, linewidth=1.2, label=render(Message("shaped: stays ρ"))
    )
    left.plot(sampled_layers, dataset.correlation.values[1][sampled_layers], color=BLUE, **DOT_STYLE)
    left.set_xscale("log")
    left.set_ylim(0, 1.05)
    set_titles(
        left,
        Message("line: theory, dots: mean over sampled heads"),
        Message("layer"),
        Message("correlation of two tokens"),
    )
    add_legend(left, loc="center right")
    draw_gaps(right, dataset)


def shaped_width(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    for index, (quantity, colour) in enumerate(zip(dataset.observable.values, (BLUE, PALE_BLUE, ACCENT), strict=True)):
        mean, sd = dataset.mean_sde.values[:, index], dataset.sd_sde.values[:, index]
        left.plot(dataset.time, mean, color=colour, label=str(quantity))
        left.fill_between(dataset.time, mean - sd, mean + sd, color=colour, alpha=0.12, linewidth=0)
        left.plot(dataset.time, dataset["mean"].values[:, index], color=colour, **DOT_STYLE)
    left.set_xlim(0, None)
    set_titles(
        left,
        Message("line and band: equation, dots: networks of width {width}", width=dataset.attrs["width"]),
        Message("depth / width"),
        Message("mean ± standard deviation"),
    )
    add_legend(left)
    draw_gaps(right, dataset)


def heat(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    for row, (epsilon, colour) in enumerate(zip(dataset.epsilon.values, SHADES, strict=True)):
        left.plot(dataset.x, dataset.change.values[row], color=colour, linewidth=1.2, label=f"ε = {epsilon:g}")
    left.plot(
        dataset.x, dataset.limit, color=ACCENT, linewidth=2.2, linestyle=(0, (1, 1.4)), label="½(f'' + 2 (log p)' f')"
    )
    left.set_ylim(None, 1.05)
    set_titles(left, Message("update of f = sin x by attention"), "x", "(Sf − f) / ε")
    add_legend(left, loc="upper center", ncols=3)
    right.fill_between(dataset.x, 0, dataset.density, color=FIELD_COLOURS[1], linewidth=0)
    right.plot(dataset.x, dataset.density, color=PALE_BLUE)
    right.set_ylim(0, None)
    set_titles(right, Message("density p of the {n:,} tokens", n=dataset.attrs["n"]), "x", "p")


def sinkformer(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    for row, (name, colour) in enumerate(zip(dataset.normaliser.values, (BLUE, ACCENT), strict=True)):
        left.plot(dataset.position, dataset["columns"].values[row], color=colour, label=str(name))
        equation = render(Message("{name}: equation", name=str(name)))
        right.plot(
            dataset.time,
            dataset.variance_derived.values[row],
            color=colour,
            label=equation,
        )
        right.plot(dataset.time, dataset.variance.values[row], color=colour, **{**DOT_STYLE, "markersize": 4.5})
    right.plot(
        dataset.time,
        1 + 2 * dataset.time,
        color=MUTED,
        linewidth=0.9,
        linestyle=(0, (4, 3)),
        label=render(Message("heat equation: 1 + 2t")),
    )
    set_titles(
        left,
        Message("total attention to each token (column sums)"),
        Message("position of the token"),
        r"$\sum_i \alpha_{ij}$",
    )
    set_titles(right, Message("variance of a Gaussian cloud; dots: particles"), TIME, "σ²")
    add_legend(left)
    add_legend(right)


def relations(axes: "list[Axes]", dataset: "xarray.Dataset") -> None:
    left, right = axes
    for row, (name, colour) in enumerate(zip(dataset.name.values, (BLUE, ACCENT, INK), strict=True)):
        for map_index, line_style in enumerate(("-", (0, (4, 2)))):
            label = f"{name}, {dataset.maps.values[map_index]}"
            left.plot(
                dataset["rank"],
                dataset.error_best.values[row, map_index],
                color=colour,
                linestyle=line_style,
                label=label,
            )
            left.plot(
                dataset["rank"], dataset.error.values[row, map_index], color=colour, **{**DOT_STYLE, "markersize": 5}
            )
    left.set_xscale("log", base=2)
    left.set_xticks(dataset["rank"].values, [str(k) for k in dataset["rank"].values])
    left.set_ylim(-0.03, 1.4)
    set_titles(
        left,
        Message("line: optimum, dots: maps fitted by gradient descent"),
        Message("features"),
        Message("relative error of the relation"),
    )
    add_legend(left, loc="upper center", ncols=3)
    draw_gaps(right, dataset)


DRAW_FUNCTIONS: "dict[str, Callable[[list[Axes], xarray.Dataset], None]]" = {
    draw.__name__: draw
    for draw in (
        equiangular,
        energy,
        metastable,
        causal,
        free_space,
        gaussian,
        long_context,
        rank_collapse,
        shaped,
        shaped_width,
        heat,
        relations,
        sinkformer,
    )
}
PANEL_WIDTHS = {
    "equiangular": (3, 2),
    "causal": (3, 2),
    "long_context": (3, 2),
    "shaped": (3, 2),
    "shaped_width": (3, 2),
    "heat": (3, 2),
    "relations": (3, 2),
    "metastable": (3, 2),
}
"""The relative widths of the two panels; by default they are equal."""

"""One figure for each experiment of the theory bench: lines are theory, dots are what was measured."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.report.style import ACCENT, FIELD, INK, MUTED, new_figure, styled

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, PALE = FIELD[-1], FIELD[3]
SHADES = [FIELD[3], FIELD[4], FIELD[5], INK]
LEAST = 1e-3
"""The smallest gap that is drawn, in percent."""
DOTS: Any = {"linestyle": "none", "marker": "o", "markersize": 3.4, "markeredgewidth": 0}


def figure(dataset: "xarray.Dataset") -> "Figure":
    """The figure of one experiment, by its name in `attrs`."""
    name = dataset.attrs["experiment"]
    draw = DRAWN[name]
    with styled():
        sheet = new_figure(9.6, 3.9)
        axes = list(sheet.subplots(1, 2, gridspec_kw={"width_ratios": WIDTHS.get(name, (1, 1)), "wspace": 0.08}))
        draw(axes, dataset)
        phrase = dataset.attrs["shows"]
        sheet.suptitle(f"{phrase[0].upper()}{phrase[1:]}", x=0.008, ha="left", fontsize=11.5, color=INK)
        sheet.text(0.992, 0.985, dataset.attrs["source"], ha="right", va="top", fontsize=7.5, color=MUTED)
    return sheet


def titled(axis: "Axes", title: str, x: str = "", y: str = "") -> None:
    axis.set_title(title, loc="left", fontsize=9, color=MUTED)
    axis.set_xlabel(x)
    axis.set_ylabel(y)


def legend(axis: "Axes", **where: Any) -> None:
    axis.legend(frameon=False, fontsize=8, labelcolor=INK, handlelength=1.6, **where)


def level(axis: "Axes", y: float) -> None:
    axis.axhline(y, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)


def gaps(axis: "Axes", told: "xarray.Dataset") -> None:
    """How far every number is from the expected one."""
    gap = np.maximum(told.gap.values * 100, LEAST)
    at = np.arange(len(gap))[::-1]
    axis.hlines(at, LEAST, gap, color=FIELD[2], linewidth=2.5)
    axis.plot(gap, at, color=BLUE, clip_on=False, **{**DOTS, "markersize": 6})
    axis.axvline(2, color=ACCENT, linewidth=1)
    axis.set_xscale("log")
    axis.set_xlim(LEAST, 10)
    axis.set_ylim(-0.6, len(gap) - 0.4)
    axis.set_yticks(at, [str(quantity) for quantity in told.quantity.values], fontsize=7.5)
    axis.tick_params(axis="y", length=0, labelcolor=INK, pad=8)
    axis.spines["left"].set_visible(False)
    titled(axis, "gap to the expected value (line: 2 %)", "%")


def equiangular(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    for row, (case, colour) in enumerate(zip(told.case.values, (PALE, ACCENT, BLUE), strict=True)):
        time = told.time.values[row]
        left.plot(time, told.cosine_ode.values[row], color=colour, label=str(case))
        left.plot(time, told.cosine.values[row], color=colour, **DOTS)
        left.plot([told.expected.values[2 * row]] * 2, [0, 0.9], color=colour, linewidth=0.8, linestyle=":")
    level(left, told.attrs["level"])
    left.set(xlim=(0, None), ylim=(0, 1.02))
    titled(left, "line: equation, dots: particles, dotted: published t(γ = .9)", "time", "cosine γ of a pair")
    legend(left, loc=(0.46, 0.45))
    gaps(right, told)


def energy(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    for row, (system, colour) in enumerate(zip(told.system.values, (BLUE, PALE, ACCENT), strict=True)):
        left.plot(told.time, told.energy.values[row], color=colour, label=str(system))
    level(left, 1.0)
    left.set_xlim(0, 10)
    titled(left, "energy over its largest value", "time", r"$E\,/\,(e^\beta/2\beta)$")
    legend(left, loc="center right")
    for row, colour in enumerate((BLUE, PALE)):
        slope, height, time = told.slope.values[row], told.energy.values[row], told.time.values
        right.plot(time, slope, color=colour, label=f"{told.system.values[row]}: formula")
        right.plot(time[::6], np.gradient(height, time)[::6], color=colour, **DOTS)
    right.set_xlim(0, 10)
    titled(right, "line: Σ of squared speeds, dots: the energy's own slope", "time", "dE/dt")
    legend(right)


def metastable(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    time = np.maximum(told.time.values, 0.02)
    upper = told.angle.values[0] > 0
    for side, colour in ((upper, BLUE), (~upper, ACCENT)):
        left.plot(time, np.degrees(told.angle.values[:, side]), color=colour, linewidth=0.9, alpha=0.75)
    left.set_xscale("log")
    left.set_xlim(0.05, time[-1])
    titled(
        left,
        f"{told.sizes['particle']} particles on the circle, β = {told.beta.values[-1]:g}",
        "time",
        "angle (degrees)",
    )
    right.plot(told.beta, told.merging_derived, color=BLUE, label="two heavy particles: ∫ dγ/γ'")
    right.plot(told.beta, told.merging, color=ACCENT, label="time to merge", **{**DOTS, "markersize": 6})
    right.plot(told.beta, told.formed, color=PALE, label="time to form", **{**DOTS, "markersize": 6})
    right.set_yscale("log")
    right.set_xticks(told.beta.values)
    titled(right, "a moment to form, long to merge", "β", "time")
    legend(right, loc="upper left")


def causal(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    cosine, time = told.cosine.values, told.time.values
    for token in range(2, cosine.shape[1]):
        left.plot(time, cosine[:, token], color=FIELD[2 + 3 * token // cosine.shape[1]], linewidth=0.9)
    left.plot(time, cosine[:, 1], color=ACCENT, linewidth=1.8, label="second token")
    left.plot(time, cosine[:, 0], color=INK, linewidth=1.8, label="first token")
    left.set_xlim(0, 15)
    titled(left, "pale: early tokens, dark: late ones", "time", "cosine with the first token")
    legend(left, loc="lower right")
    gaps(right, told)


def free_space(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    z = told.corners.values
    for token in range(z.shape[1]):
        left.plot(z[:, token, 0], z[:, token, 1], color=PALE, linewidth=0.8)
    left.plot(z[0, :, 0], z[0, :, 1], color=BLUE, **DOTS)
    left.scatter(z[-1, :, 0], z[-1, :, 1], s=60, facecolors="none", edgecolors=ACCENT, linewidths=1.3, zorder=3)
    left.set_aspect("equal", adjustable="datalim")
    titled(left, "V = I: from the start (dots) to the corners (rings)", "z₁", "z₂")
    right.plot(told.time, told.planes.values[:, :, 0], color=PALE, linewidth=0.8)
    for value in (told.planes.values[-1, :, 0].min(), told.planes.values[-1, :, 0].max()):
        level(right, value)
    titled(right, "V = diag(1, −½): the first coordinate takes two values", "time", "z₁")


def gaussian(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    start, end = told.particles.values
    left.scatter(start[:, 0], start[:, 1], s=4, color=FIELD[2], linewidths=0)
    left.scatter(end[:, 0], end[:, 1], s=4, color=BLUE, linewidths=0)
    for name, colour in (("ode", INK), ("extra", ACCENT)):
        left.plot(*ellipse(told[f"covariance_{name}"].values[-1]), color=colour, linewidth=1.6)
    left.set_aspect("equal", adjustable="datalim")
    titled(left, f"{len(start)} particles, pale: start, dark: end; 2σ of both equations", "x₁", "x₂")
    trace = {
        name: np.trace(told[name].values, axis1=1, axis2=2) for name in told.data_vars if "covariance" in str(name)
    }
    right.plot(told.time, trace["covariance_ode"], color=INK, label="Σ' = VΣAΣ + (VΣAΣ)ᵀ")
    right.plot(told.time, trace["covariance_extra"], color=ACCENT, label="with VΣ + ΣVᵀ added")
    right.plot(told.time, trace["covariance"], color=BLUE, label="softmax attention", **DOTS)
    right.plot(
        told.time,
        trace["covariance_linear"],
        color=PALE,
        label="linear attention",
        **{**DOTS, "marker": "x", "markeredgewidth": 1},
    )
    titled(right, "trace of the covariance", "time", "tr Σ")
    legend(right)


def ellipse(covariance: np.ndarray) -> np.ndarray:
    """The points two standard deviations from the middle."""
    turn = np.linspace(0, 2 * np.pi, 120)
    return 2 * np.linalg.cholesky(covariance) @ np.stack([np.cos(turn), np.sin(turn)])


def long_context(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    critical, rho = told.attrs["critical"], told.attrs["rho"]
    for row, (n, colour) in enumerate(zip(told.n.values, SHADES, strict=True)):
        left.plot(told.c / critical, told.cosine.values[row], color=colour, label=f"$n = 10^{{{round(np.log10(n))}}}$")
    left.plot(
        told.c_particles / critical,
        told.cosine_particles,
        color=ACCENT,
        label="1000 tokens",
        **{**DOTS, "markersize": 5},
    )
    left.plot(1, 4 * rho / (1 + 3 * rho), marker="D", markersize=6, color=INK, markerfacecolor="none")
    for y in (1.0, rho):
        level(left, y)
    titled(left, "one step of attention at β = c log n; diamond: 4ρ/(1+3ρ)", "c (1−ρ)", "cosine of a pair")
    legend(left, loc="center right")
    gaps(right, told)


def rank_collapse(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    for name, colour, label in (("residual", ACCENT, "attention alone"), ("residual_skip", BLUE, "with the skip")):
        left.plot(told[name].values, color=colour, label=label, marker="o", markersize=4)
    left.set_yscale("log")
    left.set_xticks(range(told.sizes["layer"]))
    titled(left, "distance of the cloud from its mean", "layer", "‖X − 1x̄‖")
    legend(left, loc="lower left")
    pairs = np.arange(told.sizes["pair"]) + 2
    right.bar(pairs, told.ratio.values, width=0.5, color=FIELD[2])
    for at, ratio in zip(pairs.tolist(), told.ratio.values.tolist(), strict=True):
        right.text(at, ratio + 0.05, f"{ratio:.2f}", ha="center", va="bottom", fontsize=8.5, color=INK)
    level(right, 3.0)
    right.set_xticks(pairs)
    right.set_ylim(0, 3.6)
    titled(right, "decrement of log‖X − 1x̄‖ over the one before: 3 is cubic", "layer", "ratio")


def shaped(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    layers = np.arange(told.sizes["layer"])
    shown = np.unique(np.geomspace(1, layers[-1], 24).astype(int))
    left.plot(layers[1:], told.correlation_uniform.values[1:], color=ACCENT, linewidth=1.2, label="softmax: recursion")
    left.plot(shown, told.correlation.values[0][shown], color=ACCENT, **DOTS)
    left.plot([1, layers[-1]], [told.attrs["rho"]] * 2, color=BLUE, linewidth=1.2, label="shaped: stays ρ")
    left.plot(shown, told.correlation.values[1][shown], color=BLUE, **DOTS)
    left.set_xscale("log")
    left.set_ylim(0, 1.05)
    titled(left, "line: theory, dots: mean over drawn heads", "layer", "correlation of two tokens")
    legend(left, loc="center right")
    gaps(right, told)


def shaped_width(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    for at, (what, colour) in enumerate(zip(told.seen.values, (BLUE, PALE, ACCENT), strict=True)):
        mean, sd = told.mean_sde.values[:, at], told.sd_sde.values[:, at]
        left.plot(told.time, mean, color=colour, label=str(what))
        left.fill_between(told.time, mean - sd, mean + sd, color=colour, alpha=0.12, linewidth=0)
        left.plot(told.time, told["mean"].values[:, at], color=colour, **DOTS)
    left.set_xlim(0, None)
    titled(
        left,
        f"line and band: equation, dots: networks of width {told.attrs['width']}",
        "depth / width",
        "mean ± spread",
    )
    legend(left)
    gaps(right, told)


def heat(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    for row, (epsilon, colour) in enumerate(zip(told.epsilon.values, SHADES, strict=True)):
        left.plot(told.x, told.moved.values[row], color=colour, linewidth=1.2, label=f"ε = {epsilon:g}")
    left.plot(told.x, told.limit, color=ACCENT, linewidth=2.2, linestyle=(0, (1, 1.4)), label="½(f'' + 2 (log p)' f')")
    left.set_ylim(None, 1.05)
    titled(left, "what attention adds to f = sin x", "x", "(Sf − f) / ε")
    legend(left, loc="upper center", ncols=3)
    right.fill_between(told.x, 0, told.density, color=FIELD[1], linewidth=0)
    right.plot(told.x, told.density, color=PALE)
    right.set_ylim(0, None)
    titled(right, f"density p of the {told.attrs['n']:,} tokens", "x", "p")


def sinkformer(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    for row, (name, colour) in enumerate(zip(told.normaliser.values, (BLUE, ACCENT), strict=True)):
        left.plot(told.place, told["columns"].values[row], color=colour, label=str(name))
        right.plot(told.time, told.variance_derived.values[row], color=colour, label=f"{name}: equation")
        right.plot(told.time, told.variance.values[row], color=colour, **{**DOTS, "markersize": 4.5})
    right.plot(told.time, 1 + 2 * told.time, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), label="heat: 1 + 2t")
    titled(left, "how much each token is read (column sums)", "place of the token", r"$\sum_i \alpha_{ij}$")
    titled(right, "variance of a Gaussian cloud; dots: particles", "time", "σ²")
    legend(left)
    legend(right)


def relations(axes: "list[Axes]", told: "xarray.Dataset") -> None:
    left, right = axes
    for row, (name, colour) in enumerate(zip(told.name.values, (BLUE, ACCENT, INK), strict=True)):
        for maps, line in enumerate(("-", (0, (4, 2)))):
            label = f"{name}, {told.maps.values[maps]}"
            left.plot(told["rank"], told.error_best.values[row, maps], color=colour, linestyle=line, label=label)
            left.plot(told["rank"], told.error.values[row, maps], color=colour, **{**DOTS, "markersize": 5})
    left.set_xscale("log", base=2)
    left.set_xticks(told["rank"].values, [str(k) for k in told["rank"].values])
    left.set_ylim(-0.03, 1.4)
    titled(left, "line: best there is, dots: maps fitted by descent", "features", "share of the relation missed")
    legend(left, loc="upper center", ncols=3)
    gaps(right, told)


DRAWN: "dict[str, Callable[[list[Axes], xarray.Dataset], None]]" = {
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
WIDTHS = {
    "equiangular": (3, 2),
    "causal": (3, 2),
    "long_context": (3, 2),
    "shaped": (3, 2),
    "shaped_width": (3, 2),
    "heat": (3, 2),
    "relations": (3, 2),
    "metastable": (3, 2),
}
"""Of the two panels, where they are not equal."""

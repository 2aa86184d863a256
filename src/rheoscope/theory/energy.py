"""Attention with Q = K = V = I climbs an energy at every step: USA along its gradient, SA along it but for a factor a row."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.theory.particles import (
    Particles,
    Velocity,
    dot,
    drawn,
    evolve,
    on_sphere,
    unit,
    unnormalised,
    until,
)
from rheoscope.theory.predictions import Number, as_dataset

if TYPE_CHECKING:
    import xarray

N, D, BETA, END, STEPS = 32, 8, 2.0, 10.0, 100
DEFINITIONS = {
    "energy": "E over its largest value e^β/(2β), at every step",
    "slope": "dE/dt by the formula, over the same",
}


def energy(seed: int = 0) -> "xarray.Dataset":
    """Does E = (1/(2βn²)) Σ_ij e^{β x_i·x_j} rise at every step of SA and USA on the sphere?

    **Formula** The gradient along the sphere is n∇_iE = P_{x_i} (1/n) Σ_j e^{β x_i·x_j} x_j, which is USA's velocity; SA's is
    that over Z_i = (1/n) Σ_j e^{β x_i·x_j}. So USA is the gradient flow of E; SA is so only up to the factor Z_i of each row
    (the gradient in a metric that weighs token i by Z_i), and has its direction token by token. dE/dt is (1/n) Σ_i ‖x_i'‖² under
    USA and (1/n) Σ_i Z_i ‖x_i'‖² under SA: never negative in either. Where all particles meet, E = e^β/(2β).

    **Numbers** falls of E among the steps, 0; ∫ of the formula over what E gained, 1; E at the end over e^β/(2β), 1.

    **Source** Geshkovski, Letrouit, Polyanskiy and Rigollet 2023 (arXiv:2312.10794).
    """
    start, times = unit(drawn(seed, N, D)), until(END, STEPS)
    rules = {"SA": on_sphere(dot(BETA)), "USA": unnormalised(BETA)}
    largest, numbers, heights, slopes = float(potential(unit(torch.ones(1, D, dtype=torch.float64)))), [], [], []
    for name, velocity in rules.items():
        path = evolve(velocity, start, times, unit)
        height = torch.stack([potential(x) for x in path]) / largest
        slope = torch.stack([climb(x, velocity, name == "SA") for x in path]) / largest
        gained = torch.trapezoid(slope, times) / (height[-1] - height[0])
        numbers += [
            Number(f"falls of E, {name}", float(falls(height)), 0.0, "dE/dt ≥ 0"),
            Number(
                f"∫ dE/dt over the gain, {name}", float(gained), 1.0, "gradient flow" if name == "USA" else "up to Z_i"
            ),
            Number(f"E at the end over e^β/2β, {name}", float(height[-1]), 1.0, "one cluster"),
        ]
        heights.append(height)
        slopes.append(slope)
    away = on_sphere(dot(BETA), -torch.eye(D, dtype=torch.float64))
    other = torch.stack([potential(x) for x in evolve(away, start, times, unit)]) / largest
    curves = {
        "energy": (("system", "time"), torch.stack([*heights, other])),
        "slope": (("rule_of_slope", "time"), torch.stack(slopes)),
    }
    coords = {"system": [*rules, "SA, V = −I"], "rule_of_slope": list(rules), "time": times.numpy()}
    contrast = {f"falls of E among {STEPS} steps, SA with V = −I": float(falls(other))}
    return as_dataset(numbers, curves, DEFINITIONS, coords, {"n": N, "d": D, "beta": BETA, "seed": seed}, contrast)


def potential(x: Particles) -> Float[Tensor, ""]:
    """E = (1/(2βn²)) Σ_ij e^{β x_i·x_j}."""
    return torch.exp(BETA * x @ x.mT).mean() / (2 * BETA)


def climb(x: Particles, velocity: Velocity, normalised: bool) -> Float[Tensor, ""]:
    """dE/dt by the formula."""
    speed = velocity(0.0, x).square().sum(-1)
    return (torch.exp(BETA * x @ x.mT).mean(-1) * speed).mean() if normalised else speed.mean()


def falls(height: Float[Tensor, " t"]) -> int:
    """Steps down, rounding aside."""
    return int((height.diff() < -1e-12).sum())

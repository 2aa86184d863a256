"""Attention with Q = K = V = I climbs an energy at every step: USA along its gradient, SA along it but for a factor a row."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.theory.particles import (
    Particles,
    Velocity,
    dot_product_attention,
    evolve,
    normalise,
    sphere_velocity,
    standard_normal,
    time_grid,
    unnormalised_velocity,
)
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

N, D, BETA, END_TIME, N_STEPS = 32, 8, 2.0, 10.0, 100
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
    start, times = normalise(standard_normal(seed, N, D)), time_grid(END_TIME, N_STEPS)
    velocities = {"SA": sphere_velocity(dot_product_attention(BETA)), "USA": unnormalised_velocity(BETA)}
    max_energy, comparisons, energy_curves, rates = (
        float(interaction_energy(normalise(torch.ones(1, D, dtype=torch.float64)))),
        [],
        [],
        [],
    )
    for name, velocity in velocities.items():
        path = evolve(velocity, start, times, normalise)
        energy_curve = torch.stack([interaction_energy(x) for x in path]) / max_energy
        rate = torch.stack([energy_rate(x, velocity, name == "SA") for x in path]) / max_energy
        integral_over_gain = torch.trapezoid(rate, times) / (energy_curve[-1] - energy_curve[0])
        comparisons += [
            Comparison(f"falls of E, {name}", float(count_decreases(energy_curve)), 0.0, "dE/dt ≥ 0"),
            Comparison(
                f"∫ dE/dt over the gain, {name}",
                float(integral_over_gain),
                1.0,
                "gradient flow" if name == "USA" else "up to Z_i",
            ),
            Comparison(f"E at the end over e^β/2β, {name}", float(energy_curve[-1]), 1.0, "one cluster"),
        ]
        energy_curves.append(energy_curve)
        rates.append(rate)
    repulsive = sphere_velocity(dot_product_attention(BETA), -torch.eye(D, dtype=torch.float64))
    repulsive_curve = (
        torch.stack([interaction_energy(x) for x in evolve(repulsive, start, times, normalise)]) / max_energy
    )
    curves = {
        "energy": (("system", "time"), torch.stack([*energy_curves, repulsive_curve])),
        "slope": (("rule_of_slope", "time"), torch.stack(rates)),
    }
    coords = {"system": [*velocities, "SA, V = −I"], "rule_of_slope": list(velocities), "time": times.numpy()}
    contrast = {f"falls of E among {N_STEPS} steps, SA with V = −I": float(count_decreases(repulsive_curve))}
    return as_dataset(comparisons, curves, DEFINITIONS, coords, {"n": N, "d": D, "beta": BETA, "seed": seed}, contrast)


def interaction_energy(x: Particles) -> Float[Tensor, ""]:
    """E = (1/(2βn²)) Σ_ij e^{β x_i·x_j}."""
    return torch.exp(BETA * x @ x.mT).mean() / (2 * BETA)


def energy_rate(x: Particles, velocity: Velocity, normalised: bool) -> Float[Tensor, ""]:
    """dE/dt by the formula."""
    speed = velocity(0.0, x).square().sum(-1)
    return (torch.exp(BETA * x @ x.mT).mean(-1) * speed).mean() if normalised else speed.mean()


def count_decreases(energy_curve: Float[Tensor, " t"]) -> int:
    """Steps down, rounding aside."""
    return int((energy_curve.diff() < -1e-12).sum())

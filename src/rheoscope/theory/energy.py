"""Energy under attention with Q = K = V = I: USA is its gradient flow, SA up to a positive factor per token."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
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
    "energy": Message("E divided by its maximum e^β/(2β), at every step"),
    "slope": Message("dE/dt by the formula, divided by the same maximum"),
}


def energy(seed: int = 0) -> "xarray.Dataset":
    """Does E = (1/(2βn²)) Σ_ij e^{β x_i·x_j} increase at every step of SA and USA on the sphere?

    **Formula** The gradient along the sphere is n∇_iE = P_{x_i} (1/n) Σ_j e^{β x_i·x_j} x_j, which is the velocity of USA. The velocity
    of SA is this divided by Z_i = (1/n) Σ_j e^{β x_i·x_j}. So USA is the gradient flow of E. SA is the gradient flow in a metric that
    weights token i by Z_i. dE/dt is (1/n) Σ_i ‖x_i'‖² under USA and (1/n) Σ_i Z_i ‖x_i'‖² under SA, and neither is negative. If all
    particles meet, E = e^β/(2β).

    **Returns** the number of steps in which E decreases (expected 0), the integral of dE/dt divided by the gain of E (expected 1), and
    the final E divided by e^β/(2β) (expected 1).

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
            Comparison(f"decreases of E, {name}", float(count_decreases(energy_curve)), 0.0, "dE/dt ≥ 0"),
            Comparison(
                f"∫ dE/dt / gain of E, {name}",
                float(integral_over_gain),
                1.0,
                "gradient flow" if name == "USA" else "up to Z_i",
            ),
            Comparison(f"final E / (e^β/2β), {name}", float(energy_curve[-1]), 1.0, "one cluster"),
        ]
        energy_curves.append(energy_curve)
        rates.append(rate)
    repulsive = sphere_velocity(dot_product_attention(BETA), -torch.eye(D, dtype=torch.float64))
    repulsive_curve = (
        torch.stack([interaction_energy(x) for x in evolve(repulsive, start, times, normalise)]) / max_energy
    )
    curves = {
        "energy": (("system", "time"), torch.stack([*energy_curves, repulsive_curve])),
        "slope": (("slope_system", "time"), torch.stack(rates)),
    }
    coords = {"system": [*velocities, "SA, V = −I"], "slope_system": list(velocities), "time": times.numpy()}
    contrast = {f"decreases of E in {N_STEPS} steps, SA with V = −I": float(count_decreases(repulsive_curve))}
    return as_dataset(comparisons, curves, DEFINITIONS, coords, {"n": N, "d": D, "beta": BETA, "seed": seed}, contrast)


def interaction_energy(x: Particles) -> Float[Tensor, ""]:
    """E = (1/(2βn²)) Σ_ij e^{β x_i·x_j}."""
    return torch.exp(BETA * x @ x.mT).mean() / (2 * BETA)


def energy_rate(x: Particles, velocity: Velocity, normalised: bool) -> Float[Tensor, ""]:
    """dE/dt by the formula, for SA (`normalised`) or USA."""
    speed = velocity(0.0, x).square().sum(-1)
    return (torch.exp(BETA * x @ x.mT).mean(-1) * speed).mean() if normalised else speed.mean()


def count_decreases(energy_curve: Float[Tensor, " t"]) -> int:
    """The number of steps in which the energy decreases by more than rounding."""
    return int((energy_curve.diff() < -1e-12).sum())

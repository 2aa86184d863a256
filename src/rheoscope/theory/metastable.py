"""Sharp attention gathers tokens into clusters at once, and then holds them apart for exponentially long."""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.single_linkage import linked
from rheoscope.theory.particles import Particles, crossing, dot, evolve, integral, on_sphere, unit
from rheoscope.theory.predictions import Number, as_dataset

if TYPE_CHECKING:
    import xarray

BETAS, MASSES, APART, SPREAD = (6.0, 8.0, 10.0), (10, 14), 1.3, 0.2
LINK, LEVEL = 0.1, 0.99
"""Radians at which particles are one cluster; the cosine at which the two centres are one."""
DEFINITIONS = {
    "angle": "angle of every particle on the circle, β = 10",
    "count": "clusters: particles that chains of steps below .1 rad hold together",
    "merging": "when the cosine of the two centres reaches .99, by the particles",
    "merging_derived": "the same by the integral for two heavy particles",
    "formed": "when all particles stand in two clusters, each narrower than .01 rad",
}


def metastable(seed: int = 0) -> "xarray.Dataset":
    """Two groups of particles on the circle under SA (Q = K = V = I): how long are there two clusters?

    **Formula** Once formed, clusters of masses m, m' are two heavy particles: with γ the cosine of their angle,
    γ' = (1−γ²)(w + w'), w = m'e^{βγ}/(m e^β + m'e^{βγ}) and w' with m and m' exchanged. The time to merge is ∫ dγ/γ', of order
    e^{β(1−γ)}: it grows exponentially with β, while forming takes a time of order 1.

    **Numbers** clusters half-way to the merger at the largest β, 2, and at the end, 1; the time to merge against the
    integral at every β, from the moment when the clusters have formed.

    **Source** Geshkovski, Koubbi, Polyanskiy and Rigollet 2024, dynamic metastability (arXiv:2410.06833); the integral is
    derived above.
    """
    found = []
    for beta in BETAS:
        times = grid(1.3 * merging_time(math.cos(APART), beta) + 10)
        path = evolve(on_sphere(dot(beta)), groups(seed), times, unit)
        found.append(milestones(path, times, beta))
    count = torch.tensor([clusters_of(x) for x in path])
    formed, merging, derived = torch.tensor(found, dtype=torch.float64).unbind(-1)
    halfway = int((times >= (formed[-1] + merging[-1]) / 2).int().argmax())
    numbers = [
        Number("clusters on the plateau, β = 10", float(count[halfway]), 2.0, "two groups"),
        Number("clusters at the end, β = 10", float(count[-1]), 1.0, "all merge"),
    ]
    numbers += [
        Number(f"time to merge, β = {beta:g}", float(seen), float(due), "∫ dγ/γ'")
        for beta, seen, due in zip(BETAS, merging, derived, strict=True)
    ]
    curves = {
        "angle": (("time", "particle"), torch.atan2(path[..., 1], path[..., 0])),
        "count": (("time",), count),
        "merging": (("beta",), merging),
        "merging_derived": (("beta",), derived),
        "formed": (("beta",), formed),
    }
    contrast = {
        f"time to merge over time to form, β = {beta:g}": float(m / f)
        for beta, m, f in zip(BETAS, merging, formed, strict=True)
    }
    coords = {"time": times.numpy(), "beta": list(BETAS)}
    return as_dataset(numbers, curves, DEFINITIONS, coords, {"n": sum(MASSES), "apart": APART, "seed": seed}, contrast)


def grid(end: float) -> Float[Tensor, " t"]:
    """Times in steps that grow from .02 to .5, which the stepper stands where clusters contract at a rate of 1."""
    times, step = [0.0], 0.02
    while times[-1] < end:
        times.append(times[-1] + step)
        step = min(0.5, step * 1.1)
    return torch.tensor(times, dtype=torch.float64)


def groups(seed: int) -> Particles:
    """Two bunches on the circle, drawn within SPREAD of centres at ± half of APART, which are their means."""
    source, angles = torch.Generator().manual_seed(seed), []
    for mass, side in zip(MASSES, (-APART / 2, APART / 2), strict=True):
        away = torch.rand(mass, generator=source, dtype=torch.float64)
        angles.append(side + SPREAD * (away - away.mean()) / (away - away.mean()).abs().max())
    angle = torch.cat(angles)
    return torch.stack([angle.cos(), angle.sin()], -1)


def clusters_of(x: Particles) -> int:
    return len(linked((x @ x.mT).clamp(-1, 1), LINK).unique())


def milestones(path: Float[Tensor, "t n 2"], times: Float[Tensor, " t"], beta: float) -> tuple[float, float, float]:
    """When the clusters have formed, when they merge, and when they should."""
    one, two = path.split(list(MASSES), dim=1)
    centres = [unit(part.mean(1)) for part in (one, two)]
    cosine = (centres[0] * centres[1]).sum(-1)
    width = torch.stack([(part - part.mean(1, keepdim=True)).norm(dim=-1).amax(-1) for part in (one, two)]).amax(0)
    at = int((width < 0.01).int().argmax())
    formed = float(times[at])
    return formed, crossing(times, cosine, LEVEL), formed + merging_time(float(cosine[at]), beta)


def merging_time(gamma: float, beta: float) -> float:
    """∫ dγ/γ' from a cosine to the level."""
    return integral(lambda g: 1 / approach(g, beta), gamma, LEVEL)


def approach(gamma: Float[Tensor, " q"], beta: float) -> Float[Tensor, " q"]:
    """γ' of two heavy particles."""
    odds = math.log(MASSES[1] / MASSES[0])
    pulls = torch.sigmoid(beta * (gamma - 1) + odds) + torch.sigmoid(beta * (gamma - 1) - odds)
    return (1 - gamma.square()) * pulls

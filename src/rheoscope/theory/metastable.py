"""Metastability: sharp attention forms clusters quickly and keeps them separate for exponentially long."""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.space.single_linkage import single_linkage_labels
from rheoscope.theory.particles import (
    Particles,
    crossing_time,
    dot_product_attention,
    evolve,
    integrate,
    normalise,
    sphere_velocity,
)
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

BETAS, GROUP_SIZES, CENTRE_ANGLE, GROUP_RADIUS = (6.0, 8.0, 10.0), (10, 14), 1.3, 0.2
LINK_ANGLE, MERGED_COSINE = 0.1, 0.99
"""The link angle of a cluster in radians, and the cosine at which the two centres have merged."""
DEFINITIONS = {
    "angle": Message("angle of every particle on the circle, β = 10"),
    "count": Message("number of clusters (single linkage below .1 rad)"),
    "merging": Message("time at which the cosine of the two centres reaches .99, by the particles"),
    "merging_derived": Message("time at which the cosine reaches .99, by the integral for two heavy particles"),
    "formed": Message("time at which both clusters are narrower than .01 rad"),
}


def metastable(seed: int = 0) -> "xarray.Dataset":
    """Two groups of particles on the circle under SA (Q = K = V = I): how long do two clusters persist?

    **Formula** Clusters of masses m and m' behave like two heavy particles. With γ the cosine of their angle,
    γ' = (1−γ²)(w + w'), w = m'e^{βγ}/(m e^β + m'e^{βγ}), and w' with m and m' exchanged. The time to merge is ∫ dγ/γ', of order
    e^{β(1−γ)}. It grows exponentially with β, while clusters form in a time of order 1.

    **Returns** the number of clusters halfway to the merger at the largest β (expected 2) and at the end (expected 1), and the time to
    merge at every β compared with the integral that starts when the clusters have formed.

    **Source** Geshkovski, Koubbi, Polyanskiy and Rigollet 2024, dynamic metastability (arXiv:2410.06833). The integral is derived
    above.
    """
    rows = []
    for beta in BETAS:
        times = growing_times(1.3 * merging_time(math.cos(CENTRE_ANGLE), beta) + 10)
        path = evolve(sphere_velocity(dot_product_attention(beta)), two_groups(seed), times, normalise)
        rows.append(milestones(path, times, beta))
    cluster_counts = torch.tensor([count_clusters(x) for x in path])
    formation_times, merge_times, predicted_times = torch.tensor(rows, dtype=torch.float64).unbind(-1)
    halfway_index = int((times >= (formation_times[-1] + merge_times[-1]) / 2).int().argmax())
    comparisons = [
        Comparison("clusters on the plateau, β = 10", float(cluster_counts[halfway_index]), 2.0, "two groups"),
        Comparison("clusters at the end, β = 10", float(cluster_counts[-1]), 1.0, "all merge"),
    ]
    comparisons += [
        Comparison(f"time to merge, β = {beta:g}", float(measured), float(expected), "∫ dγ/γ'")
        for beta, measured, expected in zip(BETAS, merge_times, predicted_times, strict=True)
    ]
    curves = {
        "angle": (("time", "particle"), torch.atan2(path[..., 1], path[..., 0])),
        "count": (("time",), cluster_counts),
        "merging": (("beta",), merge_times),
        "merging_derived": (("beta",), predicted_times),
        "formed": (("beta",), formation_times),
    }
    contrast = {
        f"time to merge / time to form, β = {beta:g}": float(m / f)
        for beta, m, f in zip(BETAS, merge_times, formation_times, strict=True)
    }
    coords = {"time": times.numpy(), "beta": list(BETAS)}
    return as_dataset(
        comparisons,
        curves,
        DEFINITIONS,
        coords,
        {"n": sum(GROUP_SIZES), "centre_angle": CENTRE_ANGLE, "seed": seed},
        contrast,
    )


def growing_times(end: float) -> Float[Tensor, " t"]:
    """Times with steps that grow from .02 to .5, small enough for clusters that contract at rate 1."""
    times, step = [0.0], 0.02
    while times[-1] < end:
        times.append(times[-1] + step)
        step = min(0.5, step * 1.1)
    return torch.tensor(times, dtype=torch.float64)


def two_groups(seed: int) -> Particles:
    """Two groups on the circle, within GROUP_RADIUS of their centres at ± half of CENTRE_ANGLE."""
    generator, angles = torch.Generator().manual_seed(seed), []
    for mass, centre in zip(GROUP_SIZES, (-CENTRE_ANGLE / 2, CENTRE_ANGLE / 2), strict=True):
        offsets = torch.rand(mass, generator=generator, dtype=torch.float64)
        angles.append(centre + GROUP_RADIUS * (offsets - offsets.mean()) / (offsets - offsets.mean()).abs().max())
    angle = torch.cat(angles)
    return torch.stack([angle.cos(), angle.sin()], -1)


def count_clusters(x: Particles) -> int:
    return len(single_linkage_labels((x @ x.mT).clamp(-1, 1), LINK_ANGLE).unique())


def milestones(path: Float[Tensor, "t n 2"], times: Float[Tensor, " t"], beta: float) -> tuple[float, float, float]:
    """The time of formation, the time of merging, and the predicted time of merging."""
    first_group, second_group = path.split(list(GROUP_SIZES), dim=1)
    centres = [normalise(group.mean(1)) for group in (first_group, second_group)]
    cosine = (centres[0] * centres[1]).sum(-1)
    width = torch.stack(
        [(group - group.mean(1, keepdim=True)).norm(dim=-1).amax(-1) for group in (first_group, second_group)]
    ).amax(0)
    formed_index = int((width < 0.01).int().argmax())
    formation_time = float(times[formed_index])
    return (
        formation_time,
        crossing_time(times, cosine, MERGED_COSINE),
        formation_time + merging_time(float(cosine[formed_index]), beta),
    )


def merging_time(gamma: float, beta: float) -> float:
    """∫ dγ/γ' from the cosine gamma to the merged cosine."""
    return integrate(lambda g: 1 / approach_rate(g, beta), gamma, MERGED_COSINE)


def approach_rate(gamma: Float[Tensor, " q"], beta: float) -> Float[Tensor, " q"]:
    """γ' of two heavy particles."""
    log_odds = math.log(GROUP_SIZES[1] / GROUP_SIZES[0])
    weights = torch.sigmoid(beta * (gamma - 1) + log_odds) + torch.sigmoid(beta * (gamma - 1) - log_odds)
    return (1 - gamma.square()) * weights

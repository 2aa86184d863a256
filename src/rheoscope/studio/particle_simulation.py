"""A simulation of particles on the sphere under attention, with bounded settings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from rheoscope.attention.mask import Causal
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.flow.clusters.analysis import mean_cosine
from rheoscope.messages.advice import page_setting
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.single_linkage import single_linkage_labels
from rheoscope.studio import wire
from rheoscope.studio.projected_points import leading_directions
from rheoscope.theory.particles import (
    Velocity,
    dot_product_attention,
    evolve,
    normalise,
    sphere_velocity,
    standard_normal,
    time_grid,
    unnormalised_velocity,
)

MechanismName = Literal["softmax", "causal", "sinkhorn", "unnormalised"]
VELOCITY_FACTORIES: dict[str, Callable[[float], Velocity]] = {
    "softmax": lambda beta: sphere_velocity(dot_product_attention(beta)),
    "causal": lambda beta: sphere_velocity(replace(dot_product_attention(beta), mask=Causal())),
    "sinkhorn": lambda beta: sphere_velocity(replace(dot_product_attention(beta), normaliser=Sinkhorn())),
    "unnormalised": unnormalised_velocity,
}
STEP_TIME, CLUSTER_RADIUS = 0.1, 0.1
"""Time of one integration step, and the angle in radians below which two particles share a cluster."""


@dataclass(frozen=True)
class ParticleSettings:
    """Number of particles `n`, dimension `d`, sharpness `beta`, mechanism, steps and seed."""

    n: int = 32
    d: int = 3
    beta: float = 4.0
    mechanism: MechanismName = "softmax"
    steps: int = 100
    seed: int = 0

    def check_bounds(self) -> None:
        bounds = {"n": (2, 256), "d": (2, 64), "beta": (0, 100), "steps": (1, 400), "seed": (0, 2**31 - 1)}
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise RheoscopeError(
                    Message(
                        "{name} must lie between {low} and {high}, got {received}",
                        name=name,
                        low=low,
                        high=high,
                        received=getattr(self, name),
                    ),
                    page_setting(f"{name}={getattr(ParticleSettings, name)}"),
                )


@torch.no_grad()
def simulate_particles(settings: ParticleSettings) -> bytes:
    """The particles at every time on three axes, their mean cosine and their number of clusters."""
    settings.check_bounds()
    start = normalise(standard_normal(settings.seed, settings.n, settings.d))
    velocity = VELOCITY_FACTORIES[settings.mechanism](settings.beta)
    path = evolve(velocity, start, time_grid(STEP_TIME * settings.steps, settings.steps), normalise)
    if not bool(path.isfinite().all()):
        raise RheoscopeError(
            Message("the simulation diverged at beta = {beta:g}", beta=settings.beta), page_setting("beta=1")
        )
    points = torch.nn.functional.pad(path, (0, max(0, 3 - settings.d)))
    if settings.d > 3:
        points = path @ leading_directions(path.flatten(0, 1))
    cluster_counts = [
        len(single_linkage_labels(x @ x.mT, CLUSTER_RADIUS).unique()) for x in path[:: max(1, len(path) // 50)]
    ]
    header: dict[str, Any] = {
        "mean_cosine": [float(mean_cosine(x)) for x in path],
        "clusters": cluster_counts[-1],
        "cluster_counts": cluster_counts,
        "time": STEP_TIME,
    }
    return wire.pack_envelope(header, {"points": wire.to_wire_array(points.numpy(), ["time", "particle", "axis"])})

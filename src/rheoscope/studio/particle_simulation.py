"""The theory bench live: particles on the sphere under attention, as many and as sharp as somebody asks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from rheoscope.attention.mask import Causal
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.flow.clusters.analysis import mean_cosine
from rheoscope.shapes import RheoscopeError
from rheoscope.space.single_linkage import linked
from rheoscope.studio import wire
from rheoscope.studio.projected_points import leading
from rheoscope.theory.particles import Velocity, dot, drawn, evolve, on_sphere, unit, unnormalised, until

Mechanism = Literal["softmax", "causal", "sinkhorn", "unnormalised"]
VELOCITIES: dict[str, Callable[[float], Velocity]] = {
    "softmax": lambda beta: on_sphere(dot(beta)),
    "causal": lambda beta: on_sphere(replace(dot(beta), mask=Causal())),
    "sinkhorn": lambda beta: on_sphere(replace(dot(beta), normaliser=Sinkhorn())),
    "unnormalised": unnormalised,
}
TIME, NEAR = 0.1, 0.1
"""Time of one step; radians below which two particles are of one cluster."""


@dataclass(frozen=True)
class Asked:
    """How many particles in how many dimensions, how sharp attention is, which one, for how long, from which draw."""

    n: int = 32
    d: int = 3
    beta: float = 4.0
    mechanism: Mechanism = "softmax"
    steps: int = 100
    seed: int = 0

    def checked(self) -> None:
        bounds = {"n": (2, 256), "d": (2, 64), "beta": (0, 100), "steps": (1, 400), "seed": (0, 2**31 - 1)}
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise RheoscopeError(f"{name} lies in {low} to {high}, got {getattr(self, name)!r}")


@torch.no_grad()
def dynamics(asked: Asked) -> bytes:
    """The particles at all times on three axes, how alike they are at each, and how many clusters are left."""
    asked.checked()
    start = unit(drawn(asked.seed, asked.n, asked.d))
    velocity = VELOCITIES[asked.mechanism](asked.beta)
    path = evolve(velocity, start, until(TIME * asked.steps, asked.steps), unit)
    if not bool(path.isfinite().all()):
        raise RheoscopeError("the particles ran away; type a smaller beta")
    points = torch.nn.functional.pad(path, (0, max(0, 3 - asked.d)))
    if asked.d > 3:
        points = path @ leading(path.flatten(0, 1))
    clusters = [len(linked(x @ x.mT, NEAR).unique()) for x in path[:: max(1, len(path) // 50)]]
    header: dict[str, Any] = {
        "mean_cosine": [float(mean_cosine(x)) for x in path],
        "clusters": clusters[-1],
        "cluster_counts": clusters,
        "time": TIME,
    }
    return wire.packed(header, {"points": wire.as_array(points.numpy(), ["time", "particle", "axis"])})

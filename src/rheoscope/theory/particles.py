"""Tokens as particles that attention moves: the systems of the literature, and a Runge–Kutta stepper.

on the sphere   x_i' = P_{x_i} Σ_j α_ij x_j V                    SA: softmax weights, or those of any mechanism
                x_i' = P_{x_i} (1/n) Σ_j e^{β x_i·x_j} x_j V     USA: no division by the row's sum
in free space   x_i' = Σ_j α_ij x_j V
rescaled        z_i = x_i e^{−tV}: z_i' = Σ_j α_ij(t) (z_j − z_i) V

P_x y = y − ⟨x, y⟩x. Tokens are rows, so that V acts from the right. The weights are those of a `Mechanism`: its mask makes
a system causal, its normaliser makes it Sinkhorn or shaped, its score makes it L2 (the metric) instead of dot product.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import reference
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.score import Gram

Particles = Float[Tensor, "n d"]
Velocity = Callable[[float, Particles], Particles]
"""x' at time t."""


def dot(beta: float) -> Mechanism:
    """Softmax of β⟨x_i, x_j⟩."""
    return Mechanism(Gram(scale=beta))


def weights(mechanism: Mechanism, x: Particles) -> Float[Tensor, "n n"]:
    """α_ij: row i belongs to the particle that is moved."""
    every = x[None, None]
    return reference(mechanism, every, every, every[..., :0])[1][0, 0]  # no value is averaged


def tangent(x: Particles, y: Particles) -> Particles:
    """P_x y: what of y moves x along the sphere."""
    return y - (x * y).sum(-1, keepdim=True) * x


def unit(x: Particles) -> Particles:
    return x / x.norm(dim=-1, keepdim=True)


def where_it_is(x: Particles) -> Particles:
    return x


def on_sphere(mechanism: Mechanism, V: Float[Tensor, "d d"] | None = None) -> Velocity:
    """SA, with the weights of any mechanism; V = I where none is given."""
    return lambda t, x: tangent(x, weights(mechanism, x) @ _mapped(x, V))


def unnormalised(beta: float, V: Float[Tensor, "d d"] | None = None) -> Velocity:
    """USA: the gradient flow of the energy where V = I."""
    return lambda t, x: tangent(x, torch.exp(beta * x @ x.mT) @ _mapped(x, V) / len(x))


def in_space(mechanism: Mechanism, V: Float[Tensor, "d d"] | None = None) -> Velocity:
    """Attention in free space, no norm."""
    return lambda t, x: weights(mechanism, x) @ _mapped(x, V)


def rescaled(mechanism: Mechanism, V: Float[Tensor, "d d"]) -> Velocity:
    """The same seen in z = x e^{−tV}: what grows with V is taken away, what clusters stays."""

    def velocity(t: float, z: Particles) -> Particles:
        alpha = weights(mechanism, z @ torch.matrix_exp(t * V))
        return (alpha @ z - z) @ V

    return velocity


def _mapped(x: Particles, V: Float[Tensor, "d d"] | None) -> Particles:
    return x if V is None else x @ V


def step(velocity: Velocity, t: float, x: Particles, h: float) -> Particles:
    """One Runge–Kutta step of fourth order."""
    a = velocity(t, x)
    b = velocity(t + h / 2, x + h / 2 * a)
    c = velocity(t + h / 2, x + h / 2 * b)
    d = velocity(t + h, x + h * c)
    return x + h / 6 * (a + 2 * b + 2 * c + d)


def evolve(
    velocity: Velocity,
    x: Particles,
    times: Float[Tensor, " t"],
    place: Callable[[Particles], Particles] = where_it_is,
) -> Float[Tensor, "t n d"]:
    """The particles at all times, one step from each to the next; `place` brings every step back to where they live."""
    path = [x]
    for now, then in zip(times[:-1].tolist(), times[1:].tolist(), strict=True):
        path.append(place(step(velocity, now, path[-1], then - now)))
    return torch.stack(path)


def until(end: float, steps: int) -> Float[Tensor, " t"]:
    """Equal steps from 0."""
    return torch.linspace(0, end, steps + 1, dtype=torch.float64)


def drawn(seed: int, *shape: int) -> Tensor:
    """Independent normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def crossing(times: Float[Tensor, " t"], values: Float[Tensor, " t"], level: float) -> float:
    """When a curve first reaches a level, between two times along the chord; NaN where it never does."""
    there = values >= level
    if not bool(there.any()):
        return float("nan")
    at = int(there.int().argmax())
    if at == 0:
        return float(times[0])
    share = (level - values[at - 1]) / (values[at] - values[at - 1])
    return float(times[at - 1] + share * (times[at] - times[at - 1]))


def integral(
    f: Callable[[Float[Tensor, " q"]], Float[Tensor, " q"]], low: float, high: float, nodes: int = 200
) -> float:
    """∫ f by Gauss–Legendre quadrature."""
    import numpy as np

    at, weight = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(nodes))
    return float((high - low) / 2 * (weight * f((high - low) / 2 * at + (high + low) / 2)).sum())

"""Particle systems under attention, and a Runge–Kutta integrator.

on the sphere   x_i' = P_{x_i} Σ_j α_ij x_j V                    SA: softmax weights, or those of any mechanism
                x_i' = P_{x_i} (1/n) Σ_j e^{β x_i·x_j} x_j V     USA: without normalisation
in free space   x_i' = Σ_j α_ij x_j V
rescaled        z_i = x_i e^{−tV}: z_i' = Σ_j α_ij(t) (z_j − z_i) V

P_x y = y − ⟨x, y⟩x. Tokens are rows, so V acts from the right. The weights are those of a `Mechanism`. Its mask makes a system causal,
its normaliser can be Sinkhorn or shaped, and its score can be a distance instead of a dot product.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import reference_attention
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.score import Gram

Particles = Float[Tensor, "n d"]
Velocity = Callable[[float, Particles], Particles]
"""The velocity x' at time t."""


def dot_product_attention(beta: float) -> Mechanism:
    """Softmax of β⟨x_i, x_j⟩."""
    return Mechanism(Gram(scale=beta))


def attention_weights(mechanism: Mechanism, x: Particles) -> Float[Tensor, "n n"]:
    """The weights α_ij. Row i belongs to the particle that moves."""
    batched = x[None, None]
    return reference_attention(mechanism, batched, batched, batched[..., :0])[1][
        0, 0
    ]  # empty values, only the weights are needed


def project_to_tangent(x: Particles, y: Particles) -> Particles:
    """P_x y, the component of y tangent to the sphere at x."""
    return y - (x * y).sum(-1, keepdim=True) * x


def normalise(x: Particles) -> Particles:
    return x / x.norm(dim=-1, keepdim=True)


def identity(x: Particles) -> Particles:
    return x


def sphere_velocity(mechanism: Mechanism, V: Float[Tensor, "d d"] | None = None) -> Velocity:
    """SA with the weights of any mechanism. The default V is the identity."""
    return lambda t, x: project_to_tangent(x, attention_weights(mechanism, x) @ _apply_values(x, V))


def unnormalised_velocity(beta: float, V: Float[Tensor, "d d"] | None = None) -> Velocity:
    """USA, the gradient flow of the energy if V = I."""
    return lambda t, x: project_to_tangent(x, torch.exp(beta * x @ x.mT) @ _apply_values(x, V) / len(x))


def free_velocity(mechanism: Mechanism, V: Float[Tensor, "d d"] | None = None) -> Velocity:
    """Attention in free space, without a norm."""
    return lambda t, x: attention_weights(mechanism, x) @ _apply_values(x, V)


def rescaled_velocity(mechanism: Mechanism, V: Float[Tensor, "d d"]) -> Velocity:
    """Attention in free space in the coordinates z = x e^{−tV}, which remove the growth by V."""

    def velocity(t: float, z: Particles) -> Particles:
        alpha = attention_weights(mechanism, z @ torch.matrix_exp(t * V))
        return (alpha @ z - z) @ V

    return velocity


def _apply_values(x: Particles, V: Float[Tensor, "d d"] | None) -> Particles:
    return x if V is None else x @ V


def runge_kutta_step(velocity: Velocity, t: float, x: Particles, h: float) -> Particles:
    """One fourth-order Runge–Kutta step."""
    a = velocity(t, x)
    b = velocity(t + h / 2, x + h / 2 * a)
    c = velocity(t + h / 2, x + h / 2 * b)
    d = velocity(t + h, x + h * c)
    return x + h / 6 * (a + 2 * b + 2 * c + d)


def evolve(
    velocity: Velocity,
    x: Particles,
    times: Float[Tensor, " t"],
    retract: Callable[[Particles], Particles] = identity,
) -> Float[Tensor, "t n d"]:
    """The particles at all times, with one step between consecutive times. `retract` maps every step back to the manifold."""
    path = [x]
    for start, end in zip(times[:-1].tolist(), times[1:].tolist(), strict=True):
        path.append(retract(runge_kutta_step(velocity, start, path[-1], end - start)))
    return torch.stack(path)


def time_grid(end: float, steps: int) -> Float[Tensor, " t"]:
    """Equally spaced times from 0 to `end`."""
    return torch.linspace(0, end, steps + 1, dtype=torch.float64)


def standard_normal(seed: int, *shape: int) -> Tensor:
    """Independent standard normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def crossing_time(times: Float[Tensor, " t"], values: Float[Tensor, " t"], level: float) -> float:
    """The time at which a curve first reaches a level, by linear interpolation; NaN if it never does."""
    is_reached = values >= level
    if not bool(is_reached.any()):
        return float("nan")
    index = int(is_reached.int().argmax())
    if index == 0:
        return float(times[0])
    fraction = (level - values[index - 1]) / (values[index] - values[index - 1])
    return float(times[index - 1] + fraction * (times[index] - times[index - 1]))


def integrate(
    f: Callable[[Float[Tensor, " q"]], Float[Tensor, " q"]], low: float, high: float, n_nodes: int = 200
) -> float:
    """∫ f by Gauss–Legendre quadrature."""
    import numpy as np

    points, weight = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(n_nodes))
    return float((high - low) / 2 * (weight * f((high - low) / 2 * points + (high + low) / 2)).sum())

"""The Sinkhorn divergence, for clouds that are too large for an exact assignment."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

Cloud = Float[Tensor, "n d"]
ROUNDS_PER_TEMPERATURE = 10
"""Iterations per temperature. The last temperature has four times as many."""
FINAL_TEMPERATURE = 0.1
"""The last temperature, relative to the standard deviation of the part of the cost that a permutation can change."""


def sinkhorn_divergence(x: Cloud, y: Cloud) -> tuple[float, Int[Tensor, " n"]]:
    """S_ε(x, y) as an approximation of W₂², and the most likely partner of every token.

    **Formula** S_ε = OT_ε(x, y) − ½ OT_ε(x, x) − ½ OT_ε(y, y) for the cost ‖y_j − x_i‖², where OT_ε is the minimum of
    ⟨P, C⟩ + ε KL(P ‖ uniform) over couplings P. Both clouds are centred, and the squared distance of their means is added at the
    end. ε is a tenth of the standard deviation of 2⟨x_i, y_j⟩, the part of the cost that a permutation can change.

    **Laws** S_ε is 0 for equal clouds and tends to W₂² as ε → 0.

    **Source** Genevay, Peyré, Cuturi 2018; ε-scaling with absorption, Schmitzer 2019.

    >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> value, partner = sinkhorn_divergence(x, x + 0.001)
    >>> round(value, 4), partner.tolist() == list(range(50))
    (0.0, True)
    """
    shift = (x.mean(0) - y.mean(0)).square().sum()
    x, y = x - x.mean(0), y - y.mean(0)
    temperature = max(FINAL_TEMPERATURE * 2 * float((x @ y.mT).std()), 1e-12 * float(y.square().sum(-1).mean()))
    if temperature == 0:
        return float(shift), torch.arange(len(x), device=x.device)
    cross_cost, plan = entropic_coupling(_cost(x, y), temperature)
    debiased_cost = (
        cross_cost
        - 0.5 * entropic_coupling(_cost(x, x), temperature)[0]
        - 0.5 * entropic_coupling(_cost(y, y), temperature)[0]
    )
    return max(debiased_cost, 0.0) + float(shift), plan.argmax(-1)


def entropic_coupling(cost: Float[Tensor, "n n"], temperature: float) -> tuple[float, Float[Tensor, "n n"]]:
    """OT_ε of two uniform measures and its coupling, with a temperature that is halved from the largest cost down.

    The potentials f and g are absorbed into the kernel exp((f + g − C)/ε) at every temperature, so that float32 is enough.
    """
    n, f, g = len(cost), torch.zeros_like(cost[:, 0]), torch.zeros_like(cost[0])
    schedule = temperature_schedule(float(cost.max()), temperature)
    for epsilon in schedule:
        # exponents below −80 would give denormal numbers, which are slow and negligible
        gibbs_kernel = ((f[:, None] + g - cost) / epsilon).clamp(min=-80).exp()
        a, b = torch.ones_like(f), torch.ones_like(g)
        for _ in range(ROUNDS_PER_TEMPERATURE * (4 if epsilon == schedule[-1] else 1)):
            a = (n * (gibbs_kernel @ b)).reciprocal()
            b = (n * (gibbs_kernel.mT @ a)).reciprocal()
        f, g = f + epsilon * a.log(), g + epsilon * b.log()
    plan = gibbs_kernel * a[:, None] * b
    return float(f.mean().double() + g.mean().double()) + 2 * temperature * math.log(n), plan


def temperature_schedule(first: float, last: float) -> list[float]:
    """Temperatures from `first` to `last`, each half of the one before.

    >>> temperature_schedule(1.0, 0.3)
    [1.0, 0.5, 0.3]
    """
    schedule = []
    while first > last:
        schedule.append(first)
        first /= 2
    return [*schedule, last]


def _cost(x: Cloud, y: Cloud) -> Float[Tensor, "n n"]:
    squared = x.square().sum(-1)[:, None] + y.square().sum(-1) - 2 * x @ y.mT
    return squared.clamp(min=0).float()

"""Residual branches: the size of the updates that sublayers add to the stream, and how it is learned or scheduled.

    plain        x ← x + f(x̂)
    vector       x ← x + λ ∘ f(x̂), λ learned, .1 at the start           LayerScale (arXiv:2103.17239)
    number       x ← x + a f(x̂), a learned, 0 at the start              ReZero (arXiv:2003.04887)
    peri         x ← x + norm(f(x̂))                                     peri-norm (arXiv:2502.02732, 2510.22026)
    DeepNet      x ← norm(α x + f(x))                                   post-norm (arXiv:2203.00555)
    attenuation  x ← a x + f(x̂) at one deep attention                   arXiv:2602.14760
    warm-up      x ← x + α(l, t) f(x̂), α from 0 to 1, early layers first (arXiv:2603.05369)

Norms ignore the length of their input, so a factor of the residual path is a factor of later updates in other units:
norm(α x + f) = norm(x + f/α). Both DeepNet and attenuation are therefore constants of updates (`branch`), with eps in the same
units. The stream stays additive, and M and F stay exact.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.models.config import Config

INITIAL_GAINS = {"vector": 0.1, "number": 0.0}
"""The initial value of a learned gain. LayerScale uses .1 in models of up to 18 layers."""


class BranchGain(nn.Module):
    """A learned factor of every update: one number, or one per coordinate."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        n_numbers = config.width if config.branch_gain == "vector" else 1
        self.gain = nn.Parameter(torch.full((n_numbers,), INITIAL_GAINS[config.branch_gain]))

    def forward(self, update: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        return update * self.gain


def make_branch_end(config: Config) -> nn.Module:
    """The module that the output of a sublayer passes before it is added to the stream."""
    if config.placement == "peri":
        return nn.RMSNorm(config.width, eps=config.eps)
    return nn.Identity() if config.branch_gain == "none" else BranchGain(config)


def attenuated_layer(config: Config) -> int:
    """The layer whose attention has an attenuated residual path: the first of the last quarter.

    >>> attenuated_layer(Config(vocabulary=9, depth=6)), attenuated_layer(Config(vocabulary=9, depth=12))
    (4, 9)
    """
    return config.depth * 3 // 4


def residual_scale(config: Config, layer: int) -> float:
    """The factor of the residual path up to the attention of a layer. The updates from there on are divided by it instead."""
    return config.attenuation if layer >= attenuated_layer(config) else 1.0


def deepnet_residual(config: Config) -> float:
    """DeepNet's α, the factor of the residual path: (2 depth)^¼, or (3 depth)^¼ with cross-attention.

    >>> round(deepnet_residual(Config(vocabulary=9, depth=8)), 3)
    2.0
    """
    return (sublayers_per_layer(config) * config.depth) ** 0.25


def deepnet_gain(config: Config) -> float:
    """DeepNet's β, the factor of initial weights of values, output projections and FFN: (8 depth)^−¼ or (12 depth)^−¼."""
    return (4 * sublayers_per_layer(config) * config.depth) ** -0.25


def sublayers_per_layer(config: Config) -> int:
    """Attention and FFN, and cross-attention in an encoder-decoder."""
    return 3 if config.form == "encoder-decoder" else 2


def xavier_std(W: Float[Tensor, "rows columns"], gain: float) -> float:
    """The standard deviation of Xavier's initial weights: gain · √(2 / (rows + columns))."""
    return gain * math.sqrt(2 / sum(W.shape))


def warmup_factor(progress: float, warmup_end: float) -> float:
    """α(l, t) = min(1, t / t_l), where layer l of L is at full size at the fraction t_l = `branch_warmup` · l / L of the training.

    >>> [warmup_factor(progress, 0.5) for progress in (0.125, 0.5, 1.0)]
    [0.25, 1.0, 1.0]
    """
    return min(1.0, progress / warmup_end)


@torch.no_grad()
def set_branch_warmup(model: nn.Module, progress: float) -> None:
    """Set the factors of all updates at a fraction of the training, in place, so that a recorded step reads them."""
    for module in model.modules():
        if isinstance(factor := getattr(module, "warmup", None), Tensor):
            assert isinstance(module.warmup_end, float)
            factor.fill_(warmup_factor(progress, module.warmup_end))

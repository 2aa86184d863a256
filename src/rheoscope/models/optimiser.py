"""Optimisers and learning-rate schedules."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from rheoscope.models.recipes import Recipe
from rheoscope.models.transformer import Stack

DECAY_FRACTION = 0.2
"""The fraction of the steps in which `wsd` decays to 0."""


def make_optimisers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """AdamW for all parameters, or Muon for the matrices inside blocks and AdamW for the rest.

    Both are torch's own, fused (also on a CPU, where that takes a fifth of the time). Gains, biases and single vectors have no
    weight decay. On a GPU, AdamW reads its rate from the device, so that a step can be recorded. torch's Muon cannot do that.

    >>> from rheoscope.models.recipes import tiny
    >>> from rheoscope.models.transformer import build
    >>> optimisers = make_optimisers(build(tiny().config), tiny().with_changes(optimiser="muon"))
    >>> [type(optimiser).__name__ for optimiser in optimisers]
    ['AdamW', 'Muon']
    """
    block_ids = {id(p) for stack in model.modules() if isinstance(stack, Stack) for p in stack.blocks.parameters()}
    trainable = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trainable if p.ndim == 2 and id(p) in block_ids and recipe.optimiser == "muon"]
    matrix_ids = {id(p) for p in matrices}
    adamw_parameters = [p for p in trainable if id(p) not in matrix_ids]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in adamw_parameters if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in adamw_parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    device = trainable[0].device
    fused, capturable = device.type in ("cpu", "cuda"), device.type == "cuda" and not matrices
    rate = torch.tensor(recipe.rate, device=device) if capturable else recipe.rate
    result: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, rate, betas=recipe.betas, fused=fused, capturable=capturable)
    ]
    if matrices:
        result.append(torch.optim.Muon(matrices, recipe.rate, recipe.weight_decay, adjust_lr_fn="match_rms_adamw"))
    return result


def is_recordable(optimisers: Iterable[torch.optim.Optimizer]) -> bool:
    """Whether all optimisers read their rate from a GPU, so that a recorded step can be replayed at any rate."""
    rates = [group["lr"] for optimiser in optimisers for group in optimiser.param_groups]
    return all(isinstance(rate, Tensor) and rate.device.type == "cuda" for rate in rates)


def set_rate(optimisers: Iterable[torch.optim.Optimizer], rate: float) -> None:
    """Set the rate of the next step, in place if it is a tensor."""
    for group in (group for optimiser in optimisers for group in optimiser.param_groups):
        group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate


def learning_rate(recipe: Recipe, step: int) -> float:
    """The learning rate of a step (counted from 0): warm-up, then cosine or wsd.

    >>> from rheoscope.models.recipes import tiny
    >>> recipe = tiny()
    >>> learning_rate(recipe, recipe.warmup) == recipe.rate
    True
    """
    if step < recipe.warmup:
        return recipe.rate * (step + 1) / (recipe.warmup + 1)
    if recipe.schedule == "wsd":
        decay_steps = max(int(recipe.steps * DECAY_FRACTION), 1)
        return recipe.rate * min(1.0, (recipe.steps - step) / decay_steps)
    fraction = (step - recipe.warmup) / max(recipe.steps - recipe.warmup, 1)
    return recipe.rate * (recipe.floor + (1 - recipe.floor) * (1 + math.cos(math.pi * min(fraction, 1.0))) / 2)

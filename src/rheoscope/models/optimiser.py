"""Which parameters learn how, and how fast at each step."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from rheoscope.models.recipes import Recipe
from rheoscope.models.transformer import Stack

DECAY_FRACTION = 0.2
"""The share of the steps in which `wsd` falls to 0."""


def make_optimisers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices inside blocks and AdamW for the rest; torch's own, fused (on a CPU too: a fifth
    of the time).

    Gains, biases and single vectors are not decayed. On a GPU AdamW reads its rate from the device, so that a step can be recorded;
    torch's Muon cannot.

    >>> from rheoscope.models.recipes import tiny
    >>> from rheoscope.models.transformer import build
    >>> [type(one).__name__ for one in make_optimisers(build(tiny().config), tiny().with_changes(optimiser="muon"))]
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
    """Whether all of them read their rate from a GPU: then a step of theirs can be recorded once and played at any rate."""
    rates = [group["lr"] for optimiser in optimisers for group in optimiser.param_groups]
    return all(isinstance(rate, Tensor) and rate.device.type == "cuda" for rate in rates)


def set_rate(optimisers: Iterable[torch.optim.Optimizer], rate: float) -> None:
    """The rate of the next step; where it is a tensor, the number in it."""
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

"""Factors that depend on the step of a training: they are set in place before every step, so that a recorded step reads them."""

import torch
from torch import nn

from rheoscope.models.penalty import PenaltyTerm
from rheoscope.models.recipes import Recipe
from rheoscope.models.residual_branches import set_branch_warmup


def set_schedules(objective: nn.Module, recipe: Recipe, step: int) -> None:
    """Set the sizes of updates and the strength of penalties for a step (counted from 0), if the recipe has such schedules."""
    progress = (step + 1) / recipe.steps
    if recipe.config.branch_warmup:
        set_branch_warmup(objective, progress)
    if recipe.penalty_warmup:
        set_penalty_ramp(objective, min(1.0, progress / recipe.penalty_warmup))


@torch.no_grad()
def set_penalty_ramp(objective: nn.Module, factor: float) -> None:
    """Set the factor of all penalties."""
    for module in objective.modules():
        if isinstance(module, PenaltyTerm):
            module.ramp.fill_(factor)

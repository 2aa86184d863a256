"""Optimisers of packed seeds: those of `models/optimiser.py` on stacked tensors, each seed independent of the others.

AdamW     elementwise: torch's fused version on (seeds, …)
Muon      orthogonalises matrices: all seeds in one batched product
clipping  by the gradient norm of each seed
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.learn.packed_model import PackedModel
from rheoscope.models.recipes import Recipe
from rheoscope.models.transformer import Stack

MOMENTUM, NEWTON_SCHULZ_STEPS, NEWTON_SCHULZ_COEFFICIENTS, MIN_NORM = 0.95, 5, (3.4445, -4.7750, 2.0315), 1e-7
"""The constants of torch's Muon."""


def make_packed_optimisers(packed: PackedModel, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Like `models.optimiser.make_optimisers`: AdamW, or Muon for the matrices inside blocks and AdamW for the rest.

    A matrix of one seed has three dimensions here.
    """
    block_ids = {id(p) for stack in packed.modules() if isinstance(stack, Stack) for p in stack.blocks.parameters()}
    matrices = [p for p in packed.parameters() if p.ndim == 3 and id(p) in block_ids and recipe.optimiser == "muon"]
    matrix_ids = {id(p) for p in matrices}
    adamw_parameters = [p for p in packed.parameters() if id(p) not in matrix_ids]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in adamw_parameters if p.ndim >= 3], "weight_decay": recipe.weight_decay},
        {"params": [p for p in adamw_parameters if p.ndim < 3], "weight_decay": 0.0},
    ]
    device = adamw_parameters[0].device
    fused, on_gpu = device.type in ("cpu", "cuda"), device.type == "cuda"
    rate = torch.tensor(recipe.rate, device=device) if on_gpu else recipe.rate
    result: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, rate, betas=recipe.betas, fused=fused, capturable=on_gpu)
    ]
    return [*result, PackedMuon(matrices, rate, recipe.weight_decay)] if matrices else result


class PackedMuon(torch.optim.Optimizer):
    """Muon on stacks of matrices (seeds, rows, columns), with the rate adjusted to match AdamW's.

    **Laws** Equal to `torch.optim.Muon`, seed by seed.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float | Tensor, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": rate, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all matrices of the same shape, of all layers and seeds, in one batched product."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in (parameter for parameter in group["params"] if parameter.grad is not None):
                by_shape.setdefault(parameter.shape, []).append(parameter)
            for same_shape in by_shape.values():
                self._update(same_shape, group["lr"], group["weight_decay"])

    def _update(self, parameters: list[Tensor], rate: float | Tensor, weight_decay: float) -> None:
        gradients: list[Any] = [parameter.grad for parameter in parameters]
        momenta = [
            self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter)) for parameter in parameters
        ]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        nesterov_gradients = torch._foreach_lerp(gradients, momenta, MOMENTUM)
        updates = orthogonalise(torch.cat(list(nesterov_gradients))).to(parameters[0].dtype) * (
            rate * 0.2 * max(parameters[0].shape[1:]) ** 0.5
        )
        torch._foreach_mul_(parameters, 1 - rate * weight_decay)
        torch._foreach_sub_(parameters, list(updates.split(len(parameters[0]))))


def orthogonalise(G: Float[Tensor, "s r c"]) -> Float[Tensor, "s r c"]:
    """Matrices with nearly the same singular vectors and all singular values near 1, by Newton–Schulz iterations in bfloat16.

    >>> G = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    >>> bool((torch.linalg.svdvals(orthogonalise(G).float()) - 1).abs().max() < 0.5)
    True
    """
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    X = G.bfloat16()
    X = X.mT if G.shape[-2] > G.shape[-1] else X
    X = X / X.norm(dim=(-2, -1), keepdim=True).clamp(min=MIN_NORM)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
    return X.mT if G.shape[-2] > G.shape[-1] else X


def clip_per_seed(parameters: Sequence[nn.Parameter], max_norm: float) -> Float[Tensor, " s"]:
    """Scale each seed's gradient to a norm of at most `max_norm` and return the norms before.

    A seed that has diverged does not affect the others.

    **Formula** As `torch.nn.utils.clip_grad_norm_`: g_s · min(1, max_norm / (‖g_s‖ + 10⁻⁶)), over all parameters of
    seed s.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients])
    seed_norms = torch.linalg.vector_norm(norms, dim=0)
    factor = (max_norm / (seed_norms + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, [factor.view(-1, *[1] * (g.ndim - 1)) for g in gradients])
    return seed_norms

"""How packed seeds learn: the optimisers of `models/optimiser.py` on stacked tensors, every seed as if it were alone.

AdamW     is elementwise: torch's own, fused, on (seeds, …)
Muon      orthogonalises matrices: all seeds in one batched product
clip      by the gradient's length, each seed by its own
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.learn.packed_model import Packed
from rheoscope.models.recipes import Recipe
from rheoscope.models.transformer import Stack

MOMENTUM, ROUNDS, COEFFICIENTS, TINY = 0.95, 5, (3.4445, -4.7750, 2.0315), 1e-7
"""As torch's Muon has them."""


def packed_optimisers(packed: Packed, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """As `models.optimiser.optimisers`: AdamW, or Muon for the matrices inside blocks and AdamW for the rest.

    What is a matrix for one seed has three dimensions here.
    """
    inside = {id(p) for stack in packed.modules() if isinstance(stack, Stack) for p in stack.blocks.parameters()}
    matrices = [p for p in packed.parameters() if p.ndim == 3 and id(p) in inside and recipe.optimiser == "muon"]
    taken = {id(p) for p in matrices}
    rest = [p for p in packed.parameters() if id(p) not in taken]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.ndim >= 3], "weight_decay": recipe.weight_decay},
        {"params": [p for p in rest if p.ndim < 3], "weight_decay": 0.0},
    ]
    device = rest[0].device
    fused, recordable = device.type in ("cpu", "cuda"), device.type == "cuda"
    rate = torch.tensor(recipe.rate, device=device) if recordable else recipe.rate
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, rate, betas=recipe.betas, fused=fused, capturable=recordable)
    ]
    return [*made, PackedMuon(matrices, rate, recipe.weight_decay)] if matrices else made


class PackedMuon(torch.optim.Optimizer):
    """Muon on stacks of matrices (seeds, rows, columns), with the rate that matches AdamW's.

    **Laws** equal to `torch.optim.Muon` seed by seed.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float | Tensor, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": rate, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """All matrices of one shape in one product, of all layers and seeds."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for own in group["params"]:
                by_shape.setdefault(own.shape, []).append(own)
            for alike in by_shape.values():
                self._update(alike, group["lr"], group["weight_decay"])

    def _update(self, alike: list[Tensor], rate: float | Tensor, weight_decay: float) -> None:
        gradients = [own.grad for own in alike if own.grad is not None]
        held = [self.state[own].setdefault("momentum_buffer", torch.zeros_like(own)) for own in alike]
        torch._foreach_lerp_(held, gradients, 1 - MOMENTUM)
        ahead = torch._foreach_lerp(gradients, held, MOMENTUM)
        turned = orthogonalised(torch.cat(list(ahead))).to(alike[0].dtype) * (
            rate * 0.2 * max(alike[0].shape[1:]) ** 0.5
        )
        torch._foreach_mul_(alike, 1 - rate * weight_decay)
        torch._foreach_sub_(alike, list(turned.split(len(alike[0]))))


def orthogonalised(G: Float[Tensor, "s r c"]) -> Float[Tensor, "s r c"]:
    """Matrices with nearly the same singular vectors and all singular values near 1 (Newton–Schulz, in bfloat16, as Muon's).

    >>> G = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    >>> bool((torch.linalg.svdvals(orthogonalised(G).float()) - 1).abs().max() < 0.5)
    True
    """
    a, b, c = COEFFICIENTS
    X = G.bfloat16()
    X = X.mT if G.shape[-2] > G.shape[-1] else X
    X = X / X.norm(dim=(-2, -1), keepdim=True).clamp(min=TINY)
    for _ in range(ROUNDS):
        gram = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
    return X.mT if G.shape[-2] > G.shape[-1] else X


def clip_each(parameters: Sequence[nn.Parameter], longest: float) -> Float[Tensor, " s"]:
    """Shorten every seed's gradient to `longest`; gives how long they were. A seed that has diverged leaves the others alone.

    **Formula** as `torch.nn.utils.clip_grad_norm_`: g_s · min(1, longest / (‖g_s‖ + 10⁻⁶)), over all parameters of seed s.
    """
    gradients = [own.grad for own in parameters if own.grad is not None]
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients])
    whole = torch.linalg.vector_norm(norms, dim=0)
    factor = (longest / (whole + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, [factor.view(-1, *[1] * (g.ndim - 1)) for g in gradients])
    return whole

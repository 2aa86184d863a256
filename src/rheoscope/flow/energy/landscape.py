"""The energy of a head on a cloud, and its gradient in closed form.

    Λ(X̂) = (1/N) Σ_i Λ_i,   Λ_i = log( (1/n_i) Σ_{j permitted} e^{s_ij} )          every head, its own scores and mask
    E(X̂) = (1/(2N²)) Σ_ij exp(x̂_i M x̂_jᵀ)                                          without mask and position

The query-side gradient of Λ_i is Σ_j α_ij x̂_j Mᵀ: softmax attention with Mᵀ for F. Everything is done in the log domain
and on x̂, one block of queries after the other, so that no table of all pairs of a long text exists.

A vector that is added to every key adds a constant to every row of scores, unless keys are turned, normed or capped. No
softmax can see it, so the model does not determine it: the bias of keys is left out there.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import for_every_head, positions, scores
from rheoscope.attention.lower.block_size import numbers_in_cache
from rheoscope.attention.lower.kernels.triton_lowerings import TRITON
from rheoscope.attention.lower.sdpa import aligned
from rheoscope.attention.mask import Mask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.shapes import RheoscopeError
from rheoscope.space.autograd_pullback import transposed
from rheoscope.space.head import Heads, through
from rheoscope.space.operator import Factored

WIDTHS = (16, 32, 64, 128)
"""Of heads whose rows our own kernel holds."""
Queries = Float[Tensor, "*b h n k"]


@dataclass(frozen=True, eq=False)
class Landscape:
    """Λ of every head of a layer as a function of the queries; the keys stand still: as read, and placed for every head.

    Of one text or of several; `mechanism` is that of the heads, under what they must not see besides.
    """

    heads: Heads
    mechanism: Mechanism
    read: Float[Tensor, "*b g n k"]
    keys: Float[Tensor, "b h n k"]

    def energies(self, queries: Queries) -> Float[Tensor, "*b h n"]:
        """Λ_i of every head at other queries (before QK-norm and rotation)."""
        q = self.placed(queries)
        if self.fused(q):
            total = self.log_totals(q, averaged=False)[0]
        else:
            total = torch.cat([self.weighed(q, *at)[0] for at in self.blocks(q)], -1)
        return (total - self.log_counts()).reshape(queries.shape[:-1])

    def slope(self, queries: Queries) -> tuple[Float[Tensor, "*b h n"], Queries]:
        """Λ_i and its gradient by the queries before norm and rotation, from one pass over the scores."""
        with torch.enable_grad():
            free = queries.detach().requires_grad_()
            placed = self.placed(free)
        total, by_placed = self.pulled(placed.detach())
        # the transpose of the model's own norm and rotation takes the gradient back
        back = by_placed.reshape(queries.shape) if self.nowhere else transposed(placed, free, by_placed)
        return (total - self.log_counts()).reshape(queries.shape[:-1]), back

    def pulled(self, q: Float[Tensor, "b h n k"]) -> tuple[Float[Tensor, "b h n"], Float[Tensor, "b h n k"]]:
        """log Σ_j e^{s_ij}, and its gradient by the placed queries."""
        if self.fused(q):
            total, seen = self.log_totals(q)
            return total, seen * self.scale
        found = []
        for rows, columns in self.blocks(q):
            total, alpha = self.weighed(q, rows, columns)
            found.append((total, self.by_query(q[:, :, rows], self.keys[:, :, columns], alpha)))
        totals, pulls = zip(*found, strict=True)
        return torch.cat(totals, -1), torch.cat(pulls, -2)

    def fused(self, q: Float[Tensor, "b h n k"]) -> bool:
        """Whether a GPU has a kernel that gives sums and averages of these scores in one: plain dot products, causal or all."""
        mask, softmax = self.mechanism.mask, self.mechanism.normaliser.fused
        bare = softmax is not None and softmax.bare and self.mechanism.score.plain
        flat = bare and self.mechanism.position.bias(*positions(1, 1, q.device)) is None
        return q.is_cuda and q.dtype == torch.float32 and flat and (mask.is_causal or mask.forbids_nothing)

    @property
    def scale(self) -> float:
        form = self.mechanism.score.dot(self.keys[:1, :1, :1], self.keys[:1, :1, :1])
        assert form is not None, "fused() has seen a plain score"
        return form.scale

    def log_totals(
        self, q: Float[Tensor, "b h n k"], averaged: bool = True
    ) -> tuple[Float[Tensor, "b h n"], Float[Tensor, "b h averaged e"]]:
        """log Σ_j e^{s_ij} and Σ_j α_ij k_j (anything, where it is not asked), in float32.

        By our own kernel, or by torch's where rows do not fit its tiles.
        """
        causal = self.mechanism.mask.is_causal
        if TRITON and q.shape[-1] in WIDTHS:
            from rheoscope.attention.lower.kernels.log_totals import log_totals  # Triton, which not every machine has

            return log_totals(q.contiguous(), self.keys.contiguous(), self.scale, causal, averaged)
        q, keys = q.contiguous(), aligned(self.keys)
        out, total, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, keys, keys if averaged else keys[..., :8], None, True, 0.0, causal, scale=self.scale
        )
        return total[..., : q.shape[-2]], out

    def weighed(
        self, q: Float[Tensor, "b h n k"], rows: slice, columns: slice
    ) -> tuple[Float[Tensor, "b h r"], Float[Tensor, "b h r c"]]:
        """log Σ_j e^{s_ij} of some rows, a sink as one further key, and the weights e^{s_ij} over that sum."""
        n = q.shape[-2]
        i, j = positions(n, n, q.device)
        s = scores(self.mechanism, q[:, :, rows], self.keys[:, :, columns], i[rows], j[columns])
        top = s.amax(-1, keepdim=True)
        alpha = s.sub_(top).exp_()
        total = self.mechanism.normaliser.log_total(alpha.sum(-1, keepdim=True).log_() + top)
        return total[..., 0], alpha.mul_((top - total).exp_())

    def by_query(self, q: Tensor, k: Tensor, alpha: Tensor) -> Float[Tensor, "b h r k"]:
        """What weights pull at the placed queries: Σ_j α_ij ∂f(q_i, k_j)/∂q_i."""
        return self.mechanism.score.pull_queries(q, k, alpha)

    @property
    def nowhere(self) -> bool:
        """Whether queries are placed where they are."""
        return self.heads.q_norm is None and self.mechanism.position.nowhere

    def placed(self, queries: Queries) -> Float[Tensor, "b h n k"]:
        """Through the QK-norm and the rotation."""
        norm = self.heads.q_norm
        q = queries if norm is None else norm.hat(queries) * (1.0 if norm.gain is None else norm.gain.to(queries))
        q = q if q.ndim == 4 else q[None]
        return self.mechanism.position.place(q, torch.arange(q.shape[-2], device=q.device))

    def log_counts(self) -> Float[Tensor, "*one n"]:
        """log n_i: how many keys a query may see, the sink not counted."""
        n, mask = self.keys.shape[-2], self.mechanism.mask
        if mask.is_causal:
            return torch.arange(1, n + 1, dtype=self.keys.dtype, device=self.keys.device).log()
        return mask(*positions(n, n, self.keys.device)).sum(-1).to(self.keys.dtype).log()

    def blocks(self, q: Float[Tensor, "b h n k"]) -> Iterator[tuple[slice, slice]]:
        """Rows of queries, and all keys that any of them may see: keys after a block are never touched."""
        n = q.shape[-2]
        rows = max(1, numbers_in_cache(q.device) // (q.shape[0] * q.shape[1] * n))
        for low in range(0, n, rows):
            high = min(low + rows, n)
            yield slice(low, high), slice(*self.mechanism.mask.span(low, high, n))


def landscape(
    heads: Heads,
    hat: Float[Tensor, "*b n d"],
    unseen: Mask | None = None,
    as_read: Callable[[Tensor], Tensor] = lambda x: x,
) -> Landscape:
    """Λ of the heads of a layer on the cloud x̂, or on those of several texts, of which `unseen` hides what no head sees."""
    fused = heads.mechanism.normaliser.fused
    if fused is None or fused.dropped:
        raise RheoscopeError(
            f"the weights of these heads are {type(heads.mechanism.normaliser).__name__}, no softmax of their scores, so "
            "they climb no such energy; type a model with softmax attention"
        )
    keys = through(heads.norm, hat, heads.W_K, heads.b_K, heads.k_norm, as_read)
    if blind_to_shifts(heads):
        keys = keys - through(heads.norm, torch.zeros_like(hat[..., :1, :]), heads.W_K, heads.b_K, None)
    rows = keys if keys.ndim == 4 else keys[None]
    placed = heads.mechanism.position.place(rows, torch.arange(hat.shape[-2], device=hat.device))
    return Landscape(heads, heads.mechanism.under(unseen), keys, for_every_head(placed, heads.count))


def blind_to_shifts(heads: Heads) -> bool:
    """Whether a vector added to every key changes no weight: its part of the scores is constant along a row."""
    score, position, normaliser = heads.mechanism.score, heads.mechanism.position, heads.mechanism.normaliser
    return score.linear_in_keys and normaliser.shift_invariant and not position.moves and heads.k_norm is None


def log_interaction(hat: Float[Tensor, "n d"], M: Factored) -> Float[Tensor, ""]:
    """log E(X̂) of one form M: the energy of the theory and of encoders, no mask, no position, no bias.

    **Laws** with M = Mᵀ and F = cM, c > 0, small steps of softmax attention never lower it.

    >>> import torch
    >>> from rheoscope.space.operator import Factored
    >>> log_interaction(torch.zeros(3, 2), Factored(torch.eye(2), torch.eye(2))).exp()  # exp(0) / 2
    tensor(0.5000)
    """
    return M.form(hat, hat).flatten().logsumexp(0) - math.log(2 * len(hat) ** 2)

"""The energy of a head on a cloud, and its gradient in closed form.

    Λ(X̂) = (1/N) Σ_i Λ_i,   Λ_i = log( (1/n_i) Σ_{j permitted} e^{s_ij} )          every head, its own scores and mask
    E(X̂) = (1/(2N²)) Σ_ij exp(x̂_i M x̂_jᵀ)                                          without mask and position

The query-side gradient of Λ_i is Σ_j α_ij x̂_j Mᵀ: softmax attention with Mᵀ for F. Everything is done in the log domain
and on x̂, one block of queries after the other, so that no table of all pairs of a long text exists.

A vector that is added to every key adds a constant to every row of scores, unless keys are turned, normed or capped. No
softmax can see it, so the model does not determine it: the bias of keys is left out there.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.feature import Identity, Linear
from rheoscope.attention.mechanism import Mechanism, for_every_head, positions, scores
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.score import Gram, Relation
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads, Turned, through
from rheoscope.space.operator import Factored

BLOCK = 1 << 22
"""Scores held at a time, over all heads of a layer."""
Queries = Float[Tensor, "h n k"]


@dataclass(frozen=True, eq=False)
class Slope:
    """Λ_i (h, n); its gradient by the queries before norm and rotation (h, n, k); Σ_j α_ij v_j (h, n, e); Σ_j α_ij (h, n)."""

    energy: Float[Tensor, "h n"]
    slope: Queries
    carried: Float[Tensor, "h n e"]
    mass: Float[Tensor, "h n"]


@dataclass(frozen=True, eq=False)
class Landscape:
    """Λ of every head of a layer as a function of the queries; the keys stand still, placed and for every head."""

    heads: Heads
    keys: Float[Tensor, "1 h n k"]

    @property
    def mechanism(self) -> Mechanism:
        return self.heads.mechanism

    def energies(self, queries: Queries) -> Float[Tensor, "h n"]:
        """Λ_i of every head at other queries (before QK-norm and rotation)."""
        q = self.placed(queries)
        return torch.cat([self.total(self.scores(q, rows)) for rows in self.blocks(q)], 1) - self.log_counts()

    def slope(self, queries: Queries, values: Float[Tensor, "h n e"]) -> Slope:
        """Λ_i, its gradient, and what the same weights make of the values, all from one pass over the scores."""
        q, found = self.placed(queries), []
        for rows in self.blocks(q):
            s = self.scores(q, rows)
            total = self.total(s)
            alpha = (s - total[None, ..., None]).exp_()
            by_query = self.mechanism.score.pull(q[:, :, rows], self.keys, alpha)[0][0]
            found.append((total, by_query, alpha[0] @ values, alpha[0].sum(-1)))
        total, by_placed, carried, mass = (torch.cat(part, 1) for part in zip(*found, strict=True))
        return Slope(total - self.log_counts(), self.pulled(queries, by_placed), carried, mass)

    def placed(self, queries: Queries) -> Float[Tensor, "1 h n k"]:
        """Through the QK-norm and the rotation."""
        norm = self.heads.q_norm
        q = queries if norm is None else norm.hat(queries) * (1.0 if norm.gain is None else norm.gain.to(queries))
        return self.mechanism.position.place(q[None], torch.arange(q.shape[-2], device=q.device))

    def pulled(self, queries: Queries, by_placed: Queries) -> Queries:
        """A gradient by the placed queries, taken back to the queries: by the transpose of the model's own rotation."""
        with torch.enable_grad():
            free = queries.detach().requires_grad_()
            return torch.autograd.grad(self.placed(free), free, by_placed[None])[0]

    def scores(self, q: Float[Tensor, "1 h n k"], rows: slice) -> Float[Tensor, "1 h r n"]:
        i, j = positions(q.shape[-2], q.shape[-2], q.device)
        return scores(self.mechanism, q[:, :, rows], self.keys, i[rows], j)

    def total(self, s: Float[Tensor, "1 h r n"]) -> Float[Tensor, "h r"]:
        """log Σ_j e^{s_ij}, a sink as one further key: weights are e^{s_ij} over this sum."""
        total, normaliser = s[0].logsumexp(-1), self.mechanism.normaliser
        if not isinstance(normaliser, Sink):
            return total
        sink = torch.as_tensor(normaliser.sink, dtype=s.dtype, device=s.device).reshape(-1, 1)
        return torch.logaddexp(total, sink.expand_as(total))

    def log_counts(self) -> Float[Tensor, " n"]:
        """log n_i: how many keys a query may see, the sink not counted."""
        n = self.keys.shape[-2]
        return self.mechanism.mask(*positions(n, n, self.keys.device)).sum(-1).to(self.keys.dtype).log()

    def blocks(self, q: Float[Tensor, "1 h n k"]) -> Iterator[slice]:
        n = q.shape[-2]
        rows = max(1, BLOCK // (q.shape[1] * n))
        yield from (slice(low, min(low + rows, n)) for low in range(0, n, rows))


def landscape(heads: Heads, hat: Float[Tensor, "n d"]) -> Landscape:
    """Λ of the heads of a layer on the cloud x̂."""
    if type(heads.mechanism.normaliser) not in (Softmax, Sink):
        raise RheoscopeError(
            f"the weights of these heads are {type(heads.mechanism.normaliser).__name__}, no softmax of their scores, so "
            "they climb no such energy; type a model with softmax attention"
        )
    keys = through(heads.norm, hat, heads.W_K, heads.b_K, heads.k_norm)
    if blind_to_shifts(heads):
        keys = keys - through(heads.norm, torch.zeros_like(hat[:1]), heads.W_K, heads.b_K, None)
    keys = heads.mechanism.position.place(keys[None], torch.arange(len(hat), device=hat.device))
    return Landscape(heads, for_every_head(keys, heads.count))


def blind_to_shifts(heads: Heads) -> bool:
    """Whether a vector added to every key changes no weight: its part of the scores is constant along a row."""
    score = heads.mechanism.score
    maps = (getattr(score, "phi", None), getattr(score, "psi", Identity()))
    linear = isinstance(score, Gram | Relation) and all(isinstance(phi, Identity | Linear) for phi in maps)
    turned = isinstance(heads.mechanism.position, Turned) or heads.k_norm is not None
    return linear and not turned and heads.mechanism.normaliser.shift_invariant


def log_interaction(hat: Float[Tensor, "n d"], M: Factored) -> Float[Tensor, ""]:
    """log E(X̂) of one form M: the energy of the theory and of encoders, no mask, no position, no bias.

    **Laws** with M = Mᵀ and F = cM, c > 0, small steps of softmax attention never lower it.

    >>> import torch
    >>> from rheoscope.space.operator import Factored
    >>> log_interaction(torch.zeros(3, 2), Factored(torch.eye(2), torch.eye(2))).exp()  # exp(0) / 2
    tensor(0.5000)
    """
    return M.form(hat, hat).flatten().logsumexp(0) - math.log(2 * len(hat) ** 2)

"""The energy of a head on a cloud, and its gradient in closed form.

    Λ(X̂) = (1/N) Σ_i Λ_i,   Λ_i = log( (1/n_i) Σ_{j permitted} e^{s_ij} )          with the scores and the mask of the head
    E(X̂) = (1/(2N²)) Σ_ij exp(x̂_i M x̂_jᵀ)                                          without mask and positions

The gradient of Λ_i with respect to the query is Σ_j α_ij x̂_j Mᵀ, which is softmax attention with Mᵀ in place of F. Computation is in
the log domain and in blocks of queries, so that a long text needs no N x N table.

A vector added to every key adds a constant to every row of scores, unless keys are rotated, normalised or capped. Softmax ignores
such a constant, so the model does not determine it. The key bias is then left out.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import masked_scores, query_key_positions, repeat_kv_heads
from rheoscope.attention.lower.block_size import cache_block_numel
from rheoscope.attention.lower.kernels.triton_lowerings import HAS_TRITON
from rheoscope.attention.lower.sdpa import align_rows
from rheoscope.attention.mask import Mask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.autograd_pullback import pullback_by_autograd
from rheoscope.space.head import Heads, project_normalised
from rheoscope.space.model_parts import Norm
from rheoscope.space.operator import Factored

KERNEL_WIDTHS = (16, 32, 64, 128)
"""The head widths that the Triton kernel supports."""
Queries = Float[Tensor, "*b h n k"]


@dataclass(frozen=True, eq=False)
class Landscape:
    """Λ of every head of a layer as a function of the queries, with fixed keys, for one or several texts.

    `unpositioned_keys` are the keys before the position encoding, `keys` after it, repeated for every head (with symmetrised
    scores twice as wide). `mechanism` is that of the heads with the padding mask.
    """

    heads: Heads
    mechanism: Mechanism
    unpositioned_keys: Float[Tensor, "*b g n k"]
    keys: Float[Tensor, "b h n m"]

    def energies(self, queries: Queries) -> Float[Tensor, "*b h n"]:
        """Λ_i of every head at the given queries (before QK-norm and position encoding)."""
        q = self.position_queries(queries)
        if self.has_fused_kernel(q):
            total = self.log_totals(q, with_average=False)[0]
        else:
            total = torch.cat([self.block_weights(q, *block)[0] for block in self.query_blocks(q)], -1)
        return (total - self.log_counts()).reshape(queries.shape[:-1])

    def energies_and_gradient(self, queries: Queries, positioned: Float[Tensor, "b h n k"]) -> tuple[Tensor, Queries]:
        """Λ_i (h, n) and its gradient with respect to the queries, in one pass; `positioned` are the queries after both maps."""
        total, gradient = self.log_totals_and_gradient(positioned)
        energies = (total - self.log_counts()).reshape(queries.shape[:-1])
        return energies, self.pull_back(gradient, self.heads.q_norm, queries)

    def pull_back(self, gradient: Float[Tensor, "b h n k"], norm: Norm | None, rows: Queries) -> Queries:
        """The gradient with respect to `rows` before their QK-norm and position encoding, from that after both."""
        positions = torch.arange(gradient.shape[-2], device=gradient.device)
        gradient = self.mechanism.position.pullback(positions, gradient)[0].reshape(rows.shape)
        if norm is None:
            return gradient
        with torch.enable_grad():
            leaf = rows.detach().requires_grad_()
            normed = norm.normed(leaf)
        return pullback_by_autograd(normed, leaf, gradient)

    def log_totals_and_gradient(
        self, q: Float[Tensor, "b h n k"]
    ) -> tuple[Float[Tensor, "b h n"], Float[Tensor, "b h n k"]]:
        """log Σ_j e^{s_ij}, and its gradient with respect to the positioned queries."""
        if self.has_fused_kernel(q):
            total, mean_keys = self.log_totals(q)
            return total, mean_keys * self.scale
        parts = []
        for rows, columns in self.query_blocks(q):
            total, alpha = self.block_weights(q, rows, columns)
            parts.append((total, self.query_gradient(q[:, :, rows], self.keys[:, :, columns], alpha)))
        totals, gradients = zip(*parts, strict=True)
        return torch.cat(totals, -1), torch.cat(gradients, -2)

    def has_fused_kernel(self, q: Float[Tensor, "b h n k"]) -> bool:
        """Whether a fused kernel applies: scaled dot products without bias, causal or unmasked, in float32 on a GPU."""
        mask, fused_softmax = self.mechanism.mask, self.mechanism.normaliser.fused_softmax
        is_plain = fused_softmax is not None and fused_softmax.is_plain and self.mechanism.score.is_scaled_dot
        has_no_bias = is_plain and self.mechanism.position.bias(*query_key_positions(1, 1, q.device)) is None
        has_precision = q.dtype == torch.float32 if q.is_cuda else q.device.type == "cpu" and q.dtype.itemsize >= 4
        return has_precision and has_no_bias and (mask.is_causal or mask.allows_all)

    @property
    def scale(self) -> float:
        dot_product = self.mechanism.score.dot_form(self.keys[:1, :1, :1], self.keys[:1, :1, :1])
        assert dot_product is not None, "has_fused_kernel requires a dot product"
        return dot_product.scale

    def log_totals(
        self, q: Float[Tensor, "b h n k"], with_average: bool = True
    ) -> tuple[Float[Tensor, "b h n"], Float[Tensor, "b h averaged e"]]:
        """log Σ_j e^{s_ij} and Σ_j α_ij k_j, in float32 on a GPU. Without `with_average` the second result is undefined.

        On a GPU, uses the Triton kernel, or torch's if the head width is not supported.
        """
        causal = self.mechanism.mask.is_causal
        if not q.is_cuda:  # torch's kernel always averages
            mean_keys, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, self.keys, self.keys, 0.0, causal, scale=self.scale
            )
            return total, mean_keys
        if HAS_TRITON and q.shape[-1] in KERNEL_WIDTHS:
            from rheoscope.attention.lower.kernels.log_totals import row_logsumexp  # imports Triton, which is optional

            return row_logsumexp(q.contiguous(), self.keys.contiguous(), self.scale, causal, with_average)
        q, keys = q.contiguous(), align_rows(self.keys)
        out, total, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, keys, keys if with_average else keys[..., :8], None, True, 0.0, causal, scale=self.scale
        )
        return total[..., : q.shape[-2]], out

    def block_weights(
        self, q: Float[Tensor, "b h n k"], rows: slice, columns: slice
    ) -> tuple[Float[Tensor, "b h r"], Float[Tensor, "b h r c"]]:
        """log Σ_j e^{s_ij} of some rows, with a sink as an additional key, and the weights e^{s_ij} divided by that sum."""
        n = q.shape[-2]
        i, j = query_key_positions(n, n, q.device)
        s = masked_scores(self.mechanism, q[:, :, rows], self.keys[:, :, columns], i[rows], j[columns])
        row_max = s.amax(-1, keepdim=True)
        alpha = s.sub_(row_max).exp_()
        total = self.mechanism.normaliser.log_denominator(alpha.sum(-1, keepdim=True).log_() + row_max)
        return total[..., 0], alpha.mul_((row_max - total).exp_())

    def query_gradient(self, q: Tensor, k: Tensor, alpha: Tensor) -> Float[Tensor, "b h r k"]:
        """The gradient with respect to the positioned queries, Σ_j α_ij ∂f(q_i, k_j)/∂q_i."""
        return self.mechanism.score.pullback_queries(q, k, alpha)

    def position_queries(self, queries: Queries) -> Float[Tensor, "b h n k"]:
        """Apply the QK-norm and the position encoding."""
        norm = self.heads.q_norm
        q = queries if norm is None else norm.normed(queries)
        q = q if q.ndim == 4 else q[None]
        return self.mechanism.position.encode(q, torch.arange(q.shape[-2], device=q.device))

    def log_counts(self) -> Float[Tensor, "*one n"]:
        """log n_i, where n_i is the number of permitted keys of a query, without the sink."""
        n, mask = self.keys.shape[-2], self.mechanism.mask
        if mask.is_causal:
            return torch.arange(1, n + 1, dtype=self.keys.dtype, device=self.keys.device).log()
        return mask(*query_key_positions(n, n, self.keys.device)).sum(-1).to(self.keys.dtype).log()

    def query_blocks(self, q: Float[Tensor, "b h n k"]) -> Iterator[tuple[slice, slice]]:
        """Blocks of queries, each with the range of keys that any of its queries may attend to."""
        n = q.shape[-2]
        rows = max(1, cache_block_numel(q.device) // (q.shape[0] * q.shape[1] * n))
        for start in range(0, n, rows):
            stop = min(start + rows, n)
            yield slice(start, stop), slice(*self.mechanism.mask.key_range(start, stop, n))


def head_landscape(
    heads: Heads,
    x_hat: Float[Tensor, "*b n d"],
    padding_mask: Mask | None = None,
    to_model_precision: Callable[[Tensor], Tensor] = lambda x: x,
) -> Landscape:
    """Λ of the heads of a layer on the cloud x̂ of one text, or of several texts with a padding mask."""
    fused_softmax = heads.mechanism.normaliser.fused_softmax
    if fused_softmax is None or fused_softmax.dropout:
        raise RheoscopeError(
            Message(
                "energy needs softmax attention, but these heads use {normaliser}; choose a model with softmax attention",
                normaliser=type(heads.mechanism.normaliser).__name__,
            )
        )
    keys = project_normalised(heads.norm, x_hat, heads.W_K, heads.b_K, heads.k_norm, to_model_precision)
    if ignores_key_shifts(heads):
        keys = keys - project_normalised(heads.norm, torch.zeros_like(x_hat[..., :1, :]), heads.W_K, heads.b_K, None)
    batched_keys = keys if keys.ndim == 4 else keys[None]
    positioned_keys = heads.mechanism.position.encode(batched_keys, torch.arange(x_hat.shape[-2], device=x_hat.device))
    return Landscape(
        heads, heads.mechanism.with_mask(padding_mask), keys, repeat_kv_heads(positioned_keys, heads.n_heads)
    )


def ignores_key_shifts(heads: Heads) -> bool:
    """Whether adding a vector to every key leaves the weights unchanged, because it adds a constant to each row of scores."""
    score, position, normaliser = heads.mechanism.score, heads.mechanism.position, heads.mechanism.normaliser
    return (
        score.is_linear_in_keys
        and normaliser.is_shift_invariant
        and not position.changes_tokens
        and heads.k_norm is None
    )


def log_interaction_energy(x_hat: Float[Tensor, "n d"], M: Factored) -> Float[Tensor, ""]:
    """log E(X̂) for one form M, without mask, positions and biases.

    **Laws** If M = Mᵀ and F = cM with c > 0, small steps of softmax attention never decrease it.

    >>> import torch
    >>> from rheoscope.space.operator import Factored
    >>> log_interaction_energy(torch.zeros(3, 2), Factored(torch.eye(2), torch.eye(2))).exp()  # exp(0) / 2
    tensor(0.5000)
    """
    return M.bilinear_form(x_hat, x_hat).flatten().logsumexp(0) - math.log(2 * len(x_hat) ** 2)

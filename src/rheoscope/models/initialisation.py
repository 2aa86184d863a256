"""Initial weights: one function for each `start` of a config. `INITIALISERS` lists them.

    usual        N(0, .02²), as in GPT-2
    symmetric    W_Q := W_K, after which both are free (arXiv:2502.10927)
    mimetic      M ≈ I and Σ_h F_h ≈ −I, as in trained models (arXiv:2305.09828)
    deepnet      Xavier's scale, times β in values, output projections and FFN (arXiv:2203.00555, `residual_branches.py`)

A start modifies the weights that `usual` draws, so everything else is the same for a given seed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.models.config import set_fields
from rheoscope.models.projection import Projection, row_counts
from rheoscope.shapes import RheoscopeError

M_COEFFICIENTS, F_COEFFICIENTS = (0.7, 0.7), (0.4, 0.4)
"""Coefficients of the noise and of the identity, in M and in F. The paper uses them for vision."""


@dataclass(frozen=True, eq=False)
class InitialWeights:
    """The weights of one self-attention layer as drawn: the input projection and the output projection."""

    projection: Projection
    read_weight: Float[Tensor, "rows d"]
    write_weight: Float[Tensor, "d he"]

    def named_rows(self, *names: str) -> list[Float[Tensor, "hk d"]]:
        """Views of the rows with these names."""
        rows_by_name = dict(
            zip(self.projection.layout, self.read_weight.split(row_counts(self.projection.layout)), strict=True)
        )
        return [rows_by_name[name] for name in names]


def check_start(projection: Projection, start: str) -> None:
    """Raise if a projection lacks the rows that a start sets, or a mimetic start lacks a key head per head."""
    if missing := [name for name in STARTED_ROWS[start] if name not in projection.layout]:
        raise RheoscopeError(
            Message(
                "start={start} sets {names}, which this projection and these values do not have as weights of their own",
                start=start,
                names=", ".join(f"W_{name.upper()}" for name in missing),
            ),
            set_fields(start="usual"),
        )
    (heads, _), (kv_heads, _) = projection.full_layout["q"], projection.full_layout["k"]
    if start == "mimetic" and heads != kv_heads:
        raise RheoscopeError(
            Message(
                "start=mimetic needs one key head per head, got heads={heads} and kv_heads={kv_heads}",
                heads=heads,
                kv_heads=kv_heads,
            ),
            set_fields(kv_heads=heads),
        )


def keep_weights(weights: InitialWeights) -> None:
    """Keep the weights as drawn."""


def symmetric(weights: InitialWeights) -> None:
    """Set W_Q := W_K in every group of heads, so that M is symmetric before the first step."""
    q, k = weights.named_rows("q", "k")
    n_query_heads, n_key_heads = weights.projection.layout["q"][0], weights.projection.layout["k"][0]
    k_per_query_head = k.unflatten(0, (n_key_heads, -1)).repeat_interleave(n_query_heads // n_key_heads, 0)
    q.copy_(k_per_query_head.flatten(0, 1))


def mimetic(weights: InitialWeights) -> None:
    """M_h = αZ + βI truncated to rank k, and Σ_h F_h = αZ − βI truncated to rank h·e, with Z of independent N(0, 1/d)."""
    q, k, v = weights.named_rows("q", "k", "v")
    query_shape = weights.projection.layout["q"]
    for W_Q, W_K in zip(q.split(query_shape[1]), k.split(query_shape[1]), strict=True):
        left, right = svd_factors(noisy_identity(q, *M_COEFFICIENTS), query_shape[1])
        W_Q.copy_(left.mT)
        W_K.copy_(right)
    left, right = svd_factors(noisy_identity(v, F_COEFFICIENTS[0], -F_COEFFICIENTS[1]), len(v))
    v.copy_(left.mT)
    weights.write_weight.copy_(right.mT)


def noisy_identity(
    reference: Float[Tensor, "rows d"], noise_scale: float, identity_scale: float
) -> Float[Tensor, "d d"]:
    """noise_scale · Z + identity_scale · I."""
    d = reference.shape[-1]
    Z = torch.randn(d, d, device=reference.device, dtype=reference.dtype) * d**-0.5
    return noise_scale * Z + identity_scale * torch.eye(d, device=reference.device, dtype=reference.dtype)


def svd_factors(A: Float[Tensor, "d d"], rank: int) -> tuple[Float[Tensor, "d r"], Float[Tensor, "r d"]]:
    """U√S and √SVᵀ, whose product is A truncated to a rank. Columns beyond the width are 0."""
    U, S, Vt = torch.linalg.svd(A)
    sqrt_S = S[:rank].sqrt()
    n_padding = max(0, rank - len(S))
    left, right = U[:, :rank] * sqrt_S, sqrt_S[:, None] * Vt[:rank]
    return torch.nn.functional.pad(left, (0, n_padding)), torch.nn.functional.pad(right, (0, 0, 0, n_padding))


STARTED_ROWS: dict[str, tuple[str, ...]] = {
    "usual": (),
    "symmetric": ("q", "k"),
    "mimetic": ("q", "k", "v"),
    "deepnet": (),
}
"""The rows that each start sets."""
INITIALISERS: dict[str, Callable[[InitialWeights], None]] = {
    "usual": keep_weights,
    "symmetric": symmetric,
    "mimetic": mimetic,
    "deepnet": keep_weights,
}
"""The function for each `start` of a config."""

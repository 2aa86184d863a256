"""What weights are before the first step: one function for each `start`, `STARTS` lists them.

    usual        N(0, .02²), as GPT-2's
    symmetric    W_Q := W_K, then both are free (arXiv:2502.10927)
    mimetic      M ≈ I and Σ_h F_h ≈ −I, as in trained models (arXiv:2305.09828)

A start changes the weights that the usual one has drawn, so that all else is the same for a seed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.models.projections import Projection, sizes
from rheoscope.shapes import RheoscopeError

FORM, CONTENT = (0.7, 0.7), (0.4, 0.4)
"""Of the noise and of the identity, in M and in F: the numbers of the paper, for vision."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """The weights of one layer of self attention as they were drawn: what is read, and what is written."""

    projection: Projection
    read: Float[Tensor, "rows d"]
    write: Float[Tensor, "d he"]

    def rows(self, *names: str) -> list[Float[Tensor, "hk d"]]:
        """Views of the rows of these names; refused where the projection has none of its own."""
        held = dict(zip(self.projection.layout, self.read.split(sizes(self.projection.layout)), strict=True))
        if missing := [name for name in names if name not in held]:
            raise RheoscopeError(
                f"{type(self.projection).__name__} has no weights {' and '.join(missing)} of its own that this start could set; "
                "type start=usual, or projection=untied"
            )
        return [held[name] for name in names]


def usual(drawn: Drawn) -> None:
    """As it was drawn."""


def symmetric(drawn: Drawn) -> None:
    """W_Q := W_K, in every group of heads: M is symmetric before the first step."""
    q, k = drawn.rows("q", "k")
    asking, answering = drawn.projection.layout["q"][0], drawn.projection.layout["k"][0]
    each = k.unflatten(0, (answering, -1)).repeat_interleave(asking // answering, 0)
    q.copy_(each.flatten(0, 1))


def mimetic(drawn: Drawn) -> None:
    """M_h = αZ + βI cut to rank k for every head, Σ_h F_h = αZ − βI cut to rank h·e, Z of independent N(0, 1/d)."""
    q, k, v = drawn.rows("q", "k", "v")
    asking, answering = drawn.projection.layout["q"], drawn.projection.layout["k"]
    if asking[0] != answering[0]:
        raise RheoscopeError(
            f"start=mimetic sets keys for every one of {asking[0]} heads, got {answering[0]} of keys; type kv_heads={asking[0]}"
        )
    for W_Q, W_K in zip(q.split(asking[1]), k.split(asking[1]), strict=True):
        left, right = halves(near_identity(q, *FORM), asking[1])
        W_Q.copy_(left.mT)
        W_K.copy_(right)
    left, right = halves(near_identity(v, CONTENT[0], -CONTENT[1]), len(v))
    v.copy_(left.mT)
    drawn.write.copy_(right.mT)


def near_identity(like: Float[Tensor, "rows d"], noise: float, identity: float) -> Float[Tensor, "d d"]:
    """noise · Z + identity · I."""
    d = like.shape[-1]
    Z = torch.randn(d, d, device=like.device, dtype=like.dtype) * d**-0.5
    return noise * Z + identity * torch.eye(d, device=like.device, dtype=like.dtype)


def halves(A: Float[Tensor, "d d"], rank: int) -> tuple[Float[Tensor, "d r"], Float[Tensor, "r d"]]:
    """U√S and √SVᵀ, whose product is A cut to a rank; columns beyond the width are 0."""
    U, S, Vt = torch.linalg.svd(A)
    root = S[:rank].sqrt()
    more = max(0, rank - len(S))
    left, right = U[:, :rank] * root, root[:, None] * Vt[:rank]
    return torch.nn.functional.pad(left, (0, more)), torch.nn.functional.pad(right, (0, 0, 0, more))


STARTS: dict[str, Callable[[Drawn], None]] = {start.__name__: start for start in (usual, symmetric, mimetic)}
"""What each `start` of a config does to a layer."""

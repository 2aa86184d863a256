"""What every head of a layer adds to every token, in factors: nothing of size heads x tokens x width."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.space.float32_products import product
from rheoscope.space.safe_arithmetic import exact


@dataclass(frozen=True, eq=False)
class Carried:
    """Δ_h = moved_h write_h for all heads, and `rest`, what attention adds besides: all its constants. Of one text or of several.

    `moved` is sum_j alpha_ij v_j without what every value has in common, `write` is W_O, each with its share of a norm
    after attention. Lengths and inner products of displacements need no more than that: where a GPU computes in half precision,
    `moved` stands in it, and they are off by what rounding does at random, 2⁻⁹/√e of both lengths in bfloat16.

    **Laws** `displacements().sum(0) + rest` is what attention did to the cloud; no gauge moves anything but the factors.
    """

    moved: Float[Tensor, "*b h n e"]
    write: Float[Tensor, "h e d"]
    rest: Float[Tensor, "*b n d"]

    def at(self, rows: list[int]) -> "Carried":
        """The same for some tokens."""
        return Carried(self.moved[..., rows, :], self.write, self.rest[..., rows, :])

    def exact(self) -> "Carried":
        """In float32 or better, the dtype of every statistic."""
        dtype = torch.promote_types(self.moved.dtype, torch.float32)
        return Carried(self.moved.to(dtype), self.write.to(dtype), self.rest.to(dtype))

    def displacements(self) -> Float[Tensor, "*b h n d"]:
        """Δ_h of every head and token."""
        return exact(self.moved) @ self.write

    def total(self) -> Float[Tensor, "*b n d"]:
        """What attention did to the cloud: all heads and the rest."""
        return product(self.moved.transpose(-3, -2).flatten(-2), self.write.flatten(0, 1)) + self.rest

    def squares(self) -> Float[Tensor, "*b h n"]:
        """‖Δ_h(x_i)‖² = moved (W Wᵀ) movedᵀ."""
        return dot(self.moved @ (self.write @ self.write.mT).to(self.moved.dtype), self.moved).clamp(min=0)

    def along(self, y: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b h n"]:
        """⟨Δ_h(x_i), y_i⟩, y rounded to the dtype of `moved`."""
        y, write = y.to(self.moved.dtype), self.write.flatten(0, 1).to(self.moved.dtype)
        return dot(self.moved, (y @ write.mT).unflatten(-1, self.write.shape[:2]).transpose(-3, -2))


def dot(a: Float[Tensor, "*b e"], b: Float[Tensor, "*b e"]) -> Float[Tensor, "*b"]:
    """⟨a, b⟩, in float32 or better."""
    return torch.linalg.vecdot(a, b) if a.dtype.itemsize >= 4 else (a * b).sum(-1, dtype=torch.float32)


def apart(
    mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, constant: Float[Tensor, "h e"] | None
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "#b h m e"]]:
    """sum_j alpha_ij v_j of every head in two parts: of the tokens, and of what every value has in common.

    The second has one row where it is the same for all tokens: where weights sum to 1, or where it is nothing.
    """
    whole = mechanism.attend(q, k, v)
    if constant is None or not mechanism.value.identity:
        return whole, exact(torch.zeros_like(whole[..., :1, :]))
    if mechanism.normaliser.sums_to_one:
        common = constant[None, :, None]
    else:
        every = constant[None, :, None].expand(len(q), q.shape[1], k.shape[2], -1).to(v.dtype)
        common = mechanism.attend(q, k, every)
    return whole - common.to(whole.dtype), exact(common)

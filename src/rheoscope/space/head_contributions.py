"""The displacements of all heads of a layer in factored form, without a tensor of size heads x tokens x width."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.space.float32_products import mixed_precision_matmul
from rheoscope.space.safe_arithmetic import at_least_float32


@dataclass(frozen=True, eq=False)
class FactoredDisplacements:
    """Δ_h = mixed_values_h output_map_h for all heads, and `constants`, the rest of attention's displacement. One text or several.

    `mixed_values` is sum_j alpha_ij v_j without the constant part of the values. `output_map` is W_O. Each includes its factor
    of a norm after attention. Lengths and inner products of displacements need nothing else. If a GPU computes in half
    precision, `mixed_values` has that dtype; the random rounding error is 2⁻⁹/√e of both lengths in bfloat16.

    **Laws** `displacements().sum(0) + constants` is the displacement by attention. A gauge changes only the factors.
    """

    mixed_values: Float[Tensor, "*b h n e"]
    output_map: Float[Tensor, "h e d"]
    constants: Float[Tensor, "*b n d"]

    def select_tokens(self, positions: list[int]) -> "FactoredDisplacements":
        """The same for some tokens."""
        return FactoredDisplacements(
            self.mixed_values[..., positions, :], self.output_map, self.constants[..., positions, :]
        )

    def at_least_float32(self) -> "FactoredDisplacements":
        """The same in float32 or better, the dtype of every statistic."""
        dtype = torch.promote_types(self.mixed_values.dtype, torch.float32)
        return FactoredDisplacements(self.mixed_values.to(dtype), self.output_map.to(dtype), self.constants.to(dtype))

    def displacements(self) -> Float[Tensor, "*b h n d"]:
        """Δ_h of every head and token."""
        return at_least_float32(self.mixed_values) @ self.output_map

    def total(self) -> Float[Tensor, "*b n d"]:
        """The displacement by attention: all heads and the constants."""
        return (
            mixed_precision_matmul(self.mixed_values.transpose(-3, -2).flatten(-2), self.output_map.flatten(0, 1))
            + self.constants
        )

    @cached_property
    def squared_norms(self) -> Float[Tensor, "*b h n"]:
        """‖Δ_h(x_i)‖² = mixed_values (W Wᵀ) mixed_valuesᵀ."""
        return vecdot_float32(
            self.mixed_values @ (self.output_map @ self.output_map.mT).to(self.mixed_values.dtype), self.mixed_values
        ).clamp(min=0)

    def inner_products_with(self, y: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b h n"]:
        """⟨Δ_h(x_i), y_i⟩, with y rounded to the dtype of `mixed_values`."""
        y, flat_map = y.to(self.mixed_values.dtype), self.output_map.flatten(0, 1).to(self.mixed_values.dtype)
        return vecdot_float32(
            self.mixed_values, (y @ flat_map.mT).unflatten(-1, self.output_map.shape[:2]).transpose(-3, -2)
        )


def vecdot_float32(a: Float[Tensor, "*b e"], b: Float[Tensor, "*b e"]) -> Float[Tensor, "*b"]:
    """⟨a, b⟩, in float32 or better."""
    return torch.linalg.vecdot(a, b) if a.dtype.itemsize >= 4 else (a * b).sum(-1, dtype=torch.float32)


def split_constant_values(
    mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, value_bias: Float[Tensor, "h e"] | None
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "#b h m e"]]:
    """sum_j alpha_ij v_j of every head in two parts: from the tokens, and from the constant part of the values.

    The second part has one row if it is the same for all tokens: if weights sum to 1, or if it is zero.
    """
    output = mechanism.attend(q, k, v)
    if value_bias is None or not mechanism.value.is_identity:
        return output, at_least_float32(torch.zeros_like(output[..., :1, :]))
    if mechanism.normaliser.sums_to_one:
        constant_output = value_bias[None, :, None]
    else:
        key_value_bias = value_bias[:: q.shape[1] // k.shape[1]]  # once for all query heads of a group
        constant_values = key_value_bias[None, :, None].expand(len(q), -1, k.shape[2], -1).to(v.dtype)
        constant_output = mechanism.attend(q, k, constant_values)
    return output - constant_output.to(output.dtype), at_least_float32(constant_output)

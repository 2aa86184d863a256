"""What every head of a layer carries from every earlier token to the logits of some rows: an exact split of its contribution.

⟨Δ_h(x_i), u_i⟩ = sum_j α_ij ⟨x̂_j F_h, u_i⟩        (times the factors of a gate or a norm after attention, which are fixed)
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.cache import Cache
from rheoscope.attention.definition import repeat_kv_heads
from rheoscope.space.head import Heads
from rheoscope.space.head_contributions import FactoredDisplacements
from rheoscope.space.safe_arithmetic import at_least_float32


@dataclass(frozen=True, eq=False)
class SourceContributions:
    """`by_source` (h, r, n): what head h carries from token j to the logit of row r. `constants` (r): biases of the attention."""

    by_source: Float[Tensor, "h r n"]
    constants: Float[Tensor, " r"]


class KeysValues:
    """The keys and values of the tokens so far, by the View. Values have passed the value map of the mechanism."""

    def __init__(self, heads: Heads, capacity: int) -> None:
        self.heads, self.cache = heads, Cache(capacity)

    def extend(self, k: Float[Tensor, "1 g m k"], v: Float[Tensor, "1 g m e"]) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens, after those of `m` new ones."""
        value_map = self.heads.mechanism.value
        values = v if value_map.is_identity else value_map(repeat_kv_heads(v, self.heads.n_heads))
        return self.cache.extend(k, at_least_float32(values))


def source_contributions(
    heads: Heads,
    q: Float[Tensor, "1 h r k"],
    k: Float[Tensor, "1 g n k"],
    values: Float[Tensor, "1 c n e"],
    x: Float[Tensor, "r d"],
    directions: Float[Tensor, "r d"],
    value_bias: Float[Tensor, "h e"] | None,
) -> SourceContributions:
    """The contributions of all heads of a layer to the logits of the last rows of a text, by source token.

    **Shapes** `q` are the queries of the rows, `x` their points before the norm of the layer. `k` and `values` belong to all n
    tokens. `directions` are those of `LogitDirections`.

    **Laws** Over sources and heads, and with `constants`, they sum to ⟨displacement by attention, direction⟩.
    """
    weights = at_least_float32(heads.mechanism.weights(q, k)[0])
    outputs = grouped_product(weights, values[0])
    bias_output = (
        torch.zeros_like(outputs) if value_bias is None else weights.sum(-1, keepdim=True) * value_bias[:, None]
    )
    factors = heads.apply_gate(torch.ones_like(outputs), x, all_outputs=outputs) if heads.scales_outputs else None
    if factors is not None:
        outputs, bias_output = outputs * factors, bias_output * factors
    factored = heads.factor_displacements(outputs - bias_output, bias_output)
    projected = torch.einsum("hed,rd->hre", factored.output_map, directions) * norm_scale(heads, outputs)
    projected = projected if factors is None else projected * factors
    per_value = grouped_product(projected, values[0].mT)
    if value_bias is not None:
        per_value = per_value - (projected * value_bias[:, None]).sum(-1, keepdim=True)
    return SourceContributions(weights * per_value, (factored.constants * directions).sum(-1))


def norm_scale(heads: Heads, outputs: Float[Tensor, "h r e"]) -> Float[Tensor, "r 1"] | float:
    """The factor by which a norm after attention multiplies every row; 1 without such a norm."""
    if heads.output_norm is None:
        return 1.0
    zeros = outputs.new_zeros(outputs.shape[1], heads.W_O.shape[-1])
    bias = zeros if heads.b_O is None else zeros + heads.b_O
    return heads.output_norm.scale(FactoredDisplacements(outputs, heads.W_O, bias).total())


def grouped_product(rows: Float[Tensor, "h r a"], matrices: Float[Tensor, "g a b"]) -> Float[Tensor, "h r b"]:
    """rows_h matrices_{g(h)}, where h / g heads in a row share a matrix, without copies of the matrices."""
    shared = rows.reshape(len(matrices), -1, rows.shape[-1])
    return (shared @ matrices).reshape(*rows.shape[:-1], -1)

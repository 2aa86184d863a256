"""FLOPs, bytes and parameters of attention and of a Transformer, from counting matrix products.

A product of (m, k) and (k, n) costs 2 m k n FLOPs. A backward pass costs two forward passes, so training costs three.
Elementwise work is not counted. All counts are for the definition; a causal mask halves the pairwise work.
"""

from dataclasses import dataclass

from rheoscope.attention.definition import Definition, query_key_positions
from rheoscope.attention.parameters import tensors_by_path
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True)
class AttentionCost:
    """FLOPs of one forward pass, bytes of q, k, v and o, bytes of the full weight matrix, number of parameters."""

    flops: int
    bytes_io: int
    bytes_weights: int
    parameters: int


def attention_cost(
    mechanism: Definition,
    q: tuple[int, int, int, int],
    k: tuple[int, int, int, int],
    value_width: int | None = None,
    element_bytes: int = 4,
) -> AttentionCost:
    """FLOPs, bytes and parameters of one call of a mechanism on q (b, h, m, d) and k (b, g, n, c).

    **Formula** 2 b h m n (d + e) for scores and averages, half of it under a causal mask, plus the maps of each token.
    Linear attention costs 4 b h n d e instead.

    **Laws** The FLOPs equal torch's FLOP counter on the matrix products of the reference.

    **See also** `transformer_cost` counts a whole model.

    >>> import rheoscope as rs
    >>> rs.attention_cost(rs.mechanism("scaled_dot"), (1, 8, 2048, 64), (1, 8, 2048, 64)).flops
    8589934592
    """
    (b, h, m, d), (_, g, n, c) = q, k
    e = c if value_width is None else value_width
    pairs, score_flops = b * h * m * n, mechanism.score.flops(d)
    if mechanism.normaliser.divides_by_sum:
        pair_flops = 2 * b * h * (n + m) * d * e
    else:
        pair_flops = pairs * (score_flops.per_pair + 2 * e)
        pair_flops = pair_flops if mechanism.mask.allows_all else _allowed_flops(mechanism, m, n, pair_flops)
    map_flops = b * h * (m * score_flops.per_query + n * score_flops.per_key)
    io_bytes = (b * h * m * (d + e) + b * g * n * (c + e)) * element_bytes
    return AttentionCost(
        pair_flops + map_flops,
        io_bytes,
        pairs * element_bytes,
        sum(x.numel() for x in tensors_by_path(mechanism).values()),
    )


def _allowed_flops(mechanism: Definition, m: int, n: int, flops: int) -> int:
    """FLOPs of the allowed pairs, counted on the mask if it is small and from its key ranges otherwise."""
    i, j = query_key_positions(m, n)
    if m * n <= 1 << 22:
        return round(flops * float(mechanism.mask(i, j).float().mean()))
    key_ranges = [mechanism.mask.key_range(int(position), int(position) + 1, n) for position in i]
    return round(flops * sum(high - low for low, high in key_ranges) / (m * n))


@dataclass(frozen=True)
class TransformerCost:
    """Counts for one forward pass over a sequence of `tokens` tokens; see `transformer_cost`."""

    parameters: int
    projections: int
    attention: int
    ffn: int
    unembedding: int
    crossover: float
    crossover_projections: float

    @property
    def forward(self) -> int:
        return self.projections + self.attention + self.ffn + self.unembedding

    @property
    def training(self) -> int:
        return 3 * self.forward


def transformer_cost(
    layers: int,
    width: int,
    tokens: int,
    vocabulary: int = 0,
    heads: int = 1,
    kv_heads: int | None = None,
    ffn_width: int | None = None,
    ffn_matrices: int = 2,
    causal: bool = True,
) -> TransformerCost:
    """FLOPs, parameters and crossover lengths of a Transformer with tied embeddings, one sequence.

    **Formula** training = 6 (matrix parameters) tokens + 12 L N² d for attention (half if causal).

    **Returns** `crossover` is the length N beyond which attention's dot products cost more than all other matrix
    products of a layer together: 6d for a two-matrix FFN of width 4d, 8d for a gated three-matrix FFN.
    `crossover_projections` (2d) compares with attention's own projections. Both are for unmasked attention and double
    under a causal mask, which halves the dot products.

    **Laws** The FLOPs equal torch's FLOP counter on a real model.

    >>> import rheoscope as rs
    >>> rs.transformer_cost(layers=12, width=768, tokens=1024, heads=12).crossover / 768
    6.0
    """
    if width % heads or heads % (kv_heads or heads) or ffn_matrices not in (2, 3):
        raise RheoscopeError(
            Message(
                "width must be a multiple of heads, heads a multiple of kv_heads and ffn_matrices 2 or 3, got width={width}, "
                "heads={heads}, kv_heads={kv_heads}, ffn_matrices={ffn_matrices}",
                width=width,
                heads=heads,
                kv_heads=str(kv_heads),
                ffn_matrices=ffn_matrices,
            )
        )
    projection_parameters = 2 * width * width + 2 * width * width * (kv_heads or heads) // heads
    ffn_parameters = ffn_matrices * width * (ffn_width or 4 * width)
    return TransformerCost(
        parameters=layers * (projection_parameters + ffn_parameters) + vocabulary * width,
        projections=2 * layers * projection_parameters * tokens,
        attention=4 * layers * tokens * tokens * width // (2 if causal else 1),
        ffn=2 * layers * ffn_parameters * tokens,
        unembedding=2 * vocabulary * width * tokens,
        crossover=(projection_parameters + ffn_parameters) / (2 * width),
        crossover_projections=projection_parameters / (2 * width),
    )

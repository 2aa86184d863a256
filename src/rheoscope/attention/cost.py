"""What attention and a Transformer cost: FLOPs, bytes and parameters, by counting matrix products.

A product of (m, k) and (k, n) is 2 m k n FLOPs; a backward pass costs two forwards, so training is three. Elementwise
work is not counted. All numbers are for the definition; a causal mask halves what happens between pairs of tokens.
"""

from dataclasses import dataclass

from rheoscope.attention.definition import Definition, positions
from rheoscope.attention.parameters import tensors
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True)
class AttentionCost:
    """FLOPs of one forward; bytes of q, k, v, o; bytes of all weights if they were held; learned numbers."""

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
    """FLOPs, bytes and parameters of one call of a mechanism on q (b, h, m, d) and k (b, g, n, d).

    **Formula** 2 b h m n (d + e) for scores and averages, half of it under a causal mask, plus the maps of each token;
    linear attention costs 4 b h n d e instead.

    **Laws** equal to torch's own counter on the matrix products of the reference.

    **Siblings** `transformer_cost` counts a whole model.

    >>> import rheoscope as rs
    >>> rs.attention_cost(rs.mechanism("scaled_dot"), (1, 8, 2048, 64), (1, 8, 2048, 64)).flops
    8589934592
    """
    (b, h, m, d), (_, g, n, _) = q, k
    e = d if value_width is None else value_width
    pairs, of = b * h * m * n, mechanism.score.flops(d)
    if mechanism.normaliser.divides_by_sum:
        between = 2 * b * h * (n + m) * d * e
    else:
        between = pairs * (of.pair + 2 * e)
        between = between if mechanism.mask.forbids_nothing else _permitted(mechanism, m, n, between)
    maps = b * h * (m * of.query + n * of.key)
    io = (b * h * m * (d + e) + b * g * n * (d + e)) * element_bytes
    return AttentionCost(between + maps, io, pairs * element_bytes, sum(x.numel() for x in tensors(mechanism).values()))


def _permitted(mechanism: Definition, m: int, n: int, flops: int) -> int:
    """The share of pairs that the mask permits, counted on the mask itself when small, by its span otherwise."""
    i, j = positions(m, n)
    if m * n <= 1 << 22:
        return round(flops * float(mechanism.mask(i, j).float().mean()))
    spans = [mechanism.mask.span(int(row), int(row) + 1, n) for row in i]
    return round(flops * sum(high - low for low, high in spans) / (m * n))


@dataclass(frozen=True)
class TransformerCost:
    """Counts for one forward over `tokens` tokens of one sequence; see `transformer_cost`."""

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

    **Crossover** the length N beyond which attention's dot products cost more than every other matrix product of a
    layer (`crossover`: 6d for a two-matrix FFN of 4d, 8d for a gated three-matrix one) and more than its own
    projections (`crossover_projections`: 2d), unmasked; twice that if causal.

    **Laws** equal to torch's own counter on a real model.

    >>> import rheoscope as rs
    >>> rs.transformer_cost(layers=12, width=768, tokens=1024, heads=12).crossover / 768
    6.0
    """
    if width % heads or heads % (kv_heads or heads) or ffn_matrices not in (2, 3):
        raise RheoscopeError(
            f"width must be a multiple of heads, heads of kv_heads, ffn_matrices 2 or 3; got width={width}, heads={heads}, "
            f"kv_heads={kv_heads}, ffn_matrices={ffn_matrices}"
        )
    of_projections = 2 * width * width + 2 * width * width * (kv_heads or heads) // heads
    of_ffn = ffn_matrices * width * (ffn_width or 4 * width)
    return TransformerCost(
        parameters=layers * (of_projections + of_ffn) + vocabulary * width,
        projections=2 * layers * of_projections * tokens,
        attention=4 * layers * tokens * tokens * width // (2 if causal else 1),
        ffn=2 * layers * of_ffn * tokens,
        unembedding=2 * vocabulary * width * tokens,
        crossover=(of_projections + of_ffn) / (2 * width),
        crossover_projections=of_projections / (2 * width),
    )

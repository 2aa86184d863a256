"""The definitions and theorems of attention, each as a law whose violation is measured on random tokens.

A row is what the mathematics of attention states (in our words), where it is stated, the name of the law that says the
same, and a function that measures how far it is broken here and now, in float64. What a theorem says of a sum or of a
product is computed by the fastest way on one side and written out, token by token, on the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from typing import Any

import torch
from torch import Generator, Tensor

from rheoscope.attention.cost import transformer_cost
from rheoscope.attention.definition import reference
from rheoscope.attention.gradient import attention_gradients, self_attention_gradients
from rheoscope.attention.laws import LAWS, gap
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.modules import MultiHeadAttention
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.parameters import tensors, with_tensors
from rheoscope.attention.position import sinusoidal_table
from rheoscope.attention.survey import cloud, survey
from rheoscope.attention.zoo import ZOO, mechanism

M, N, D_Q, D_K, D_V = 4, 6, 5, 3, 2


@dataclass(frozen=True)
class Theorem:
    """One statement: where it stands, what it says, the law that says the same, how far it is broken, what rounding explains."""

    item: str
    statement: str
    law: str
    measure: Callable[[], float]
    tolerance: float = 1e-9


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


def tokens(d_q: int = D_K) -> tuple[Tensor, Tensor, Tensor]:
    """Four queries, six keys, six values, two heads."""
    return drawn(1, 1, 2, M, d_q), drawn(2, 1, 2, N, D_K), drawn(3, 1, 2, N, D_V)


def layer_of(width: int, heads: int, **widths: Any) -> MultiHeadAttention:
    """The same layer at every call, whatever else was drawn."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MultiHeadAttention(width, heads, **widths).double().requires_grad_(False)


def in_double(made: Mechanism) -> Mechanism:
    return with_tensors(made, {path: x.double() for path, x in tensors(made).items()})


def declared(law: str) -> Callable[[], float]:
    """The largest violation among all named mechanisms that declare the law."""

    def measure() -> float:
        found = []
        for row in ZOO.values():
            if law in row.laws:
                made = in_double(row(**({"dim": D_K} if row.needs_dim else {})))
                q, k, v = tokens()
                found.append(LAWS[law].violation(made, k if made.domain.square else q, k, v))
        return max(found)

    return measure


def of_named(name: str, law: str) -> Callable[[], float]:
    """The violation of a law by one named mechanism, among the same tokens as queries and keys."""

    def measure() -> float:
        row, (_, k, v) = ZOO[name], tokens()
        return LAWS[law].violation(in_double(row(**({"dim": D_K} if row.needs_dim else {}))), k, k, v)

    return measure


def product_of_rows() -> float:
    a, B = drawn(1, 1, N), drawn(2, M, N)
    return gap(a @ B.mT, torch.tensor([[sum(x * y for x, y in zip(a[0], b, strict=True)) for b in B]]).double())


def mixture_of_rows() -> float:
    a, C = drawn(1, 1, N), drawn(2, N, D_V)
    return gap(a @ C, sum((weight * c for weight, c in zip(a[0], C, strict=True)), torch.zeros(D_V)))


def softmax_formula() -> float:
    U = drawn(1, 1, 1, M, N)
    rows = [[exp(u) / sum(exp(other) for other in row) for u in row] for row in U[0, 0].tolist()]
    return gap(Softmax()(U)[0, 0], torch.tensor(rows, dtype=torch.float64))


def general_definition() -> float:
    """Three widths, a score f and a value map g that are plain functions, one query and one key at a time."""
    q, k, v = tokens(D_Q)
    f = in_double(mechanism("additive", dim=D_Q, key_dim=D_K)).score
    out = Mechanism(score=lambda q, k: f(q, k), value=torch.sin)(q, k, v)
    written = torch.zeros_like(out)
    for h in range(2):
        for i in range(M):
            s = [float(f(q[:, h : h + 1, i : i + 1], k[:, h : h + 1, j : j + 1])) for j in range(N)]
            written[0, h, i] = sum(exp(s[j]) / sum(map(exp, s)) * v[0, h, j].sin() for j in range(N))
    return gap(out, written)


def self_attention() -> float:
    """One head as a layer against k_i = x_i W_K, v_i = x_i W_V, q_i = x_i W_Q token by token."""
    layer, x = layer_of(D_Q, heads=1, head_width=D_K, value_width=D_V), drawn(1, 1, N, D_Q)
    layer.W_O = torch.nn.Identity()  # type: ignore[assignment]
    made = [torch.stack([row @ W.weight.T for row in x[0]]) for W in (layer.W_Q, layer.W_K, layer.W_V)]
    out = reference(Mechanism(), *(rows[None, None] for rows in made))[0]
    return gap(layer(x), out[:, 0])


def scaled_dot_formula() -> float:
    q, k, _ = tokens()
    by_pairs = (q[..., :, None, :] * k[..., None, :, :]).sum(-1) / D_K**0.5
    return gap(mechanism("scaled_dot").score(q, k), by_pairs)


def query_by_query(what: str) -> Callable[[], float]:
    """Scores, weights or outputs of each query alone against the row of the matrix product."""

    def measure() -> float:
        q, k, v = tokens()
        s = q @ k.mT / D_K**0.5
        found = {"scores": mechanism("scaled_dot").score(q, k)}
        found["outputs"], found["weights"] = reference(mechanism("scaled_dot"), q, k, v)
        told = {"scores": s, "weights": s.softmax(-1), "outputs": s.softmax(-1) @ v}
        alone = [reference(mechanism("scaled_dot"), q[:, :, j : j + 1], k, v) for j in range(M)]
        rows = {"outputs": torch.cat([o for o, _ in alone], 2), "weights": torch.cat([a for _, a in alone], 2)}
        return max(gap(found[what], told[what]), gap(rows.get(what, told[what]), told[what]))

    return measure


def broken_laws() -> float:
    """How many of all the laws that the named mechanisms declare are broken."""
    return float(sum(len(row.broken) for row in survey(cloud(), tokens=64, width=8)))


def sine_table() -> float:
    at = torch.arange(N)
    rows = [
        [
            (torch.sin, torch.cos)[c % 2](torch.tensor(p / 10000 ** (c // 2 * 2 / 8), dtype=torch.float64))
            for c in range(8)
        ]
        for p in at.double().tolist()
    ]
    return gap(sinusoidal_table(at, 8), torch.tensor(rows, dtype=torch.float64))


def multi_head() -> float:
    """Concat(head_1, …) W_O is the sum of the heads, each through its own rows of W_O."""
    layer, x = layer_of(8, heads=4, value_width=D_V), drawn(1, 1, N, 8)
    Q, K, V = (W.weight.T.unflatten(-1, (4, -1)).permute(1, 0, 2) for W in (layer.W_Q, layer.W_K, layer.W_V))
    back = layer.W_O.weight.T.unflatten(0, (4, -1))
    heads = [reference(Mechanism(), *((x @ W[h])[None] for W in (Q, K, V)))[0][0] for h in range(4)]
    return gap(layer(x), sum((o @ back[h] for h, o in enumerate(heads)), torch.zeros(1)))


def mask_as_minus_infinity() -> float:
    q, k, v = drawn(1, 1, 1, N, D_K), drawn(2, 1, 1, N, D_K), drawn(3, 1, 1, N, D_V)
    minus = torch.full((N, N), -torch.inf, dtype=torch.float64).triu(1)
    told = (q @ k.mT / D_K**0.5 + minus).softmax(-1) @ v
    return gap(mechanism("scaled_dot")(q, k, v, mask="causal"), told)


def training_flops() -> float:
    cost = transformer_cost(layers=3, width=32, tokens=100, heads=4, causal=False)
    told = 6 * 100 * cost.parameters + 12 * 3 * 100**2 * 32
    return abs(cost.training - told) / told


def crossover() -> float:
    """Where attention's products equal all others: 8 widths with a gated FFN, 6 with a plain one, unmasked."""
    off = []
    for matrices, times in ((3, 8), (2, 6)):
        at = transformer_cost(layers=1, width=32, tokens=32 * times, heads=4, ffn_matrices=matrices, causal=False)
        off.append(abs(at.attention - at.projections - at.ffn) / at.attention)
    return max(off)


def by_autograd(mask: str | None = None) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, Tensor, Tensor]]:
    qkv = tuple(x.requires_grad_() for x in tokens())
    out = reference(mechanism("scaled_dot").under(mask), *qkv)[0]
    G = drawn(4, *out.shape)
    found = torch.autograd.grad(out, qkv, G)
    return G, found, (qkv[0].detach(), qkv[1].detach(), qkv[2].detach())


def closed_gradient() -> float:
    G, auto, qkv = by_autograd("causal")
    mine = attention_gradients(mechanism("scaled_dot"), *qkv, G, mask="causal")
    return max(gap(a, b) for a, b in zip((mine.q, mine.k, mine.v), auto, strict=True))


def input_gradient() -> float:
    x, W_Q, W_K, W_V = (drawn(5, 1, N, 4), drawn(6, 2, 4, D_K), drawn(7, 2, 4, D_K), drawn(8, 2, 4, D_V))
    leaf = x.clone().requires_grad_()
    out = reference(mechanism("scaled_dot").under("causal"), *(leaf[:, None] @ W for W in (W_Q, W_K, W_V)))[0]
    G = drawn(9, *out.shape)
    mine = self_attention_gradients(mechanism("scaled_dot"), x, W_Q, W_K, W_V, G, mask="causal")
    return gap(mine.x, torch.autograd.grad(out, leaf, G)[0])


def reversed_attention() -> float:
    """R = A ∘ (D − rowsum(A ∘ D)) with D = G Vᵀ; its rows sum to 0, and queries and keys get R K and Rᵀ Q."""
    G, auto, (q, k, v) = by_autograd()
    found, A = attention_gradients(mechanism("scaled_dot"), q, k, v, G), mechanism("scaled_dot").weights(q, k)
    D = G @ v.mT
    R = A * (D - (A * D).sum(-1, keepdim=True))
    rows = float(found.scores.sum(-1).abs().max())
    return max(rows, gap(found.scores, R), gap(R @ k / D_K**0.5, auto[0]), gap(R.mT @ q / D_K**0.5, auto[1]))


def value_mixing() -> float:
    G, auto, (q, k, _) = by_autograd()
    return gap(mechanism("scaled_dot").weights(q, k).mT @ G, auto[2])


def shuffled_difference(placed: bool) -> float:
    """How far self-attention of a shuffled text is from its output shuffled alike, with sines added to it or without."""
    x, order = drawn(1, 1, N, 8), torch.tensor([3, 0, 5, 1, 4, 2])
    layer = layer_of(8, heads=2)
    added = sinusoidal_table(torch.arange(N), 8) * placed
    return gap(layer(x[:, order] + added), layer(x + added)[:, order])


def positions_are_felt() -> float:
    """0 where the order of the text is felt once positions are added, 1 where it is not."""
    return float(shuffled_difference(True) < 1e-3)


def kernel_of_maps() -> float:
    """Scores are inner products of mapped inputs: ⟨x_i W_Q, x_j W_K⟩/√d_k."""
    x, W_Q, W_K = drawn(1, N, 8), drawn(2, 8, D_K), drawn(3, 8, D_K)
    told = torch.stack([torch.stack([(a @ W_Q) @ (b @ W_K) for b in x]) for a in x]) / D_K**0.5
    return gap(mechanism("scaled_dot").score((x @ W_Q)[None, None], (x @ W_K)[None, None])[0, 0], told)


def pseudo_metric() -> float:
    """d(x, y) = √(2 · −score) is 0 from a point to itself, the same both ways, and no way round is shorter."""
    x = drawn(1, 1, 1, N, D_K)
    d = (-2 * mechanism("metric").score(x, x)[0, 0]).sqrt()
    round_about = (d[:, None, :] - (d[:, :, None] + d[None])).clamp(min=0).max()
    return max(float(d.diagonal().abs().max()), gap(d, d.mT), float(round_about))


def gaussian_kernel() -> float:
    """Weights of metric attention are a Gaussian kernel divided by its sum over keys."""
    q, k, _ = tokens()
    kernel = (-(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1) / (2 * 1.7**2)).exp()
    return gap(mechanism("metric", sigma=1.7).weights(q, k), kernel / kernel.sum(-1, keepdim=True))


def gaussian_is_dot_with_bias() -> float:
    q, k, v = tokens()
    biased = (q @ k.mT - k.square().sum(-1)[..., None, :] / 2).softmax(-1) @ v
    return gap(mechanism("metric")(q, k, v), biased)


THEOREMS = (
    Theorem(
        "Theorem 1.1",
        "a row times Bᵀ is the row of its scalar products with the rows of B",
        "product_of_rows",
        product_of_rows,
    ),
    Theorem(
        "Theorem 1.2", "a row times C is the sum of the rows of C, weighted by it", "mixture_of_rows", mixture_of_rows
    ),
    Theorem("Definition 1", "softmax: e to each number of a row, over their sum", "softmax_formula", softmax_formula),
    Theorem(
        "Definition 2",
        "o = Σ_j α_j g(v_j) with any score f and any value map g, and d_q, d_k, d_v apart",
        "general_definition",
        general_definition,
    ),
    Theorem("Theorem 2", "weights lie between 0 and 1", "in_unit_interval", declared("in_unit_interval")),
    Theorem("Theorem 2", "the weights of a query sum to 1", "rows_sum_to_one", declared("rows_sum_to_one")),
    Theorem(
        "Definition 3",
        "self-attention: queries, keys and values are X W_Q, X W_K, X W_V",
        "self_attention",
        self_attention,
    ),
    Theorem("Definition 4", "scaled dot product: f = q·k/√d_k, g(v) = v", "scaled_dot_formula", scaled_dot_formula),
    Theorem("Theorem 3.1", "q_j Kᵀ/√d_k are the scores of query j", "query_scores", query_by_query("scores")),
    Theorem(
        "Theorem 3.2, 3.4",
        "row j of softmax(QKᵀ/√d_k) are the weights of query j alone",
        "query_weights",
        query_by_query("weights"),
    ),
    Theorem(
        "Theorem 3.3, 3.5",
        "row j of softmax(QKᵀ/√d_k)V is the weighted sum for query j alone",
        "query_outputs",
        query_by_query("outputs"),
    ),
    Theorem(
        "2.3",
        "every other named mechanism keeps all laws that it declares (how many are broken)",
        "declared_laws",
        broken_laws,
        0.0,
    ),
    Theorem("3.1", "the sine table: sin and cos of p/10000^(2c/d)", "sine_table", sine_table),
    Theorem(
        "3.2",
        "heads side by side through W_O are the sum of the heads, each through its rows of W_O",
        "multi_head",
        multi_head,
    ),
    Theorem("3.5", "a mask is −∞ added to the scores", "mask_as_minus_infinity", mask_as_minus_infinity),
    Theorem(
        "3.5",
        "a forbidden key weighs exactly 0 and cannot be felt; an empty row gives 0",
        "masked_is_zero",
        declared("masked_is_zero"),
    ),
    Theorem(
        "4.1", "training costs 6 · tokens · parameters, and 12 L N² d for attention", "training_flops", training_flops
    ),
    Theorem(
        "4.1",
        "attention's products exceed all others beyond N = 8d (gated FFN; 6d plain; unmasked)",
        "crossover",
        crossover,
    ),
    Theorem("4.2", "∂L/∂Q, ∂L/∂K, ∂L/∂V in closed form are those of autograd", "closed_gradient", closed_gradient),
    Theorem("4.2", "∂L/∂X = ∂L/∂Q W_Qᵀ + ∂L/∂K W_Kᵀ + ∂L/∂V W_Vᵀ over all heads", "input_gradient", input_gradient),
    Theorem("4.2", "∂L/∂V = Aᵀ G", "value_mixing", value_mixing),
    Theorem(
        "4.2",
        "the backward pass of the scores is an attention of its own, R K and Rᵀ Q, rows of R sum to 0",
        "reversed_attention",
        reversed_attention,
    ),
    Theorem(
        "4.3",
        "permuted queries permute the output, permuted key-value pairs change nothing",
        "permutation",
        declared("permutation"),
    ),
    Theorem(
        "4.3",
        "self-attention without positions: a shuffled text gives the same output, shuffled",
        "shuffled_alike",
        lambda: shuffled_difference(False),
    ),
    Theorem(
        "4.3",
        "hence positions: with them a shuffled text gives another output (0: it does)",
        "positions_are_felt",
        positions_are_felt,
        0.0,
    ),
    Theorem(
        "4.4",
        "shaped attention is α v_i + β attention − γ mean v",
        "shaped_identity",
        of_named("shaped", "shaped_identity"),
    ),
    Theorem("5.1", "scores are inner products of mapped inputs", "kernel_of_maps", kernel_of_maps),
    Theorem(
        "5.1", "one map for both sides gives a Mercer kernel: positive semi-definite", "gram_psd", declared("gram_psd")
    ),
    Theorem(
        "5.2",
        "metric attention scores by a pseudo-metric: 0 to itself, symmetric, triangle inequality",
        "pseudo_metric",
        pseudo_metric,
    ),
    Theorem("5.2", "its weights are a Gaussian kernel over its sum", "gaussian_kernel", gaussian_kernel),
    Theorem(
        "5.2",
        "under softmax it is a dot product with the bias −|k|²/2σ² on each key",
        "gaussian_is_dot_with_bias",
        gaussian_is_dot_with_bias,
    ),
    Theorem(
        "5.4",
        "Sinkhorn in place of softmax: columns sum to 1 as well",
        "doubly_stochastic",
        of_named("sinkhorn", "doubly_stochastic"),
        1e-6,
    ),
    Theorem("5.4", "entmax in place of softmax: far keys weigh exactly 0", "sparse", declared("sparse"), 0.0),
)

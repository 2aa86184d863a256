"""Definitions and theorems of attention, each as a law whose violation is measured on random tokens.

Each row has a section, a statement, the name of its law, and a function that measures the violation in float64. The function
compares the fast implementation with sums and products written out token by token.
"""

from collections.abc import Callable
from math import exp
from typing import Any

import torch
from torch import Tensor

from rheoscope.attention.cost import transformer_cost
from rheoscope.attention.definition import reference_attention
from rheoscope.attention.gradient import attention_gradients, self_attention_gradients
from rheoscope.attention.laws import LAWS, relative_difference
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.modules import MultiHeadAttention
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.position import sinusoidal_table
from rheoscope.attention.survey import example_cloud, survey_mechanisms
from rheoscope.attention.theorem import Theorem
from rheoscope.attention.theorem_inputs import random_normal, to_float64
from rheoscope.attention.zoo import ZOO, mechanism
from rheoscope.messages.message import Message

M, N, D_Q, D_K, D_V = 4, 6, 5, 3, 2


def random_qkv(d_q: int = D_K) -> tuple[Tensor, Tensor, Tensor]:
    """Four queries, six keys, six values, two heads."""
    return random_normal(1, 1, 2, M, d_q), random_normal(2, 1, 2, N, D_K), random_normal(3, 1, 2, N, D_V)


def seeded_layer(width: int, heads: int, **widths: Any) -> MultiHeadAttention:
    """The same layer at every call, independent of the global random state."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MultiHeadAttention(width, heads, **widths).double().requires_grad_(False)


def make_zoo_measure(law: str) -> Callable[[], float]:
    """A function that returns the largest violation over all named mechanisms that declare the law."""

    def measure() -> float:
        violations = []
        for entry in ZOO.values():
            if law in entry.laws:
                instance = to_float64(entry(**({"dim": D_K} if entry.needs_dim else {})))
                q, k, v = random_qkv()
                violations.append(LAWS[law].violation(instance, k if instance.domain.requires_square else q, k, v))
        return max(violations)

    return measure


def make_mechanism_measure(name: str, law: str) -> Callable[[], float]:
    """A function that returns the violation for one named mechanism, with the same tokens as queries and keys."""

    def measure() -> float:
        entry, (_, k, v) = ZOO[name], random_qkv()
        return LAWS[law].violation(to_float64(entry(**({"dim": D_K} if entry.needs_dim else {}))), k, k, v)

    return measure


def product_of_rows() -> float:
    a, B = random_normal(1, 1, N), random_normal(2, M, N)
    return relative_difference(
        a @ B.mT, torch.tensor([[sum(x * y for x, y in zip(a[0], b, strict=True)) for b in B]]).double()
    )


def mixture_of_rows() -> float:
    a, C = random_normal(1, 1, N), random_normal(2, N, D_V)
    return relative_difference(a @ C, sum((weight * c for weight, c in zip(a[0], C, strict=True)), torch.zeros(D_V)))


def softmax_formula() -> float:
    U = random_normal(1, 1, 1, M, N)
    rows = [[exp(u) / sum(exp(score) for score in row) for u in row] for row in U[0, 0].tolist()]
    return relative_difference(Softmax()(U)[0, 0], torch.tensor(rows, dtype=torch.float64))


def general_definition() -> float:
    """Attention with three different widths and Python functions as score f and value map g, computed pair by pair."""
    q, k, v = random_qkv(D_Q)
    f = to_float64(mechanism("additive", dim=D_Q, key_dim=D_K)).score
    out = Mechanism(score=lambda q, k: f(q, k), value=torch.sin)(q, k, v)
    expected = torch.zeros_like(out)
    for h in range(2):
        for i in range(M):
            s = [float(f(q[:, h : h + 1, i : i + 1], k[:, h : h + 1, j : j + 1])) for j in range(N)]
            expected[0, h, i] = sum(exp(s[j]) / sum(map(exp, s)) * v[0, h, j].sin() for j in range(N))
    return relative_difference(out, expected)


def self_attention() -> float:
    """A layer with one head, compared with q_i = x_i W_Q, k_i = x_i W_K and v_i = x_i W_V for every token."""
    layer, x = seeded_layer(D_Q, heads=1, head_width=D_K, value_width=D_V), random_normal(1, 1, N, D_Q)
    layer.W_O = torch.nn.Identity()  # type: ignore[assignment]
    projections = [torch.stack([row @ W.weight.T for row in x[0]]) for W in (layer.W_Q, layer.W_K, layer.W_V)]
    out = reference_attention(Mechanism(), *(rows[None, None] for rows in projections))[0]
    return relative_difference(layer(x), out[:, 0])


def scaled_dot_formula() -> float:
    q, k, _ = random_qkv()
    expected = (q[..., :, None, :] * k[..., None, :, :]).sum(-1) / D_K**0.5
    return relative_difference(mechanism("scaled_dot").score(q, k), expected)


def make_query_measure(quantity: str) -> Callable[[], float]:
    """A function that compares scores, weights or outputs of single queries with the rows of the matrix product."""

    def measure() -> float:
        q, k, v = random_qkv()
        s = q @ k.mT / D_K**0.5
        computed = {"scores": mechanism("scaled_dot").score(q, k)}
        computed["outputs"], computed["weights"] = reference_attention(mechanism("scaled_dot"), q, k, v)
        expected = {"scores": s, "weights": s.softmax(-1), "outputs": s.softmax(-1) @ v}
        single_queries = [reference_attention(mechanism("scaled_dot"), q[:, :, j : j + 1], k, v) for j in range(M)]
        stacked_queries = {
            "outputs": torch.cat([o for o, _ in single_queries], 2),
            "weights": torch.cat([a for _, a in single_queries], 2),
        }
        return max(
            relative_difference(computed[quantity], expected[quantity]),
            relative_difference(stacked_queries.get(quantity, expected[quantity]), expected[quantity]),
        )

    return measure


def count_broken_laws() -> float:
    """The number of declared laws that are violated, over all named mechanisms."""
    return float(sum(len(row.broken_laws) for row in survey_mechanisms(example_cloud(), tokens=64, width=8)))


def sine_table() -> float:
    positions = torch.arange(N)
    rows = [
        [
            (torch.sin, torch.cos)[c % 2](torch.tensor(p / 10000 ** (c // 2 * 2 / 8), dtype=torch.float64))
            for c in range(8)
        ]
        for p in positions.double().tolist()
    ]
    return relative_difference(sinusoidal_table(positions, 8), torch.tensor(rows, dtype=torch.float64))


def multi_head() -> float:
    """Concat(head_1, …) W_O is the sum of the heads, each mapped by its own rows of W_O."""
    layer, x = seeded_layer(8, heads=4, value_width=D_V), random_normal(1, 1, N, 8)
    Q, K, V = (W.weight.T.unflatten(-1, (4, -1)).permute(1, 0, 2) for W in (layer.W_Q, layer.W_K, layer.W_V))
    output_maps = layer.W_O.weight.T.unflatten(0, (4, -1))
    heads = [reference_attention(Mechanism(), *((x @ W[h])[None] for W in (Q, K, V)))[0][0] for h in range(4)]
    return relative_difference(layer(x), sum((o @ output_maps[h] for h, o in enumerate(heads)), torch.zeros(1)))


def mask_as_minus_infinity() -> float:
    q, k, v = random_normal(1, 1, 1, N, D_K), random_normal(2, 1, 1, N, D_K), random_normal(3, 1, 1, N, D_V)
    mask_bias = torch.full((N, N), -torch.inf, dtype=torch.float64).triu(1)
    expected = (q @ k.mT / D_K**0.5 + mask_bias).softmax(-1) @ v
    return relative_difference(mechanism("scaled_dot")(q, k, v, mask="causal"), expected)


def training_flops() -> float:
    cost = transformer_cost(layers=3, width=32, tokens=100, heads=4, causal=False)
    expected = 6 * 100 * cost.parameters + 12 * 3 * 100**2 * 32
    return abs(cost.training - expected) / expected


def crossover() -> float:
    """At a length of 8 widths (gated FFN) or 6 (plain FFN), attention without a mask costs as much as all other products."""
    errors = []
    for ffn_matrices, n_widths in ((3, 8), (2, 6)):
        cost = transformer_cost(
            layers=1, width=32, tokens=32 * n_widths, heads=4, ffn_matrices=ffn_matrices, causal=False
        )
        errors.append(abs(cost.attention - cost.projections - cost.ffn) / cost.attention)
    return max(errors)


def autograd_gradients(mask: str | None = None) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, Tensor, Tensor]]:
    qkv = tuple(x.requires_grad_() for x in random_qkv())
    out = reference_attention(mechanism("scaled_dot").with_mask(mask), *qkv)[0]
    G = random_normal(4, *out.shape)
    gradients = torch.autograd.grad(out, qkv, G)
    return G, gradients, (qkv[0].detach(), qkv[1].detach(), qkv[2].detach())


def closed_gradient() -> float:
    G, expected, qkv = autograd_gradients("causal")
    gradients = attention_gradients(mechanism("scaled_dot"), *qkv, G, mask="causal")
    return max(
        relative_difference(a, b) for a, b in zip((gradients.q, gradients.k, gradients.v), expected, strict=True)
    )


def input_gradient() -> float:
    x, W_Q, W_K, W_V = (
        random_normal(5, 1, N, 4),
        random_normal(6, 2, 4, D_K),
        random_normal(7, 2, 4, D_K),
        random_normal(8, 2, 4, D_V),
    )
    leaf = x.clone().requires_grad_()
    out = reference_attention(
        mechanism("scaled_dot").with_mask("causal"), *(leaf[:, None] @ W for W in (W_Q, W_K, W_V))
    )[0]
    G = random_normal(9, *out.shape)
    gradients = self_attention_gradients(mechanism("scaled_dot"), x, W_Q, W_K, W_V, G, mask="causal")
    return relative_difference(gradients.x, torch.autograd.grad(out, leaf, G)[0])


def reversed_attention() -> float:
    """R = A ∘ (D − rowsum(A ∘ D)) with D = G Vᵀ. Its rows sum to 0; queries and keys have gradients R K and Rᵀ Q."""
    G, expected, (q, k, v) = autograd_gradients()
    gradients, A = attention_gradients(mechanism("scaled_dot"), q, k, v, G), mechanism("scaled_dot").weights(q, k)
    D = G @ v.mT
    R = A * (D - (A * D).sum(-1, keepdim=True))
    row_sum_error = float(gradients.scores.sum(-1).abs().max())
    return max(
        row_sum_error,
        relative_difference(gradients.scores, R),
        relative_difference(R @ k / D_K**0.5, expected[0]),
        relative_difference(R.mT @ q / D_K**0.5, expected[1]),
    )


def value_mixing() -> float:
    G, expected, (q, k, _) = autograd_gradients()
    return relative_difference(mechanism("scaled_dot").weights(q, k).mT @ G, expected[2])


def permutation_error(with_positions: bool) -> float:
    """Difference between self-attention of a shuffled text and the shuffled output, with or without positions."""
    x, order = random_normal(1, 1, N, 8), torch.tensor([3, 0, 5, 1, 4, 2])
    layer = seeded_layer(8, heads=2)
    position_table = sinusoidal_table(torch.arange(N), 8) * with_positions
    return relative_difference(layer(x[:, order] + position_table), layer(x + position_table)[:, order])


def positions_matter() -> float:
    """0 if the output depends on the order of the text once positions are added, else 1."""
    return float(permutation_error(True) < 1e-3)


def kernel_of_maps() -> float:
    """Scores are inner products of mapped inputs: ⟨x_i W_Q, x_j W_K⟩/√d_k."""
    x, W_Q, W_K = random_normal(1, N, 8), random_normal(2, 8, D_K), random_normal(3, 8, D_K)
    expected = torch.stack([torch.stack([(a @ W_Q) @ (b @ W_K) for b in x]) for a in x]) / D_K**0.5
    return relative_difference(
        mechanism("scaled_dot").score((x @ W_Q)[None, None], (x @ W_K)[None, None])[0, 0], expected
    )


def pseudo_metric() -> float:
    """d(x, y) = √(2 · −score) is 0 on the diagonal, symmetric, and satisfies the triangle inequality."""
    x = random_normal(1, 1, 1, N, D_K)
    distances = (-2 * mechanism("metric").score(x, x)[0, 0]).sqrt()
    triangle_violation = (distances[:, None, :] - (distances[:, :, None] + distances[None])).clamp(min=0).max()
    return max(
        float(distances.diagonal().abs().max()), relative_difference(distances, distances.mT), float(triangle_violation)
    )


def gaussian_kernel() -> float:
    """The weights of metric attention are a Gaussian kernel divided by its sum over the keys."""
    q, k, _ = random_qkv()
    kernel = (-(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1) / (2 * 1.7**2)).exp()
    return relative_difference(mechanism("metric", sigma=1.7).weights(q, k), kernel / kernel.sum(-1, keepdim=True))


def gaussian_is_dot_with_bias() -> float:
    q, k, v = random_qkv()
    expected = (q @ k.mT - k.square().sum(-1)[..., None, :] / 2).softmax(-1) @ v
    return relative_difference(mechanism("metric")(q, k, v), expected)


THEOREMS = (
    Theorem(
        "Theorem 1.1",
        Message("a row times Bᵀ is the row of its dot products with the rows of B"),
        "product_of_rows",
        product_of_rows,
    ),
    Theorem(
        "Theorem 1.2",
        Message("a row times C is the sum of the rows of C weighted by its entries"),
        "mixture_of_rows",
        mixture_of_rows,
    ),
    Theorem(
        "Definition 1",
        Message("softmax: the exponentials of a row divided by their sum"),
        "softmax_formula",
        softmax_formula,
    ),
    Theorem(
        "Definition 2",
        Message("o = Σ_j α_j g(v_j) for any score f, any value map g and different d_q, d_k, d_v"),
        "general_definition",
        general_definition,
    ),
    Theorem(
        "Theorem 2", Message("weights lie between 0 and 1"), "in_unit_interval", make_zoo_measure("in_unit_interval")
    ),
    Theorem(
        "Theorem 2", Message("the weights of a query sum to 1"), "rows_sum_to_one", make_zoo_measure("rows_sum_to_one")
    ),
    Theorem(
        "Definition 3",
        Message("self-attention: queries, keys and values are X W_Q, X W_K and X W_V"),
        "self_attention",
        self_attention,
    ),
    Theorem(
        "Definition 4", Message("scaled dot product: f = q·k/√d_k, g(v) = v"), "scaled_dot_formula", scaled_dot_formula
    ),
    Theorem(
        "Theorem 3.1", Message("q_j Kᵀ/√d_k are the scores of query j"), "query_scores", make_query_measure("scores")
    ),
    Theorem(
        "Theorem 3.2, 3.4",
        Message("row j of softmax(QKᵀ/√d_k) contains the weights of query j"),
        "query_weights",
        make_query_measure("weights"),
    ),
    Theorem(
        "Theorem 3.3, 3.5",
        Message("row j of softmax(QKᵀ/√d_k)V is the weighted sum for query j"),
        "query_outputs",
        make_query_measure("outputs"),
    ),
    Theorem(
        "2.3",
        Message("every named mechanism satisfies all laws that it declares (number of violated laws)"),
        "declared_laws",
        count_broken_laws,
        0.0,
    ),
    Theorem("3.1", Message("the sinusoidal table: sin and cos of p/10000^(2c/d)"), "sine_table", sine_table),
    Theorem(
        "3.2",
        Message("concatenated heads times W_O equal the sum of the heads, each times its own rows of W_O"),
        "multi_head",
        multi_head,
    ),
    Theorem("3.5", Message("a mask is −∞ added to the scores"), "mask_as_minus_infinity", mask_as_minus_infinity),
    Theorem(
        "3.5",
        Message("a masked key has weight exactly 0 and no influence; a fully masked row returns 0"),
        "masked_is_zero",
        make_zoo_measure("masked_is_zero"),
    ),
    Theorem(
        "4.1",
        Message("training costs 6 · tokens · parameters FLOPs plus 12 L N² d for attention"),
        "training_flops",
        training_flops,
    ),
    Theorem(
        "4.1",
        Message("unmasked attention costs more than all other products beyond N = 8d (gated FFN) or 6d (plain)"),
        "crossover",
        crossover,
    ),
    Theorem("4.2", Message("∂L/∂Q, ∂L/∂K and ∂L/∂V in closed form equal autograd"), "closed_gradient", closed_gradient),
    Theorem(
        "4.2",
        Message("∂L/∂X = ∂L/∂Q W_Qᵀ + ∂L/∂K W_Kᵀ + ∂L/∂V W_Vᵀ, summed over heads"),
        "input_gradient",
        input_gradient,
    ),
    Theorem("4.2", Message("∂L/∂V = Aᵀ G"), "value_mixing", value_mixing),
    Theorem(
        "4.2",
        Message("the gradients of Q and K are R K and Rᵀ Q, where rows of R sum to 0 (reversed attention)"),
        "reversed_attention",
        reversed_attention,
    ),
    Theorem(
        "4.3",
        Message("permuting queries permutes the output; permuting key-value pairs does not change it"),
        "permutation",
        make_zoo_measure("permutation"),
    ),
    Theorem(
        "4.3",
        Message("without positions, shuffling the tokens of self-attention shuffles its output"),
        "shuffled_alike",
        lambda: permutation_error(False),
    ),
    Theorem(
        "4.3",
        Message("with positions, shuffled tokens do not give the shuffled output (0 if true, else 1)"),
        "positions_are_felt",
        positions_matter,
        0.0,
    ),
    Theorem(
        "4.4",
        Message("the output of shaped attention is α v_i + β · attention − γ · mean v"),
        "shaped_identity",
        make_mechanism_measure("shaped", "shaped_identity"),
    ),
    Theorem("5.1", Message("scores are inner products of mapped inputs"), "kernel_of_maps", kernel_of_maps),
    Theorem(
        "5.1",
        Message("with one map for queries and keys, scores are a Mercer kernel (positive semi-definite)"),
        "gram_psd",
        make_zoo_measure("gram_psd"),
    ),
    Theorem(
        "5.2",
        Message("metric attention scores by a pseudo-metric: zero diagonal, symmetric, triangle inequality"),
        "pseudo_metric",
        pseudo_metric,
    ),
    Theorem(
        "5.2",
        Message("the weights of metric attention are a Gaussian kernel divided by its sum"),
        "gaussian_kernel",
        gaussian_kernel,
    ),
    Theorem(
        "5.2",
        Message("under softmax, metric attention is a dot product with the bias −|k|²/2σ² on each key"),
        "gaussian_is_dot_with_bias",
        gaussian_is_dot_with_bias,
    ),
    Theorem(
        "5.4",
        Message("with Sinkhorn instead of softmax, columns also sum to 1"),
        "doubly_stochastic",
        make_mechanism_measure("sinkhorn", "doubly_stochastic"),
        1e-6,
    ),
    Theorem(
        "5.4",
        Message("with entmax instead of softmax, keys with low scores have weight exactly 0"),
        "sparse",
        make_zoo_measure("sparse"),
        0.0,
    ),
)

"""Comparison with other implementations on random inputs: torch, entmax, Hugging Face, x-transformers, POT."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import rheoscope as rs
from rheoscope.attention.definition import query_key_positions, reference_attention, repeat_kv_heads
from rheoscope.attention.mask import Causal, Padding, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.entmax import Entmax
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.position import Rotary
from rheoscope.attention.position_bias import ALiBi, Bias, Buckets, alibi_slopes
from rheoscope.attention.score import Gram, SoftCap
from tests.attention.cases import gap, inputs, random, random_booleans, zoo_mechanism

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


# torch


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads_match_torch(causal: bool) -> None:
    q, k, v = inputs(5, 5, h=6, g=2)
    theirs = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    assert (
        gap(
            reference_attention(zoo_mechanism("scaled_dot").with_mask("causal" if causal else None), q, k, v)[0], theirs
        )
        < 1e-12
    )


@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_self_attention_layer_matches_torch(mask: str) -> None:
    """With copied weights, the output and the gradient of the input agree."""
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True).double()
    torch.nn.init.normal_(theirs.in_proj_bias)
    torch.nn.init.normal_(theirs.out_proj.bias)
    ours = rs.nn.MultiHeadAttention(12, heads=3, bias=True).double()
    with torch.no_grad():
        for c, part in enumerate((ours.W_Q, ours.W_K, ours.W_V)):
            part.weight.copy_(theirs.in_proj_weight[12 * c : 12 * c + 12])
            part.bias.copy_(theirs.in_proj_bias[12 * c : 12 * c + 12])
        ours.W_O.load_state_dict(theirs.out_proj.state_dict())
    is_token = random_booleans(1, 2, 5) | (torch.arange(5) == 0)
    mask_arguments = {
        "none": (None, {}),
        "causal": ("causal", {"attn_mask": ~torch.ones(5, 5, dtype=torch.bool).tril()}),
        "padding": (Padding(is_token), {"key_padding_mask": ~is_token}),
    }
    our_mask, options = mask_arguments[mask]
    x, y = (random(2, 2, 5, 12).requires_grad_() for _ in range(2))
    g = random(3, 2, 5, 12)
    out, expected = ours(x, mask=our_mask), theirs(y, y, y, need_weights=False, **options)[0]
    assert gap(out, expected) < 1e-12
    assert gap(torch.autograd.grad(out, x, g)[0], torch.autograd.grad(expected, y, g)[0]) < 1e-12


def test_cross_attention_layer_matches_torch() -> None:
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True, kdim=7, vdim=7, bias=False).double()
    ours = rs.nn.MultiHeadAttention(12, heads=3, context_width=7).double()
    with torch.no_grad():
        for part, weight in (
            (ours.W_Q, theirs.q_proj_weight),
            (ours.W_K, theirs.k_proj_weight),
            (ours.W_V, theirs.v_proj_weight),
        ):
            part.weight.copy_(weight)
        ours.W_O.weight.copy_(theirs.out_proj.weight)
    x, context = random(4, 2, 5, 12), random(5, 2, 8, 7)
    assert gap(ours(x, context=context), theirs(x, context, context, need_weights=False)[0]) < 1e-12


# entmax


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("alpha", [1.25, 1.5, 1.7, 2.0])
def test_entmax_matches_the_entmax_package(alpha: float, scale: float) -> None:
    import entmax

    theirs = {1.5: entmax.entmax15, 2.0: entmax.sparsemax}.get(
        alpha, lambda s, dim: entmax.entmax_bisect(s, alpha, dim, n_iter=80)
    )
    ours, s = (scale * random(6, 2, 3, 4, 9)).requires_grad_(), (scale * random(6, 2, 3, 4, 9)).requires_grad_()
    a, expected = Entmax(alpha)(ours), theirs(s, dim=-1)
    assert gap(a, expected) < 1e-8
    g = random(7, 2, 3, 4, 9)
    r, slope = torch.autograd.grad(a, ours, g)[0], torch.autograd.grad(expected, s, g)[0]
    assert gap(r, slope) < 1e-6
    assert gap(Entmax(alpha).pullback(ours.detach(), a.detach(), g)[0], slope) < 1e-6


# Hugging Face


def test_rotary_matches_llama() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    rope = LlamaRotaryEmbedding(LlamaConfig(hidden_size=32, num_attention_heads=4, rope_theta=5e3))
    q, k, _ = (x.float() for x in inputs(9, 9, d=8, h=4, g=2))
    positions = torch.arange(3, 12)
    theirs = apply_rotary_pos_emb(q, k, *rope(q, positions[None]))
    ours = Rotary(base=5e3)
    assert gap(ours.encode(q, positions), theirs[0]) < 1e-5
    assert gap(ours.encode(k, positions), theirs[1]) < 1e-5


def test_rotary_matches_gptj() -> None:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    q = random(8, 2, 4, 9, 8).float()
    positions = torch.arange(3, 12)
    sin, cos = create_sinusoidal_positions(20, 6)[positions].repeat(2, 1, 1).chunk(2, -1)
    rotated = apply_rotary_pos_emb(q.transpose(1, 2)[..., :6], sin, cos).transpose(1, 2)
    theirs = torch.cat([rotated, q[..., 6:]], -1)
    assert gap(Rotary(width=6, pairs="neighbours").encode(q, positions), theirs) < 1e-5


def test_partial_rotary_matches_neox() -> None:
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding, apply_rotary_pos_emb

    config = GPTNeoXConfig(hidden_size=32, num_attention_heads=4, rotary_pct=0.5)
    q = random(8, 2, 4, 9, 8).float()
    positions = torch.arange(9)
    theirs, _ = apply_rotary_pos_emb(q, q, *GPTNeoXRotaryEmbedding(config)(q, positions[None]))
    width = int(8 * config.rope_parameters["partial_rotary_factor"])
    assert width == 4
    assert gap(Rotary(width=width).encode(q, positions), theirs) < 1e-5


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12])
def test_alibi_matches_bloom(heads: int) -> None:
    """Bloom adds slope · j, which differs only by a constant per row, so causal attention is the same."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(2, 7), heads, torch.float32).reshape(2, heads, 1, 7)
    i, j = query_key_positions(7, 7)
    ours = ALiBi(alibi_slopes(heads)).bias(i, j)
    past = (j <= i[:, None]).expand(2, heads, 7, 7)
    relative_bias = theirs - theirs[..., 0, :, None]
    assert gap(ours.expand(2, -1, -1, -1)[past], relative_bias.expand(2, heads, 7, 7)[past]) < 1e-6
    q, k, v = (x.float() for x in inputs(7, 7, h=heads, g=1))
    bloom = scaled_dot_product_attention(
        q,
        k.expand(-1, heads, -1, -1),
        v.expand(-1, heads, -1, -1),
        attn_mask=theirs.masked_fill(~past, -torch.inf),
    )
    assert gap(replace(Mechanism(), position=ALiBi(alibi_slopes(heads)))(q, k, v, mask="causal"), bloom) < 1e-5


@pytest.mark.parametrize("heads", [1, 4, 6, 8, 12])
def test_alibi_matches_mpt(heads: int) -> None:
    """MPT stores the last row; for 6 heads it uses every other slope of 8, the interleaving of the paper."""
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    theirs = build_mpt_alibi_tensor(heads, 7)
    ours = ALiBi(alibi_slopes(heads)).bias(*query_key_positions(1, 7))
    assert gap(ours, theirs) < 1e-6


def t5_attention(bidirectional: bool, buckets: int, distance: int) -> Any:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(
        d_model=8,
        d_kv=4,
        num_heads=4,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=distance,
        is_decoder=not bidirectional,
    )
    return T5Attention(config, has_relative_attention_bias=True, layer_idx=0)


@pytest.mark.parametrize(
    ("buckets", "distance"), [(32, 128), (8, 20), (16, 64), (10, 1000), (64, 256), (12, 7), (72, 100)]
)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_buckets_match_t5(bidirectional: bool, buckets: int, distance: int) -> None:
    theirs = t5_attention(bidirectional, buckets, distance)
    offset = torch.arange(-2100, 2101)[None]
    ours = Buckets(theirs.relative_attention_bias.weight.detach(), distance, bidirectional)
    expected = theirs._relative_position_bucket(offset, bidirectional, buckets, distance)
    assert offset[ours.bucket_index(offset) != expected].tolist() == []
    with torch.no_grad():
        assert torch.equal(ours.bias(*query_key_positions(40, 40)), theirs.compute_bias(40, 40)[0])
        assert torch.equal(ours.bias(*query_key_positions(3, 40)), theirs.compute_bias(3, 40, past_seen_tokens=37)[0])


def test_attention_layer_matches_t5() -> None:
    """A T5 layer has no scale, a bucketed bias and its own projections."""
    theirs = t5_attention(True, 8, 20).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.normal_()
    x = random(9, 2, 6, 8).float()
    position = Buckets(theirs.relative_attention_bias.weight.detach(), 20)
    ours = rs.nn.MultiHeadAttention(8, heads=4, head_width=4, mechanism=Mechanism(Gram(scale=1.0), position=position))
    with torch.no_grad():
        for part, linear in ((ours.W_Q, theirs.q), (ours.W_K, theirs.k), (ours.W_V, theirs.v), (ours.W_O, theirs.o)):
            part.weight.copy_(linear.weight)
        assert gap(ours(x), theirs(x)[0]) < 1e-4


def test_sinks_match_gpt_oss() -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    q, k, v = inputs(6, 6)
    module = SimpleNamespace(num_key_value_groups=2, sinks=random(10, 4), training=False)
    mask = torch.zeros(6, 6).double().masked_fill(~(Causal() & Window(3))(*query_key_positions(6, 6)), -torch.inf)
    out, weights = eager_attention_forward(module, q, k, v, mask, scaling=6**-0.5)
    ours = replace(zoo_mechanism("softmax_sink"), normaliser=Sink(module.sinks)).with_mask(Causal() & Window(3))
    assert gap(ours(q, k, v), out.transpose(1, 2)) < 1e-12
    assert gap(ours.weights(q, k), weights) < 1e-12


def test_soft_cap_matches_gemma2() -> None:
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    q, k, v = (3 * x.float() for x in inputs(6, 6))
    module = SimpleNamespace(num_key_value_groups=2, training=False)
    out, _ = eager_attention_forward(module, q, k, v, None, scaling=0.3, softcap=2.0)
    assert gap(Mechanism(SoftCap(Gram(scale=0.3), 2.0))(q, k, v), out.transpose(1, 2)) < 1e-5


def test_cosine_matches_swin() -> None:
    """Swin-v2 multiplies cosines by a learned scale (here e^2.5, below its limit of 100) and adds a bias."""
    from transformers.models.swinv2.modeling_swinv2 import Swinv2Config, Swinv2SelfAttention

    theirs = Swinv2SelfAttention(Swinv2Config(), dim=12, num_heads=4, window_size=2).eval()
    with torch.no_grad():
        theirs.logit_scale.fill_(2.5)
        x = random(11, 2, 4, 12).float()
        expected = theirs(x)[0]
        table = theirs.continuous_position_bias_mlp(theirs.relative_coords_table).view(-1, 4)
        bias = 16 * torch.sigmoid(table[theirs.relative_position_index.view(-1)].view(4, 4, 4).permute(2, 0, 1))
        q, k, v = (part(x).unflatten(-1, (4, 3)).transpose(1, 2) for part in (theirs.query, theirs.key, theirs.value))
    ours = replace(rs.mechanism("cosine", tau=float(torch.tensor(2.5).exp())), position=Bias(bias))
    assert gap(ours(q, k, v).transpose(1, 2).flatten(2), expected) < 1e-5


# POT


def test_sinkhorn_is_entropic_optimal_transport() -> None:
    """The limit is N times the plan between uniform masses at cost -s and regularisation 1."""
    import ot

    s = random(12, 1, 1, 6, 6)
    uniform = np.full(6, 1 / 6)
    plan = ot.sinkhorn(uniform, uniform, -s[0, 0].numpy(), reg=1.0, stopThr=1e-13, numItermax=10_000)
    assert gap(Sinkhorn(200)(s)[0, 0], torch.from_numpy(6 * plan)) < 1e-9
    sharp_plan = ot.bregman.sinkhorn_log(
        uniform, uniform, -4 * s[0, 0].numpy(), reg=1.0, stopThr=1e-13, numItermax=10_000
    )
    assert gap(Sinkhorn(2000)(4 * s)[0, 0], torch.from_numpy(6 * sharp_plan)) < 1e-8


def test_sinkhorn_attention_averages_values_with_the_transport_plan() -> None:
    import ot

    q, k, v = inputs(5, 5)
    ours = rs.mechanism("sinkhorn", rounds=300)(q, k, v)
    uniform = np.full(5, 1 / 5)
    for b, h in ((0, 0), (1, 3)):
        cost = -(q[b, h] @ repeat_kv_heads(k, 4)[b, h].T / 6**0.5).numpy()
        plan = torch.from_numpy(5 * ot.sinkhorn(uniform, uniform, cost, reg=1.0, stopThr=1e-13, numItermax=10_000))
        assert gap(ours[b, h], plan @ repeat_kv_heads(v, 4)[b, h]) < 1e-9


# Nadaraya–Watson regression with scikit-learn's kernel formulas (rbf, Euclidean Laplacian, polynomial)


@pytest.mark.parametrize("name", ["kernel_rbf", "kernel_laplace", "kernel_polynomial", "metric"])
def test_kernel_mechanisms_are_kernel_regression(name: str) -> None:
    from scipy.spatial.distance import cdist

    q, k, v = (x[0, 0].numpy() for x in inputs(4, 7, h=1, g=1, b=1))
    kappa = {
        "kernel_rbf": np.exp(-0.3 * cdist(q, k, "sqeuclidean")),
        "kernel_laplace": np.exp(-0.3 * cdist(q, k)),
        "kernel_polynomial": (0.3 * q @ k.T + 0.2) ** 4,
        "metric": np.exp(-cdist(q, k, "sqeuclidean") / (2 * 0.8**2)),
    }[name]
    options: dict[str, Any] = {
        "kernel_polynomial": {"degree": 4, "scale": 0.3, "offset": 0.2},
        "metric": {"sigma": 0.8},
    }.get(name, {"gamma": 0.3})
    expected = torch.from_numpy(kappa @ v / kappa.sum(1, keepdims=True))
    assert gap(rs.mechanism(name, **options)(*inputs(4, 7, h=1, g=1, b=1))[0, 0], expected) < 1e-12


# x-transformers


@pytest.mark.parametrize("variant", ["plain", "causal", "cosine"])
def test_attention_matches_x_transformers(variant: str) -> None:
    """`Attend`, the module with the most options, on the same q, k, v."""
    from x_transformers.attend import Attend

    q, k, v = (x.float() for x in inputs(6, 6, h=4, g=4))
    out, _ = Attend(causal=variant == "causal", scale=10.0 if variant == "cosine" else None)(
        *((torch.nn.functional.normalize(x, dim=-1) for x in (q, k)) if variant == "cosine" else (q, k)), v
    )
    ours = rs.mechanism("cosine", tau=10.0) if variant == "cosine" else rs.mechanism("scaled_dot")
    assert gap(ours(q, k, v, mask="causal" if variant == "causal" else None), out) < 1e-5

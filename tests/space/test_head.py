"""One layer of heads: norms and their folds, rotations, M and F with and without gains."""

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from rheoscope.attention.gradient import attention_gradients
from rheoscope.attention.mask import Causal
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.position import Rotary
from rheoscope.attention.score import Gram
from rheoscope.space.head import Head, Heads, Relevance
from rheoscope.space.model_parts import ModelRotary, Norm

D, K, H, G, N = 6, 4, 4, 2, 7


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


def assert_close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    assert a.shape == b.shape
    assert float((a - b).abs().max()) <= tolerance


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Neighbouring pairs rotated at two frequencies."""
    angle = positions[:, None] * torch.tensor([1.0, 0.1], dtype=x.dtype)
    cos, sin = angle.cos().repeat_interleave(2, -1), angle.sin().repeat_interleave(2, -1)
    return x * cos + torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2) * sin


def layer(position: ModelRotary | None = None, norm: Norm = Norm(), **fields: object) -> Heads:
    W_Q, W_K, W_V, W_O = random(0, H, D, K), random(1, G, D, K), random(2, G, D, 3), random(3, H, 3, D)
    b_Q, b_K, b_V = random(4, H, K), random(5, G, K), random(6, G, 3)

    def project(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u = u[:, None]
        return u @ W_Q + b_Q[:, None], u @ W_K + b_K[:, None], u @ W_V + b_V[:, None]

    mechanism = Mechanism(Gram(scale=0.3), Causal())
    mechanism = mechanism if position is None else replace(mechanism, position=position)
    return Heads(
        W_Q,
        W_K,
        W_V,
        W_O,
        0.3,
        mechanism,
        project,
        b_Q,
        b_K,
        b_V,
        b_O=random(7, D),
        norm=norm,
        **fields,  # type: ignore[arg-type]
    )


def layer_norm(centred: bool) -> Norm:
    gain, bias, eps = random(8, D), random(9, D), 1e-3

    def apply(x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if centred else x
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain + bias

    return Norm(apply, gain, bias, eps, centred)


# Norms


@pytest.mark.parametrize("centred", [True, False])
def test_norm_equals_x_hat_times_gain_plus_bias(centred: bool) -> None:
    norm, x, W = layer_norm(centred), 5 * random(10, N, D) + 2, random(11, H, D, K)
    assert_close(norm.normalise(x) * norm.gain + norm.bias, norm.apply(x))
    assert_close(norm.normalise(x) @ norm.fold(W) + (norm.bias @ W)[:, None], norm.apply(x) @ W)


def test_without_a_norm_x_hat_is_the_token() -> None:
    x, W = random(0, N, D), random(1, D, K)
    assert torch.equal(Norm().normalise(x), x)
    assert torch.equal(Norm().apply(x), x)
    assert torch.equal(Norm().fold(W), W)


def test_folding_centres_under_layer_norm_only() -> None:
    W = random(1, D, K)
    assert_close(layer_norm(True).fold(W).sum(-2), torch.zeros(K, dtype=W.dtype))
    assert_close(layer_norm(False).fold(W), layer_norm(False).gain[:, None] * W)


# Rotations


def test_rotation_depends_on_the_offset_only() -> None:
    """q R(i) (k R(j))^T = q R(i - j) k^T, both signs."""
    position, q, k = ModelRotary(rotate), random(0, 9, K), random(1, 9, K)
    scores = (
        position.encode(q[None, None], torch.arange(9))[0, 0] @ position.encode(k[None, None], torch.arange(9))[0, 0].mT
    )
    for i in range(9):
        for j in range(9):
            assert_close(q[i] @ position.rotation_matrix(i - j, K, q) @ k[j], scores[i, j], 1e-12)
    assert_close(position.rotation_matrix(3, K, q), position.rotation_matrix(-3, K, q).mT)
    assert float((position.rotation_matrix(3, K, q) - position.rotation_matrix(-3, K, q)).abs().max()) > 0.1
    assert_close(position.rotation_matrix(0, K, q), torch.eye(K, dtype=q.dtype))


# M and F


def test_M_and_F_equal_their_formulas() -> None:
    norm = layer_norm(True)
    block = layer(ModelRotary(rotate), norm)
    C = torch.eye(D, dtype=torch.float64) - 1 / D
    D_g = norm.gain.diag()
    for head in range(H):
        for offset in (-4, 0, 1, 9):
            R = ModelRotary(rotate).rotation_matrix(offset, K, norm.gain)
            expected = C @ D_g @ block.W_Q[head] @ R @ block.W_K[head // 2].mT @ D_g @ C * 0.3
            assert_close(block.M()(offset).dense()[head], expected)
            assert_close(block.M()[head](offset).dense(), expected)
            raw = block.W_Q[head] @ R @ block.W_K[head // 2].mT * 0.3
            assert_close(block.M(raw=True)(offset).dense()[head], raw)
        assert_close(block.F().dense()[head], C @ D_g @ block.W_V[head // 2] @ block.W_O[head])
        assert_close(block.F(raw=True).dense()[head], block.W_V[head // 2] @ block.W_O[head])


def test_without_rotation_M_is_equal_at_every_offset() -> None:
    M = layer().M()
    assert_close(M(5).dense(), M.dense())
    assert_close(M(-5).dense(), M.dense())
    assert_close(M.symmetry_at(5), M.symmetry())


def test_M_includes_the_factor_of_a_rotation() -> None:
    """YaRN multiplies cos and sin by a factor: M at offset 0 includes its square."""
    block = layer(ModelRotary(lambda x, positions: 1.5 * rotate(x, positions)))
    assert_close(block.M().dense(), 2.25 * layer().M().dense())
    assert_close(block.M()(0).dense(), block.M().dense())
    assert_close(block.M()(4).dense(), 2.25 * layer(ModelRotary(rotate)).M()(4).dense())


def test_M_includes_qk_norm_gains_and_F_the_gain_after_attention() -> None:
    gains, output_gain = [random(seed, K) for seed in (20, 21)], random(22, D)
    block = layer(
        q_norm=Norm(gain=gains[0], eps=1e-6),
        k_norm=Norm(gain=gains[1], eps=1e-6),
        output_norm=Norm(gain=output_gain, eps=1e-6),
    )
    for head in range(H):
        assert_close(block.M().dense()[head], block.W_Q[head] * gains[0] @ (block.W_K[head // 2] * gains[1]).mT * 0.3)
        assert_close(block.F().dense()[head], block.W_V[head // 2] @ block.W_O[head] * output_gain)
        assert_close(block.M(raw=True).dense()[head], block.W_Q[head] @ block.W_K[head // 2].mT * 0.3)
        assert_close(block.F(raw=True).dense()[head], block.W_V[head // 2] @ block.W_O[head])


def test_symmetry_at_an_offset_compares_both_directions() -> None:
    block = layer(ModelRotary(rotate))
    tied = replace(block, W_Q=block.W_K.repeat_interleave(2, 0))
    for offset in range(-9, 10):
        assert_close(tied.M().symmetry_at(offset), torch.ones(H, dtype=torch.float64))
        forward, backward = block.M()(offset).dense(), block.M()(-offset).dense()
        expected = (forward * backward.mT).sum((-1, -2)) / (forward.norm(dim=(-1, -2)) * backward.norm(dim=(-1, -2)))
        assert_close(block.M().symmetry_at(offset), expected)
    assert float(block.M().symmetry_at(3).abs().max()) < 0.9
    zero = Relevance(torch.zeros(2, D, K), torch.zeros(2, K, D))
    assert zero.symmetry_at(3).tolist() == [0, 0]


def test_heads_use_the_keys_of_their_group() -> None:
    block = layer()
    assert [block.kv_head(head) for head in range(H)] == [0, 0, 1, 1]
    assert block.n_heads == H


# Recomputation


@pytest.mark.parametrize("position", [None, ModelRotary(rotate)])
def test_scores_weights_and_displacements_equal_their_formulas(position: ModelRotary | None) -> None:
    norm = layer_norm(True)
    block, x = layer(position, norm), random(30, N, D)
    u, positions = norm.apply(x), torch.arange(N)
    causal = torch.ones(N, N, dtype=torch.bool).tril()
    displacements = []
    for head in range(H):
        q = (u @ block.W_Q[head] + block.b_Q[head])[None, None]
        k = (u @ block.W_K[head // 2] + block.b_K[head // 2])[None, None]
        q, k = (q, k) if position is None else (rotate(q, positions), rotate(k, positions))
        s = (q @ k.mT * 0.3)[0, 0]
        alpha = s.masked_fill(~causal, -torch.inf).softmax(-1)
        assert_close(block.scores(x, head), s)
        assert_close(block.weights(x, head), alpha)
        displacements.append(alpha @ (u @ block.W_V[head // 2] + block.b_V[head // 2]) @ block.W_O[head])
    assert_close(block.displacements(x), torch.stack(displacements))
    assert_close(block.bias(x), block.b_O.expand(N, D))


def test_norm_after_attention_scales_every_displacement() -> None:
    gain = random(22, D)
    plain, x = layer(), random(30, N, D)
    block = replace(plain, output_norm=Norm(gain=gain, eps=1e-3))
    total = plain.displacements(x).sum(0) + plain.b_O
    expected = total / (total.square().mean(-1, keepdim=True) + 1e-3).sqrt() * gain
    assert_close(block.displacements(x).sum(0) + block.bias(x), expected)


def test_without_output_bias_only_heads_displace_tokens() -> None:
    block, x = replace(layer(), b_O=None), random(30, N, D)
    assert torch.equal(block.bias(x), torch.zeros_like(x))


def test_each_head_has_its_own_sink() -> None:
    sinks, x = torch.tensor([-50.0, 0.0, 2.0, 50.0], dtype=torch.float64), random(30, N, D)
    plain = layer()
    block = replace(plain, mechanism=replace(plain.mechanism, normaliser=Sink(sinks)))
    assert_close(block.weights(x, 0), plain.weights(x, 0))
    assert float(block.weights(x, 3).sum()) < 1e-6
    for head in (1, 2):
        scores = block.scores(x, head).masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(), -torch.inf)
        with_sink = torch.cat([scores, sinks[head].expand(N, 1)], -1).softmax(-1)[:, :-1]
        assert_close(block.weights(x, head), with_sink)


def test_half_precision_scores_are_float32() -> None:
    block = layer()
    half = replace(block, project=lambda u: tuple(part.bfloat16() for part in block.project(u.double())))
    x = random(30, N, D).bfloat16()
    assert half.scores(x, 0).dtype is torch.float32
    assert half.weights(x, 0).dtype is torch.float32


def test_head_has_the_names_of_the_circuits_literature() -> None:
    block = layer()
    head = Head(0, 1, block)
    assert head.W_QK is head.M
    assert head.W_OV is head.F


def test_gradients_are_rotated_back() -> None:
    """A regression: the closed form under RoPE once returned gradients without the inverse rotation."""
    rotary = Rotary(base=50.0)
    ours, models = (Mechanism(position=position, mask=Causal()) for position in (rotary, ModelRotary(rotary.encode)))
    q, k, v, g = (random(seed, 1, 2, 5, K) for seed in range(4))
    expected, result = (attention_gradients(mechanism, q, k, v, g) for mechanism in (ours, models))
    assert_close(result.q, expected.q)
    assert_close(result.k, expected.k)

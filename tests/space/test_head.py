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
from rheoscope.space.head import Head, Heads, Norm, Relevance, Turned

D, K, H, G, N = 6, 4, 4, 2, 7


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


def near(a: Tensor, b: Tensor, within: float = 1e-12) -> None:
    assert a.shape == b.shape
    assert float((a - b).abs().max()) <= within


def turn(x: Tensor, at: Tensor) -> Tensor:
    """Neighbouring pairs turned by two speeds."""
    angle = at[:, None] * torch.tensor([1.0, 0.1], dtype=x.dtype)
    cos, sin = angle.cos().repeat_interleave(2, -1), angle.sin().repeat_interleave(2, -1)
    return x * cos + torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2) * sin


def layer(position: Turned | None = None, norm: Norm = Norm(), **more: object) -> Heads:
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
        **more,  # type: ignore[arg-type]
    )


def layer_norm(centred: bool) -> Norm:
    gain, bias, eps = random(8, D), random(9, D), 1e-3

    def own(x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if centred else x
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain + bias

    return Norm(own, gain, bias, eps, centred)


# Norms


@pytest.mark.parametrize("centred", [True, False])
def test_a_norm_is_hat_gain_and_bias(centred: bool) -> None:
    norm, x, W = layer_norm(centred), 5 * random(10, N, D) + 2, random(11, H, D, K)
    near(norm.hat(x) * norm.gain + norm.bias, norm.own(x))
    near(norm.hat(x) @ norm.fold(W) + (norm.bias @ W)[:, None], norm.own(x) @ W)


def test_no_norm_is_the_token_itself() -> None:
    x, W = random(0, N, D), random(1, D, K)
    assert torch.equal(Norm().hat(x), x)
    assert torch.equal(Norm().own(x), x)
    assert torch.equal(Norm().fold(W), W)


def test_folding_centres_what_layer_norm_centres() -> None:
    W = random(1, D, K)
    near(layer_norm(True).fold(W).sum(-2), torch.zeros(K, dtype=W.dtype))
    near(layer_norm(False).fold(W), layer_norm(False).gain[:, None] * W)


# Rotations


def test_the_rotation_of_an_offset_is_that_of_the_difference() -> None:
    """q R(i) (k R(j))^T = q R(i - j) k^T, both signs."""
    position, q, k = Turned(turn), random(0, 9, K), random(1, 9, K)
    placed = (
        position.place(q[None, None], torch.arange(9))[0, 0] @ position.place(k[None, None], torch.arange(9))[0, 0].mT
    )
    for i in range(9):
        for j in range(9):
            near(q[i] @ position.rotation(i - j, K, q) @ k[j], placed[i, j], 1e-12)
    near(position.rotation(3, K, q), position.rotation(-3, K, q).mT)
    assert float((position.rotation(3, K, q) - position.rotation(-3, K, q)).abs().max()) > 0.1
    near(position.rotation(0, K, q), torch.eye(K, dtype=q.dtype))


# M and F


def test_M_is_the_formula() -> None:
    norm = layer_norm(True)
    block = layer(Turned(turn), norm)
    C = torch.eye(D, dtype=torch.float64) - 1 / D
    D_g = norm.gain.diag()
    for head in range(H):
        for offset in (-4, 0, 1, 9):
            R = Turned(turn).rotation(offset, K, norm.gain)
            wanted = C @ D_g @ block.W_Q[head] @ R @ block.W_K[head // 2].mT @ D_g @ C * 0.3
            near(block.M()(offset).dense()[head], wanted)
            near(block.M()[head](offset).dense(), wanted)
            bare = block.W_Q[head] @ R @ block.W_K[head // 2].mT * 0.3
            near(block.M(raw=True)(offset).dense()[head], bare)
        near(block.F().dense()[head], C @ D_g @ block.W_V[head // 2] @ block.W_O[head])
        near(block.F(raw=True).dense()[head], block.W_V[head // 2] @ block.W_O[head])


def test_without_rotation_every_offset_is_the_same() -> None:
    M = layer().M()
    near(M(5).dense(), M.dense())
    near(M(-5).dense(), M.dense())
    near(M.symmetry_at(5), M.symmetry())


def test_a_rotation_with_a_factor_is_part_of_M() -> None:
    """YaRN multiplies cos and sin by a factor: M at offset 0 carries its square."""
    block = layer(Turned(lambda x, at: 1.5 * turn(x, at)))
    near(block.M().dense(), 2.25 * layer().M().dense())
    near(block.M()(0).dense(), block.M().dense())
    near(block.M()(4).dense(), 2.25 * layer(Turned(turn)).M()(4).dense())


def test_gains_of_qk_norms_are_inside_M_and_of_a_norm_after_attention_inside_F() -> None:
    gains, after = [random(seed, K) for seed in (20, 21)], random(22, D)
    block = layer(
        q_norm=Norm(gain=gains[0], eps=1e-6), k_norm=Norm(gain=gains[1], eps=1e-6), after=Norm(gain=after, eps=1e-6)
    )
    for head in range(H):
        near(block.M().dense()[head], block.W_Q[head] * gains[0] @ (block.W_K[head // 2] * gains[1]).mT * 0.3)
        near(block.F().dense()[head], block.W_V[head // 2] @ block.W_O[head] * after)
        near(block.M(raw=True).dense()[head], block.W_Q[head] @ block.W_K[head // 2].mT * 0.3)
        near(block.F(raw=True).dense()[head], block.W_V[head // 2] @ block.W_O[head])


def test_symmetry_at_an_offset_compares_both_directions() -> None:
    block = layer(Turned(turn))
    tied = replace(block, W_Q=block.W_K.repeat_interleave(2, 0))
    for offset in range(-9, 10):
        near(tied.M().symmetry_at(offset), torch.ones(H, dtype=torch.float64))
        forth, back = block.M()(offset).dense(), block.M()(-offset).dense()
        wanted = (forth * back.mT).sum((-1, -2)) / (forth.norm(dim=(-1, -2)) * back.norm(dim=(-1, -2)))
        near(block.M().symmetry_at(offset), wanted)
    assert float(block.M().symmetry_at(3).abs().max()) < 0.9
    zero = Relevance(torch.zeros(2, D, K), torch.zeros(2, K, D))
    assert zero.symmetry_at(3).tolist() == [0, 0]


def test_heads_read_the_keys_of_their_group() -> None:
    block = layer()
    assert [block.group(head) for head in range(H)] == [0, 0, 1, 1]
    assert block.count == H


# Recomputation


@pytest.mark.parametrize("position", [None, Turned(turn)])
def test_scores_weights_and_displacements_are_the_formula(position: Turned | None) -> None:
    norm = layer_norm(True)
    block, x = layer(position, norm), random(30, N, D)
    u, at = norm.own(x), torch.arange(N)
    causal = torch.ones(N, N, dtype=torch.bool).tril()
    moved = []
    for head in range(H):
        q = (u @ block.W_Q[head] + block.b_Q[head])[None, None]
        k = (u @ block.W_K[head // 2] + block.b_K[head // 2])[None, None]
        q, k = (q, k) if position is None else (turn(q, at), turn(k, at))
        s = (q @ k.mT * 0.3)[0, 0]
        alpha = s.masked_fill(~causal, -torch.inf).softmax(-1)
        near(block.scores(x, head), s)
        near(block.weights(x, head), alpha)
        moved.append(alpha @ (u @ block.W_V[head // 2] + block.b_V[head // 2]) @ block.W_O[head])
    near(block.displacements(x), torch.stack(moved))
    near(block.bias(x), block.b_O.expand(N, D))


def test_a_norm_after_attention_scales_every_displacement() -> None:
    gain = random(22, D)
    plain, x = layer(), random(30, N, D)
    block = replace(plain, after=Norm(gain=gain, eps=1e-3))
    written = plain.displacements(x).sum(0) + plain.b_O
    normed = written / (written.square().mean(-1, keepdim=True) + 1e-3).sqrt() * gain
    near(block.displacements(x).sum(0) + block.bias(x), normed)


def test_without_an_output_bias_nothing_is_added_beside_the_heads() -> None:
    block, x = replace(layer(), b_O=None), random(30, N, D)
    assert torch.equal(block.bias(x), torch.zeros_like(x))


def test_a_sink_of_every_head_belongs_to_its_head() -> None:
    sinks, x = torch.tensor([-50.0, 0.0, 2.0, 50.0], dtype=torch.float64), random(30, N, D)
    plain = layer()
    block = replace(plain, mechanism=replace(plain.mechanism, normaliser=Sink(sinks)))
    near(block.weights(x, 0), plain.weights(x, 0))
    assert float(block.weights(x, 3).sum()) < 1e-6
    for head in (1, 2):
        scores = block.scores(x, head).masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(), -torch.inf)
        with_sink = torch.cat([scores, sinks[head].expand(N, 1)], -1).softmax(-1)[:, :-1]
        near(block.weights(x, head), with_sink)


def test_half_precision_is_scored_in_float32() -> None:
    block = layer()
    half = replace(block, project=lambda u: tuple(part.bfloat16() for part in block.project(u.double())))
    x = random(30, N, D).bfloat16()
    assert half.scores(x, 0).dtype is torch.float32
    assert half.weights(x, 0).dtype is torch.float32


def test_a_head_goes_by_the_names_of_the_circuits_literature() -> None:
    block = layer()
    head = Head(0, 1, block)
    assert head.W_QK is head.M
    assert head.W_OV is head.F


def test_a_turn_gives_the_gradient_back_turned() -> None:
    """Where placing tokens was taken for nothing, the closed form of a model under RoPE gave gradients unturned."""
    rotary = Rotary(base=50.0)
    own, ours = (Mechanism(position=at, mask=Causal()) for at in (rotary, Turned(rotary.place)))
    q, k, v, g = (random(seed, 1, 2, 5, K) for seed in range(4))
    expected, found = (attention_gradients(one, q, k, v, g) for one in (own, ours))
    near(found.q, expected.q)
    near(found.k, expected.k)

"""A norm between the outputs of heads and W_O, compared with the norm itself on the rows that the network forms."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from rheoscope.attention.mask import Padding
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.score import Gram
from rheoscope.space.head import Heads
from rheoscope.space.heads_norm import HeadsNorm

B, N, D, H, E = 2, 7, 10, 4, 3


def assert_close(a: Tensor, b: Tensor) -> None:
    assert float((a - b).abs().max()) < 1e-12


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


GAIN, BIAS, MATRIX = random(1, H * E), random(2, H * E), random(3, H * E, D)
SIGNED_GAIN, SIGNED_MATRIX = random(4, 2 * E), random(5, 2 * E, D)
SIGNS = torch.tensor([1.0, 1.0, -0.3, -0.3], dtype=torch.float64)


def all_heads(subtracts_mean: bool = False) -> HeadsNorm:
    """One length for the concatenated heads (BitNet, Kosmos-2)."""
    index = torch.arange(H * E).view(H, E)
    return HeadsNorm(index, torch.ones(H, E).double(), H * E, GAIN, BIAS, 1e-2, subtracts_mean)


def signed_pairs() -> HeadsNorm:
    """Heads 2 and 3 are subtracted from heads 0 and 1, and every difference has its own length (DiffLlama)."""
    index = torch.arange(2 * E).view(2, E).repeat(2, 1)
    return HeadsNorm(index, SIGNS[:, None].expand(H, E), E, SIGNED_GAIN, torch.zeros(2 * E).double(), 1e-2)


def heads_with(norm: HeadsNorm, W: Tensor) -> Heads:
    W_Q, W_K, W_V = (random(seed, H, D, E) for seed in (10, 11, 12))
    b_V = random(13, H, E)

    def project(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (torch.einsum("bnd,hdk->bhnk", u, M) for M in (W_Q, W_K, W_V))
        return q, k, v + b_V[:, None]

    mechanism = Mechanism(Gram(scale=0.4))
    b_O = norm.bias @ W
    return Heads(W_Q, W_K, W_V, norm.fold(W), 0.4, mechanism, project, b_V=b_V, b_O=b_O, heads_norm=norm)


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-2).sqrt()


def rows(name: str, outputs: Tensor) -> Tensor:
    """What the output matrix reads, from the outputs (b, h, n, e) of heads."""
    if name == "signed":
        z = torch.cat([outputs[:, p] - 0.3 * outputs[:, p + 2] for p in (0, 1)], -1)
        return rms(z.unflatten(-1, (2, E))).flatten(-2) * SIGNED_GAIN
    z = outputs.transpose(1, 2).flatten(-2)
    return layer_norm(z, (H * E,), GAIN, BIAS, 1e-2) if name == "layer" else rms(z) * GAIN + BIAS


HEADS = {
    "rms": (heads_with(all_heads(), MATRIX), MATRIX),
    "layer": (heads_with(all_heads(True), MATRIX), MATRIX),
    "signed": (heads_with(signed_pairs(), SIGNED_MATRIX), SIGNED_MATRIX),
}
every = pytest.mark.parametrize("name", HEADS)


@every
def test_the_update_is_the_norm_of_the_rows_times_the_output_matrix(name: str) -> None:
    (heads, W), x = HEADS[name], random(20, B, N, D)
    expected = rows(name, heads.outputs(x)) @ W
    assert_close(heads.attention_update(x), expected)
    assert_close(heads.heads_norm.apply(heads.outputs(x)), rows(name, heads.outputs(x)))
    assert_close(heads.displacements(x[0]).sum(0) + heads.bias(x[0]), expected[0])


@every
def test_padding_changes_no_length(name: str) -> None:
    heads, x = HEADS[name][0], random(20, B, N, D)
    is_token = torch.arange(N).expand(B, -1) < 5
    short = x[:, :5]
    mask = Padding(is_token)
    assert_close(heads.attention_update(x, mask)[:, :5], heads.attention_update(short))
    padded, plain = heads.factored_displacements(x, mask), heads.factored_displacements(short)
    assert_close(padded.total()[:, :5], plain.total())
    assert_close(plain.total(), heads.attention_update(short))


@every
def test_every_displacement_is_the_sum_over_tokens_through_F_times_the_scale_of_its_group(name: str) -> None:
    heads, x = replace(HEADS[name][0], b_V=None), random(21, N, D)
    plain = replace(
        heads, project=lambda u: tuple(torch.einsum("bnd,hdk->bhnk", u, M) for M in (heads.W_Q, heads.W_K, heads.W_V))
    )
    scale = heads.heads_norm.scale(plain.outputs(x))
    expected = scale * (plain.all_weights(x) @ plain.F().apply(x))
    assert_close(plain.displacements(x), expected)
    assert_close(plain.factored_displacements(x).displacements(), expected)


def test_columns_beyond_those_of_the_norm_are_scaled_and_do_not_count() -> None:
    norm, outputs = signed_pairs(), random(22, H, N, E)
    wide = torch.cat([outputs, random(23, H, N, 2)], -1)
    assert torch.equal(norm.scale(wide), norm.scale(outputs))

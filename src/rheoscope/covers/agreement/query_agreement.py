"""Rank correlations of single queries with their keys, for many texts at once.

Tokens keep their positions. Padding and massive tokens are not usable as keys and have no rank.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from rheoscope.attention.definition import repeat_kv_heads
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.layer_inputs import BatchLayerInput
from rheoscope.space.device_transfer import to_device
from rheoscope.space.head import project_normalised
from rheoscope.space.masked_means import centre_points
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.statistics.nulls import sample_rows
from rheoscope.statistics.ranks import centred_ranks

RotationPair = tuple[Float[Tensor, "c d d"], Float[Tensor, "c d d"]]
"""Random rotations of E for queries and for keys."""
HeadVectors = Float[Tensor, "c b h n k"]


@dataclass(frozen=True, eq=False)
class QueryBlock:
    """Some queries of every text by position. `is_query` is false where a short text has fewer queries."""

    positions: Int[Tensor, "b m"]
    is_query: Bool[Tensor, "b m"]
    last_position: int


@dataclass(frozen=True, eq=False)
class SampledQueries:
    """The sampled queries in blocks, and the fraction of each text's tokens that is omitted.

    `min_earlier_tokens` is the number of included tokens before the last query, in the text with the fewest. It is known on
    the CPU, so no device has to synchronise.
    """

    blocks: list[QueryBlock]
    omitted_fraction: Float[Tensor, " b"]
    is_sampled: bool
    min_earlier_tokens: int


def sample_queries(
    is_included: Bool[Tensor, "b n"],
    max_queries: int | None,
    seed: int,
    block_size: int,
    device: torch.device | None = None,
) -> SampledQueries:
    """Sample up to `max_queries` included tokens of every text, in blocks of `block_size` queries on a device.

    `is_included` is on the CPU. Each text is sampled as if it were the only one.

    >>> sample = sample_queries(torch.tensor([[True, False, True], [True, True, True]]), 2, seed=0, block_size=8)
    >>> sample.blocks[0].positions.shape, sample.omitted_fraction.tolist(), sample.is_sampled
    (torch.Size([2, 2]), [0.0, 0.3333333432674408], True)
    """
    text_positions = [row.nonzero()[:, 0] for row in is_included]
    row_samples = [sample_rows(len(positions), max_queries, seed) for positions in text_positions]
    samples = [positions[rows] for positions, rows in zip(text_positions, row_samples, strict=True)]
    max_samples = max(map(len, samples))
    positions = torch.stack([torch.nn.functional.pad(sample, (0, max_samples - len(sample))) for sample in samples])
    is_query = torch.stack([torch.arange(max_samples) < len(sample) for sample in samples])
    block_parts = zip(positions.split(block_size, 1), is_query.split(block_size, 1), strict=True)
    omitted_fraction = torch.tensor(
        [1 - len(sample) / len(all_positions) for sample, all_positions in zip(samples, text_positions, strict=True)]
    )
    blocks = [
        QueryBlock(to_device(block_positions, device), to_device(block_is_query, device), int(block_positions.max()))
        for block_positions, block_is_query in block_parts
    ]
    return SampledQueries(
        blocks,
        to_device(omitted_fraction, device),
        bool(omitted_fraction.any()),
        min_earlier_tokens=min(int(sampled_rows[-1]) for sampled_rows in row_samples),
    )


def query_key_vectors(
    layer_input: BatchLayerInput, rotation_pair: RotationPair | None
) -> tuple[HeadVectors, HeadVectors]:
    """Queries and keys of every head with positions encoded, from the cloud itself or from randomly rotated clouds."""
    heads, (b, n) = layer_input.heads, layer_input.is_included.shape
    if rotation_pair is None:
        q, k, _ = heads.qkv(layer_input.x)
    else:
        query_cloud, key_cloud = (
            (layer_input.x_hat @ Q.to(layer_input.x_hat.dtype)[:, None]).flatten(0, 1) for Q in rotation_pair
        )
        q = project_normalised(heads.norm, query_cloud, heads.W_Q, heads.b_Q, heads.q_norm)
        k = project_normalised(heads.norm, key_cloud, heads.W_K, heads.b_K, heads.k_norm)
    encode_position, positions = heads.mechanism.position.encode, torch.arange(n, device=layer_input.x.device)
    q, k = (
        encode_position(at_least_float32(q), positions),
        encode_position(repeat_kv_heads(at_least_float32(k), heads.n_heads), positions),
    )
    return q.unflatten(0, (-1, b)), k.unflatten(0, (-1, b))


def query_correlations(
    layer_input: BatchLayerInput,
    q: HeadVectors,
    k: HeadVectors,
    embedding_directions: Float[Tensor, "b n d"],
    min_keys: int,
    blocks: list[QueryBlock],
) -> Iterator[tuple[Bool[Tensor, "b m"], Float[Tensor, "c b h m 5"]]]:
    """For each block, which queries have enough keys, and the five correlations of each query."""
    is_included = layer_input.is_included
    clouds = torch.stack(
        [centre_points(layer_input.x_hat, None if layer_input.all_included else is_included), layer_input.x_hat]
    )
    lengths = clouds.norm(dim=-1)
    inverse_lengths, mask, positions = (
        safe_reciprocal(lengths),
        layer_input.heads.mechanism.mask,
        torch.arange(is_included.shape[1], device=is_included.device),
    )
    for block in blocks:
        _, n_keys = mask.key_range(0, block.last_position + 1, len(positions))
        query_positions, j = block.positions, positions[:n_keys]
        is_usable = (
            mask(query_positions.flatten(), j).unflatten(0, query_positions.shape)
            & is_included[:, None, :n_keys]
            & (query_positions[..., None] != j)
        )
        cosines = (_take_rows(clouds, query_positions) @ clouds[:, :, :n_keys].mT).mul_(
            inverse_lengths[:, :, None, :n_keys]
        )
        cosines = cosines.mul_(inverse_lengths.gather(-1, query_positions.expand(2, -1, -1))[..., None])
        embedding_cosines = (_take_rows(embedding_directions, query_positions) @ embedding_directions[:, :n_keys].mT)[
            None
        ]
        distance = (query_positions[..., None] - j).abs()[None].to(embedding_cosines.dtype)
        scores = query_scores(layer_input, q, k[..., :n_keys, :], query_positions, j).transpose(1, 2).flatten(0, 1)
        ranks = centred_ranks(
            torch.cat(
                [
                    cosines,
                    embedding_cosines,
                    lengths[:1, :, None, :n_keys].expand_as(embedding_cosines),
                    distance,
                    scores,
                ]
            ),
            is_usable,
        )
        has_enough_keys = block.is_query & (is_usable.sum(-1) >= min_keys)
        yield (
            has_enough_keys,
            correlations(ranks[5:], target_rows(ranks[:5])).unflatten(0, (len(q), -1)).transpose(1, 2),
        )


def safe_reciprocal(lengths: Float[Tensor, "*t n"]) -> Float[Tensor, "*t n"]:
    """1/length, or 0 if the length is at most rounding error compared with the longest."""
    longest = lengths.amax(-1, keepdim=True)
    return torch.where(lengths > 1e-6 * longest, lengths, torch.inf).reciprocal()


def query_scores(
    layer_input: BatchLayerInput,
    q: HeadVectors,
    k: Float[Tensor, "c b h t k"],
    query_positions: Int[Tensor, "b m"],
    j: Int[Tensor, " t"],
) -> Float[Tensor, "c b h m t"]:
    """Scores of some queries of every text with the keys j, including soft cap and position."""
    bare_mechanism = Mechanism(layer_input.heads.mechanism.score, position=layer_input.heads.mechanism.position)
    rows = _take_rows(q, query_positions[:, None].expand(-1, q.shape[2], -1))
    s = bare_mechanism.score(rows.flatten(0, 1), k.flatten(0, 1)).unflatten(0, q.shape[:2])
    bias = bare_mechanism.position.bias(query_positions.flatten(), j)
    return s if bias is None else s + bias.unflatten(-2, query_positions.shape).transpose(-4, -3).to(s.dtype)


def _take_rows(x: Float[Tensor, "*t n d"], positions: Int[Tensor, "*#t m"]) -> Float[Tensor, "*t m d"]:
    """The rows of every text at its own positions, as whole rows of all texts below each other."""
    *leading, n, d = x.shape
    first_rows = torch.arange(0, math.prod(leading) * n, n, device=x.device).view(*leading, 1)
    return embedding(first_rows + positions, x.reshape(-1, d))


def target_rows(ranks: Float[Tensor, "5 b m n"]) -> Float[Tensor, "b m n 6"]:
    """Six unit rows for every query, from the ranks of three cosines, the key length and the distance.

    These are the two controls (orthonormal), the raw cosine and three partial cosines. A rank correlation is the inner
    product with one of them, so all heads of a layer share this work.
    """
    norms = ranks.norm(dim=-1, keepdim=True)
    distance = normalise_rows(ranks[4], norms[4], norms[4])
    residual = _remove_component(ranks[:4], distance)
    key_length = normalise_rows(residual[3], residual[3].norm(dim=-1, keepdim=True), norms[3])
    partial = _remove_component(residual[:3], key_length)
    partial = normalise_rows(partial, partial.norm(dim=-1, keepdim=True), norms[:3])
    return torch.stack([distance, key_length, normalise_rows(ranks[0], norms[0], norms[0]), *partial], -1)


def correlations(ranks: Float[Tensor, "h b m n"], targets: Float[Tensor, "b m n 6"]) -> Float[Tensor, "h b m 5"]:
    """The correlations of `MEAN_FIELDS` for every query; 0 if the ranks or the target do not vary."""
    projections = torch.einsum("hbmn,bmnt->hbmt", ranks, targets)
    squared_norm = ranks.norm(dim=-1).square()
    residual = squared_norm - projections[..., :2].square().sum(-1)
    partial = projections[..., 3:] / _zero_to_infinity(residual, squared_norm).sqrt()[..., None]
    raw = projections / _zero_to_infinity(squared_norm, squared_norm).sqrt()[..., None]
    return torch.stack([partial[..., 0], raw[..., 2], partial[..., 1], partial[..., 2], -raw[..., 0]], -1)


def _zero_to_infinity(squared_length: Tensor, squared_norm: Tensor) -> Tensor:
    """The squared length, or infinity if it is at most rounding error, so that a quotient becomes 0."""
    return torch.where(squared_length > 1e-9 * squared_norm, squared_length, float("inf"))


def _remove_component(x: Float[Tensor, "*t m n"], direction: Float[Tensor, "*#t m n"]) -> Float[Tensor, "*t m n"]:
    """x minus its component along unit rows."""
    return x - (x * direction).sum(-1, keepdim=True) * direction


def normalise_rows(
    x: Float[Tensor, "*t n d"], length: Float[Tensor, "*t n 1"], reference_length: Float[Tensor, "*#t #n 1"]
) -> Float[Tensor, "*t n d"]:
    """Rows divided by their lengths, or 0 if a length is at most rounding error compared with the reference."""
    return x * torch.where(length > 1e-6 * reference_length, length, torch.inf).reciprocal()


def directions(x: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t n d"]:
    """Rows normalised to length 1, or 0 if a row is at most rounding error compared with the longest."""
    return x * safe_reciprocal(x.norm(dim=-1))[..., None]

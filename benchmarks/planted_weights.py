"""Tiny models in whose weights an effect of a chosen size is planted, one plant per claim of the card.

`PLANTS[claim](strength, seed)` has new random weights and new texts for every seed. The mean effect grows with the strength.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from planted_points import Plant, PlantedSample
from torch import Generator, Tensor

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.report.card_clouds import trace_batches

N_TEXTS, N_TOKENS, VOCABULARY = 96, 24, 256
WIDTH, DEPTH, HEADS = 32, 2, 2
SHARPNESS = 1.5
"""The standard deviation of scores, which is ‖M‖ for random tokens of length √width."""
UPDATE_LENGTH = 0.3 * math.sqrt(WIDTH)
"""The length of an update, which is ‖F‖ for a random token: .3 of the length of a token."""
Operators = Float[Tensor, "layer head d d"]
Vocabulary = Float[Tensor, "v d"]
Axes = Float[Tensor, " d"]
Texts = Int[Tensor, "text n"]


# Networks with prescribed operators


@torch.no_grad()
def build_network(embedding: Vocabulary, M: Operators, F: Operators, **config: Any) -> Transformer:
    """A network with these embeddings and operators, whose FFN writes nothing. Heads have full rank, so any M and F will do."""
    depth, heads, width, _ = M.shape
    shape = {"vocabulary": len(embedding), "width": width, "depth": depth, "heads": heads, "head_width": width}
    settings: dict[str, Any] = {"hidden": 2 * width, "position": "none", "ffn": "relu", "context": 64} | config
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Transformer(Config(**shape, **settings)).eval()
    network.stack.embed.weight.copy_(embedding)
    eye = torch.eye(width).expand(heads, -1, -1)
    for block, layer_M, layer_F in zip(network.stack.blocks, M, F, strict=True):
        rows = torch.stack([layer_M.mT * math.sqrt(width), eye, layer_F.mT])  # of q, k and v
        block.attention.read.weight.copy_(rows.flatten(0, 2))
        block.attention.write.weight.copy_(torch.cat(list(eye), -1))
        block.ffn.write.weight.zero_()
    return network


@torch.no_grad()
def write_linear_ffn(network: Transformer, maps: Float[Tensor, "layer d d"]) -> None:
    """Make every FFN the linear map u ↦ uA, as relu(u)A − relu(−u)A."""
    eye = torch.eye(maps.shape[-1])
    for block, A in zip(network.stack.blocks, maps, strict=True):
        block.ffn.read.weight.copy_(torch.cat([eye, -eye]))
        block.ffn.write.weight.copy_(torch.cat([A.mT, -A.mT], -1))


def random_operators(draw: Generator, norm: float, heads: int = HEADS) -> Operators:
    """Independent normal matrices of this norm."""
    return with_norm(torch.randn(DEPTH, heads, WIDTH, WIDTH, generator=draw), norm)


def with_norm(operators: Operators, norm: float) -> Operators:
    return operators * norm / operators.norm(dim=(-2, -1), keepdim=True)


def random_points(draw: Generator, count: int, deviations: Axes) -> Vocabulary:
    """Random points of length √width, with these relative standard deviations along the axes."""
    points = torch.randn(count, len(deviations), generator=draw) * deviations
    return points / points.square().mean(-1, keepdim=True).sqrt()


def isotropic_tokens(draw: Generator) -> Vocabulary:
    return random_points(draw, VOCABULARY, torch.ones(WIDTH))


def first_axes(count: int, value: float, other_value: float = 1.0) -> Axes:
    """One value on the first axes and another on the others."""
    return torch.where(torch.arange(WIDTH) < count, value, other_value)


def random_texts(draw: Generator) -> Texts:
    return torch.randint(VOCABULARY, (N_TEXTS, N_TOKENS), generator=draw)


@torch.no_grad()
def trace_texts(network: Transformer, texts: Texts) -> PlantedSample:
    model = rs.load(network)
    return PlantedSample(model, trace_batches(model, list(texts)))


# The plants


def plant_similarity(strength: float, seed: int) -> PlantedSample:
    """M is random with trace 0, plus a multiple of the identity, which scores similarity."""
    draw, eye = Generator().manual_seed(seed), torch.eye(WIDTH)
    noise = random_operators(draw, 1.0, heads=4)
    noise = noise - noise.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] * eye
    M = with_norm(noise + strength / math.sqrt(WIDTH) * eye, SHARPNESS)
    F = random_operators(draw, UPDATE_LENGTH, heads=4)
    return trace_texts(build_network(isotropic_tokens(draw), M, F), random_texts(draw))


def plant_symmetry(strength: float, seed: int) -> PlantedSample:
    """M has the symmetry 1/width + strength, of which 1/width is that of random rotations."""
    draw, symmetry = Generator().manual_seed(seed), strength + 1 / WIDTH
    A = random_operators(draw, 1.0)
    symmetric, skew = with_norm(A + A.mT, 1.0), with_norm(A - A.mT, 1.0)
    M = SHARPNESS * (math.sqrt((1 + symmetry) / 2) * symmetric + math.sqrt((1 - symmetry) / 2) * skew)
    F = random_operators(draw, UPDATE_LENGTH)
    return trace_texts(build_network(isotropic_tokens(draw), M, F), random_texts(draw))


N_DOMINANT, DOMINANCE = 4, 2.0
"""In some plants, tokens vary more along the first few axes: their number, and the ratio of standard deviations."""


def plant_deformation(strength: float, seed: int) -> PlantedSample:
    """Random heads read the dominant axes with the gain e^−strength."""
    return _with_reading_gain(math.exp(-strength), seed)


def plant_recovery(strength: float, seed: int) -> PlantedSample:
    """Random heads read the dominant axes with the gain e^strength, so that all heads preserve large distances."""
    return _with_reading_gain(math.exp(strength), seed)


def _with_reading_gain(gain: float, seed: int) -> PlantedSample:
    draw, reading = Generator().manual_seed(seed), first_axes(N_DOMINANT, gain)
    M = with_norm(reading[:, None] * random_operators(draw, 1.0) * reading, SHARPNESS)
    F = with_norm(reading[:, None] * random_operators(draw, 1.0), UPDATE_LENGTH)
    embedding = random_points(draw, VOCABULARY, first_axes(N_DOMINANT, DOMINANCE))
    return trace_texts(build_network(embedding, M, F), random_texts(draw))


@torch.no_grad()
def plant_relation(strength: float, seed: int) -> PlantedSample:
    """Weights depend on tokens. Values depend on tokens by cos(strength) and on positions, equal in all texts, by sin(strength)."""
    draw, token_axes = Generator().manual_seed(seed), first_axes(WIDTH // 2, 1.0, 0.0)
    position_axes = 1 - token_axes
    M = with_norm(token_axes[:, None] * random_operators(draw, 1.0, heads=4) * token_axes, SHARPNESS)
    reading = math.cos(strength) * token_axes + math.sin(strength) * position_axes
    F = with_norm(reading[:, None] * random_operators(draw, 1.0, heads=4), UPDATE_LENGTH)
    network = build_network(random_points(draw, VOCABULARY, token_axes), M, F, position="learned")
    table = network.stack.place.table
    table.copy_(random_points(draw, len(table), position_axes))
    network.stack.norm.weight.fill_(0.3)
    return trace_texts(network, random_texts(draw))


def plant_rest(strength: float, seed: int) -> PlantedSample:
    """Layers rotate tokens by a constant angle in all planes but one, and stretch that plane by e^strength."""
    draw, angle = Generator().manual_seed(seed), 0.3
    rates = torch.kron(torch.eye(WIDTH // 2), torch.tensor([[0.0, angle], [-angle, 0.0]]))
    rates[:2, :2] = strength * torch.eye(2)
    basis = torch.linalg.qr(torch.randn(DEPTH, WIDTH, WIDTH, generator=draw)).Q
    M, F = random_operators(draw, SHARPNESS), random_operators(draw, UPDATE_LENGTH / 6)
    # untrained embeddings of this size grow little, so that untrained models hardly come to rest
    network = build_network(isotropic_tokens(draw) / math.sqrt(WIDTH), M, F, scaled_embedding=True)
    write_linear_ffn(network, basis @ (torch.linalg.matrix_exp(rates) - torch.eye(WIDTH)) @ basis.mT)
    return trace_texts(network, random_texts(draw))


def plant_gradient(strength: float, seed: int) -> PlantedSample:
    """F is random and orthogonal to Mᵀ, plus a multiple of Mᵀ, which maps tokens to the gradient of the energy."""
    draw = Generator().manual_seed(seed)
    M = random_operators(draw, SHARPNESS)
    noise, target = random_operators(draw, 1.0), with_norm(M.mT, 1.0)
    noise = noise - (noise * target).sum((-2, -1), keepdim=True) * target
    F = with_norm(noise + strength * target, UPDATE_LENGTH)
    return trace_texts(build_network(isotropic_tokens(draw), M, F), random_texts(draw))


@torch.no_grad()
def plant_asymmetry(strength: float, seed: int) -> PlantedSample:
    """M is random, plus a skew form on the dominant axes. A random change of the same size mostly misses these axes."""
    draw = Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(DEPTH, 1, N_DOMINANT, N_DOMINANT, generator=draw)).Q
    plane = torch.kron(torch.eye(N_DOMINANT // 2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    skew = torch.zeros(DEPTH, 1, WIDTH, WIDTH)
    skew[..., :N_DOMINANT, :N_DOMINANT] = basis @ plane @ basis.mT
    M = random_operators(draw, 0.25, heads=1) + strength * with_norm(skew, 1.0)
    F = random_operators(draw, math.sqrt(WIDTH), heads=1)
    embedding = random_points(draw, VOCABULARY, first_axes(N_DOMINANT, 3.0))
    network = build_network(embedding, M, F, tied=False)
    network.unembed.weight.copy_(isotropic_tokens(draw) * 0.5 / math.sqrt(WIDTH))
    return trace_texts(network, sampled_texts(network, draw, temperature=0.15))


@torch.no_grad()
def sampled_texts(network: Transformer, draw: Generator, temperature: float) -> Texts:
    """Texts that the network predicts, so that every change of it costs loss.

    A low temperature makes the cost large compared with its spread over texts.
    """
    texts = torch.randint(VOCABULARY, (N_TEXTS, 1), generator=draw)
    for _ in range(N_TOKENS - 1):
        probabilities = (network(texts)[:, -1] / temperature).softmax(-1)
        texts = torch.cat([texts, torch.multinomial(probabilities, 1, generator=draw)], -1)
    return texts


PLANTS: dict[str, Plant] = {
    "similarity": plant_similarity,
    "deformation": plant_deformation,
    "symmetry": plant_symmetry,
    "recovery": plant_recovery,
    "relation": plant_relation,
    "rest": plant_rest,
    "gradient": plant_gradient,
    "asymmetry": plant_asymmetry,
}
STRENGTH_RANGES: dict[str, tuple[float, float]] = {
    "similarity": (0.0, 0.3),
    "deformation": (0.0, 1.0),
    "symmetry": (0.0, 0.3),
    "recovery": (0.0, 2.5),
    "relation": (0.5, 1.3),
    "rest": (0.0, 1.0),
    "gradient": (0.0, 0.3),
    "asymmetry": (0.0, 0.4),
}
"""The strengths between which those of no effect and of twice the smallest effect lie."""

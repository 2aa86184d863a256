"""A model in whose weights an induction circuit is written, and pairs of texts whose circuits follow from it.

previous-token head   M: position i → i − 1        F: token → "token before"
induction head        M: token → "token before"    F: token → answer
"""

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer

VOCABULARY, CONTEXT, HEADS, SHARPNESS, NOISE = 14, 16, 3, 12.0, 0.03
WIDTH = 3 * VOCABULARY + CONTEXT
TOKEN, BEFORE, ANSWER = (slice(start, start + VOCABULARY) for start in (0, VOCABULARY, 2 * VOCABULARY))
POSITION = slice(3 * VOCABULARY, WIDTH)


class PlantedCircuit(NamedTuple):
    """The model, and the numbers of the two heads."""

    model: Any
    previous_head: int
    induction_head: int


@torch.no_grad()
def plant_induction(seed: int) -> PlantedCircuit:
    """Both heads among heads with random operators of 3 % of their size, in random axes."""
    draw = Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=draw)).Q
    M, F = (NOISE * torch.randn(2, HEADS, WIDTH, WIDTH, generator=draw) for _ in range(2))
    previous_head, induction_head = torch.randint(HEADS, (2,), generator=draw).tolist()
    M[0, previous_head] = _block(POSITION, POSITION, SHARPNESS * torch.diag(torch.ones(CONTEXT - 1), -1))
    F[0, previous_head] = _block(TOKEN, BEFORE, torch.eye(VOCABULARY))
    M[1, induction_head] = _block(TOKEN, BEFORE, SHARPNESS * torch.eye(VOCABULARY))
    F[1, induction_head] = _block(TOKEN, ANSWER, torch.eye(VOCABULARY))
    network = build_network(axes.T @ M @ axes, axes.T @ F @ axes)
    network.stack.embed.weight.copy_(torch.eye(WIDTH)[TOKEN] @ axes)
    network.stack.place.table.copy_(torch.eye(WIDTH)[POSITION] @ axes)
    network.unembed.weight.copy_(5 * torch.eye(WIDTH)[ANSWER] @ axes)
    return PlantedCircuit(rs.load(network), previous_head, induction_head)


def build_network(M: Tensor, F: Tensor) -> Transformer:
    """A network without norms whose heads have these operators, and whose FFN writes nothing."""
    shape = {"vocabulary": VOCABULARY, "width": WIDTH, "depth": 2, "heads": HEADS, "head_width": WIDTH, "hidden": 4}
    settings: Any = {"position": "learned", "norm": "none", "tied": False, "context": CONTEXT, "ffn": "relu"}
    network = Transformer(Config(**shape, **settings)).eval()
    eye = torch.eye(WIDTH).expand(HEADS, -1, -1)
    for block, layer_M, layer_F in zip(network.stack.blocks, M, F, strict=True):
        block.attention.read.weight.copy_(torch.stack([layer_M.mT * WIDTH**0.5, eye, layer_F.mT]).flatten(0, 2))
        block.attention.write.weight.copy_(torch.cat(list(eye), -1))
        block.ffn.write.weight.zero_()
    return network


def _block(rows: slice, columns: slice, values: Tensor) -> Tensor:
    A = torch.zeros(WIDTH, WIDTH)
    A[rows, columns] = values
    return A


def circuit_pairs(kind: str, seed: int, count: int = 4) -> list[tuple[list[int], list[int]]]:
    """Texts A B … X C … with A or X at the end, and others that differ in the answer (value), in what comes before the
    answer (key), in the last token (query), or in all of these."""
    draw, pairs = Generator().manual_seed(seed), []
    for _ in range(count):
        a, b, x, c, other, *rest = torch.randperm(VOCABULARY, generator=draw).tolist()
        clean = [rest[0], a, b, rest[1], x, c, rest[2], a]
        pairs.append((clean, {
            "value": [rest[0], a, c, rest[1], x, b, rest[2], a],
            "key": [rest[0], x, b, rest[1], a, c, rest[2], a],
            "query": [rest[0], a, b, rest[1], x, c, rest[2], x],
            "all": [rest[0], x, other, rest[3], rest[4], c, rest[4], rest[4]],
        }[kind]))  # fmt: skip
    return pairs


def planted_edges(kind: str, circuit: PlantedCircuit) -> set[str]:
    """The edges that carry the difference between such texts."""
    first, second = f"L0.H{circuit.previous_head}", f"L1.H{circuit.induction_head}"
    through_keys = {f"embed → {first}.v", f"{first} → {second}.k"}
    edges = {
        "value": {f"embed → {second}.v"},
        "key": through_keys,
        "query": {f"embed → {second}.q"},
        "all": {*through_keys, f"embed → {second}.q", f"embed → {second}.v"},
    }
    return {*edges[kind], f"{second} → logits"}

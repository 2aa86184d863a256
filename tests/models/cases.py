"""Shared by the tests of our own models: a tiny case for every kind of Transformer, with random weights and gains."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.attention.definition import query_key_positions
from rheoscope.models.checkpoint import save
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from tests.place import PLACE
from tests.pretrained.cases import CONTEXT, LENGTH, VOCABULARY, once, randomised, text


def tiny(**more: Any) -> Config:
    return Config(
        **{"vocabulary": VOCABULARY, "width": 32, "depth": 2, "heads": 4, "context": CONTEXT, "hidden": 24} | more
    )


CASES: dict[str, Config] = {
    "own": tiny(kv_heads=2, tied=False),
    "own_biased": tiny(norm="layer", position="learned", bias=True, ffn="gelu"),
    "own_encoder": tiny(
        form="encoder",
        placement="post",
        norm="layer",
        position="sinusoidal",
        bias=True,
        ffn="relu",
        scaled_embedding=True,
    ),
    "own_encoder_buckets": tiny(form="encoder", position="buckets", kv_heads=2),
    "own_alibi": tiny(position="alibi", kv_heads=2, head_width=12, value_width=5),
    "own_buckets": tiny(position="buckets", bias=True),
    "own_values": tiny(kv_heads=2, value_width=5, bias=True),
    "own_bare": tiny(norm="none", ffn="gelu"),
    "own_emf": tiny(norm="none", position="learned", ffn="gelu", projection="full", options={"scale": 1.0}),
    "own_branch": tiny(norm="layer", position="learned", bias=True, branch=0.4),
    "own_branch_post": tiny(placement="post", branch=0.6, position="none", kv_heads=1),
    "own_layerscale": tiny(branch_gain="vector", attenuation=0.5, bias=True),
    "own_peri": tiny(placement="peri", branch=0.4, bias=True, kv_heads=2),
    "own_metric": tiny(mechanism="metric", options={"sigma": 2.0}),
    "own_mahalanobis": tiny(mechanism="mahalanobis", position="learned", norm="layer", bias=True),
    "own_bilinear": tiny(mechanism="bilinear", position="alibi", kv_heads=2),
    "own_sigmoid": tiny(mechanism="sigmoid"),
    "own_entmax": tiny(mechanism="entmax15", position="buckets"),
    "own_sink": tiny(mechanism="softmax_sink", kv_heads=2),
    "own_relu": tiny(mechanism="relu", bias=True, norm="layer"),
    "own_shaped": tiny(mechanism="shaped", norm="layer"),
    "own_sinkhorn": tiny(mechanism="sinkhorn", form="encoder", position="learned"),
    "own_cosine": tiny(mechanism="cosine", kv_heads=2),
    "own_additive": tiny(mechanism="additive", options={"hidden": 6}, position="alibi"),
    "own_relation": tiny(mechanism="relation", options={"features": 6, "hidden": 5}),
    "own_linear": tiny(mechanism="linear", position="learned"),
    "own_laplace": tiny(mechanism="kernel_laplace"),
    "own_turned_bilinear": tiny(mechanism="bilinear"),
    "own_gated": tiny(projection="gated", norm="layer", bias=True, kv_heads=2),
}
EVERY = list(CASES)
NO_FORM = {"own_cosine", "own_additive", "own_relation", "own_linear", "own_laplace", "own_turned_bilinear"}
"""Scores that are not a bilinear form of the tokens (at an offset), so they have no M."""
WITH_M = [name for name in EVERY if name not in NO_FORM]
DOT = [name for name in WITH_M if name not in {"own_metric", "own_mahalanobis", "own_bilinear"}]
"""Scaled dot products of queries and keys, with any normaliser."""
BIDIRECTIONAL = {name for name in EVERY if CASES[name].form == "encoder"}
POST_NORM = {name for name in EVERY if CASES[name].placement == "post"}
UNMASKED = {"own_sinkhorn"}
"""Not defined under a mask, so not usable in a padded batch."""
KINDS = [
    "own",
    "own_biased",
    "own_encoder",
    "own_alibi",
    "own_buckets",
    "own_bare",
    "own_branch",
    "own_metric",
    "own_sink",
]
"""One case for each way of describing a model."""


def build_case(name: str) -> Any:
    """The module of a case, with every parameter random."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return randomised(Transformer(CASES[name]))


@once
def network(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The module of a case. It is shared, so change only a copy (`changed`)."""
    return build_case(name).to(PLACE, dtype)


@once
def model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The same module, loaded by Rheoscope."""
    return rs.load(network(name, dtype))


def changed(name: str, change: Callable[[Any], None], dtype: torch.dtype = torch.float64) -> Any:
    """The model loaded after `change(network)` on a copy."""
    other = copy.deepcopy(network(name, dtype))
    with torch.no_grad():
        change(other)
    return rs.load(other)


@once
def traced(name: str, dtype: torch.dtype = torch.float32, seed: int = 0, n: int = LENGTH) -> Any:
    """The trace of a text, computed once per session."""
    return model(name, dtype).trace(text(seed, n), logits=True)


@torch.no_grad()
def untouched(name: str, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits (n, vocabulary) of a module that Rheoscope never saw."""
    return build_case(name).to(PLACE, dtype)(ids[None])[0]


class Seen:
    """The inputs of an attention module and what it computes: rotated q, k (h, n, ·), v, mask, scores and weights."""

    def __init__(self, module: Any, args: tuple[Any, ...], out: Tensor) -> None:
        u, token_mask, rotation, position, *_ = args
        q, k, v = module.project(u, rotation)
        repeat = q.shape[1] // k.shape[1]
        self.q, self.k, self.v = q[0], k[0].repeat_interleave(repeat, 0), v[0].repeat_interleave(repeat, 0)
        i, j = query_key_positions(u.shape[1], u.shape[1], u.device)
        mechanism = module.mechanism.current_mechanism()
        self.permitted = mechanism.with_mask(token_mask).mask(i, j)
        self.scores = mechanism.score(self.q[None], self.k[None])[0]
        bias = None if position is None else position.bias(i, j)
        self.scores = self.scores if bias is None else self.scores + bias
        self.weights = mechanism.normaliser(self.scores.masked_fill(~self.permitted, -torch.inf)[None])[0]
        gate = module.gate(u)
        outputs = self.weights @ self.v if gate is None else gate[0] * (self.weights @ self.v)
        rebuilt = module.write(outputs.transpose(0, 1).flatten(1))
        assert float((rebuilt - out[0]).norm() / out.norm()) < (1e-5 if u.dtype is torch.float32 else 1e-11)


@contextmanager
def spying(network: Any) -> Iterator[list[Seen]]:
    """While a module runs, record what each attention layer receives and computes."""
    seen: list[Seen] = []
    handles = [
        block.attention.register_forward_hook(lambda module, args, out: seen.append(Seen(module, args, out)))
        for block in network.stack.blocks
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@once
def seen(name: str, dtype: torch.dtype = torch.float32, seed: int = 0, n: int = LENGTH) -> tuple[Any, tuple[Seen, ...]]:
    """A trace of a text, and the attention that the module computed during it."""
    loaded = model(name, dtype)
    with spying(loaded.network) as layers:
        trace = loaded.trace(text(seed, n), logits=True)
    return trace, tuple(layers)


@torch.no_grad()
def stream(name: str, ids: Tensor) -> list[Tensor]:
    """The embedding and the stream after each layer, recorded by hooks of this test."""
    stack = network(name).stack
    states: list[Tensor] = []
    handles = [stack.blocks[0].register_forward_pre_hook(lambda module, args: states.append(args[0]))]
    handles += [block.register_forward_hook(lambda module, args, out: states.append(out)) for block in stack.blocks]
    network(name)(ids[None])
    for handle in handles:
        handle.remove()
    return states


def saved(name: str, directory: Path, **more: Any) -> Path:
    """The model of a case saved to a directory."""
    return save(network(name), directory, **more)

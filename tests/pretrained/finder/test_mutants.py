"""The certificate of loading rejects every wrong description: one mutant for each mistake that a finder could make."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.attention.mask import Causal, Chunks, NoMask, Window
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.position import NoPosition, Position
from rheoscope.attention.position_bias import ALiBi
from rheoscope.attention.score import Gram, SoftCap
from rheoscope.pretrained.certificate import trace_eager
from rheoscope.running import certificate
from rheoscope.running.certificate import probe_ids
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import ModelRotary, Norm
from tests.pretrained.finder.networks import build

Mutation = Callable[[Heads], Heads]


@cache
def eager_run(name: str) -> Any:
    """A trace and the weights of the network's softmax, on the tokens of the certificate."""
    model = rs.load(build(name))
    return trace_eager(model, probe_ids(model.view))


def certify(name: str, mutate: Mutation) -> None:
    """The certificate of a View whose first layer is changed."""
    trace, weights = eager_run(name)
    first, *others = trace.view.layer_heads
    view = replace(trace.view, layer_heads=(mutate(first), *others))
    certificate.certify(replace(trace, view=view), weights)


# Projections: the matrices and the function change together, as they would in a wrong description


def projected(
    queries: Callable[[Tensor], Tensor] = lambda x: x,
    keys: Callable[[Tensor], Tensor] = lambda x: x,
    values: Callable[[Tensor], Tensor] = lambda x: x,
) -> Mutation:
    """Functions of (groups, ., width) for the matrices, the biases and the rows."""

    def mutate(heads: Heads) -> Heads:
        def project(u: Tensor) -> Any:
            q, k, v = heads.project(u)
            return queries(q), keys(k), values(v)

        def bias(function: Callable[[Tensor], Tensor], b: Tensor | None) -> Tensor | None:
            return None if b is None else function(b[None, :, None])[0, :, 0]

        return replace(
            heads,
            project=project,
            W_Q=queries(heads.W_Q[None])[0],
            W_K=keys(heads.W_K[None])[0],
            W_V=values(heads.W_V[None])[0],
            b_Q=bias(queries, heads.b_Q),
            b_K=bias(keys, heads.b_K),
            b_V=bias(values, heads.b_V),
        )

    return mutate


def swap_keys_and_values(heads: Heads) -> Heads:
    def project(u: Tensor) -> Any:
        q, k, v = heads.project(u)
        return q, v, k

    return replace(heads, project=project, W_K=heads.W_V, W_V=heads.W_K, b_K=heads.b_V, b_V=heads.b_K)


def swap_queries_and_keys(heads: Heads) -> Heads:
    def project(u: Tensor) -> Any:
        q, k, v = heads.project(u)
        return k, q, v

    return replace(heads, project=project, W_K=heads.W_Q, W_Q=heads.W_K, b_K=heads.b_Q, b_Q=heads.b_K)


def interleave_groups(heads: Heads) -> Heads:
    """Head h reads key/value head h mod g in place of h // (heads per group)."""
    index = torch.arange(heads.n_heads) % len(heads.W_K)
    return projected(keys=lambda x: x[:, index], values=lambda x: x[:, index])(heads)


def reverse_heads(x: Tensor) -> Tensor:
    return x.flip(-3)


def reverse_coordinates(x: Tensor) -> Tensor:
    return x.flip(-1)


def drop_first_coordinate(x: Tensor) -> Tensor:
    return x * (torch.arange(x.shape[-1]) > 0)


# Mechanisms


def with_mechanism(**fields: Any) -> Mutation:
    return lambda heads: replace(heads, mechanism=replace(heads.mechanism, **fields))


def with_scale(function: Callable[[float], float]) -> Mutation:
    def mutate(heads: Heads) -> Heads:
        scale = function(heads.scale)
        score = heads.mechanism.score
        plain = Gram(scale=scale)
        changed = SoftCap(plain, score.cap) if isinstance(score, SoftCap) else plain
        return replace(heads, scale=scale, mechanism=replace(heads.mechanism, score=changed))

    return mutate


def with_cap(function: Callable[[float], float | None]) -> Mutation:
    def mutate(heads: Heads) -> Heads:
        score = heads.mechanism.score
        assert isinstance(score, SoftCap)
        cap = function(score.cap)
        return with_mechanism(score=score.without_cap if cap is None else SoftCap(score.without_cap, cap))(heads)

    return mutate


def rotated(change: Callable[[Callable[[Tensor, Tensor], Tensor]], Callable[[Tensor, Tensor], Tensor]]) -> Mutation:
    def mutate(heads: Heads) -> Heads:
        position = heads.mechanism.position
        assert isinstance(position, ModelRotary)
        return with_mechanism(position=ModelRotary(change(position.rotate)))(heads)

    return mutate


def with_position(change: Callable[[Position], Position]) -> Mutation:
    return lambda heads: with_mechanism(position=change(heads.mechanism.position))(heads)


def interleave_pairs(x: Tensor) -> Tensor:
    """Coordinates (c, c + k/2) at the places (2c, 2c + 1)."""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def pairs_in_halves(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def with_sinks(function: Callable[[Tensor], Tensor]) -> Mutation:
    def mutate(heads: Heads) -> Heads:
        normaliser: Any = heads.mechanism.normaliser
        return with_mechanism(normaliser=replace(normaliser, sink=function(normaliser.sink)))(heads)

    return mutate


# Norms, outputs and gates


def changed_norm(name: str, **fields: Any) -> Mutation:
    """One of the norms of the heads with other constants, in the description and in the function."""

    def mutate(heads: Heads) -> Heads:
        norm = getattr(heads, name)
        changed = replace(norm, **fields)
        return replace(heads, **{name: replace(changed, apply=changed.normed)})

    return mutate


def without(*names: str) -> Mutation:
    return lambda heads: replace(heads, **dict.fromkeys(names))


def outputs(function: Callable[[Tensor], Tensor]) -> Mutation:
    return lambda heads: replace(heads, W_O=function(heads.W_O))


def gates(function: Callable[[Tensor], Tensor]) -> Mutation:
    def mutate(heads: Heads) -> Heads:
        gate = heads.gate
        assert gate is not None
        return replace(heads, gate=lambda x: function(gate(x)))

    return mutate


def norm_of_heads(**changes: Callable[[Any], Any]) -> Mutation:
    """The norm of all heads with other fields, each from its own value."""

    def mutate(heads: Heads) -> Heads:
        norm = heads.heads_norm
        changed = {name: function(getattr(norm, name)) for name, function in changes.items()}
        return replace(heads, heads_norm=replace(norm, **changed))  # type: ignore[type-var]

    return mutate


MUTANTS: dict[str, dict[str, Mutation]] = {
    "granite": {
        "keys and values swapped": swap_keys_and_values,
        "wrong group of keys": projected(keys=reverse_heads),
        "wrong group of values": projected(values=reverse_heads),
        "groups interleaved": interleave_groups,
        "queries of another head": projected(queries=reverse_heads),
        "coordinates of queries in another order": projected(queries=reverse_coordinates),
        "coordinates of values in another order": projected(values=reverse_coordinates),
        "a coordinate of keys is missing": projected(keys=drop_first_coordinate),
        "scale squared": with_scale(lambda scale: scale**2),
        "scale from the width of a head": with_scale(lambda scale: 8**-0.5),
        "no scale": with_scale(lambda scale: 1.0),
        "no rotation": with_mechanism(position=NoPosition()),
        "rotation reversed": rotated(lambda rotate: lambda x, p: rotate(x, int(p.max()) - p)),
        "rotation of adjacent pairs": rotated(
            lambda rotate: lambda x, p: interleave_pairs(rotate(pairs_in_halves(x), p))
        ),
        "rotation of half of the coordinates": rotated(
            lambda rotate: lambda x, p: torch.cat([rotate(x, p)[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]], -1)
        ),
        "rotation twice as fast": rotated(lambda rotate: lambda x, p: rotate(x, 2 * p)),
        "no causal mask": with_mechanism(mask=NoMask()),
        "a window that is not there": with_mechanism(mask=Causal() & Window(7)),
        "no norm before the heads": lambda heads: replace(heads, norm=Norm()),
        "no gain of the norm": changed_norm("norm", gain=None),
        "another eps of the norm": changed_norm("norm", eps=1e-3),
        "a norm that subtracts the mean": changed_norm("norm", subtracts_mean=True),
        "no factor of the update": outputs(lambda W: W / 0.3),
        "factor of the update squared": outputs(lambda W: W * 0.3),
        "outputs in another order": outputs(reverse_heads),
        "outputs of another coordinate": outputs(lambda W: W.flip(-2)),
        "output matrix transposed": outputs(lambda W: W.flatten(0, 1).T.reshape(W.shape)),
    },
    "gemma2": {
        "window one larger": with_mechanism(mask=Causal() & Window(5)),
        "window one smaller": with_mechanism(mask=Causal() & Window(3)),
        "no window": with_mechanism(mask=Causal()),
        "no cap": with_cap(lambda cap: None),
        "cap twice as large": with_cap(lambda cap: 2 * cap),
        "no norm after attention": without("output_norm"),
        "no gain of the norm after attention": changed_norm("output_norm", gain=None),
        "gain in place of 1 + gain": lambda heads: changed_norm("norm", gain=heads.norm.gain - 1)(heads),
    },
    "gpt_oss": {
        "no sinks": with_mechanism(normaliser=Softmax()),
        "sinks of other heads": with_sinks(lambda sink: sink.flip(0)),
        "sinks of score 0": with_sinks(torch.zeros_like),
        "no bias of queries": without("b_Q"),
        "no bias of values": without("b_V"),
        "no bias of the output": without("b_O"),
    },
    "granite_swa": {
        "no sinks behind the softmax": with_mechanism(normaliser=Softmax()),
        "sinks of other heads behind the softmax": with_sinks(lambda sink: sink.flip(0)),
    },
    "bloom": {
        "no position bias": with_mechanism(position=NoPosition()),
        "slopes of other heads": with_position(lambda position: ALiBi(position.slopes.flip(0))),  # type: ignore[attr-defined]
        "slopes twice as large": with_position(lambda position: ALiBi(2 * position.slopes)),  # type: ignore[attr-defined]
        "queries and keys swapped": swap_queries_and_keys,
        "no centring": changed_norm("norm", subtracts_mean=False),
        "no bias of the norm": changed_norm("norm", bias=None),
    },
    "phi": {
        "no norm of queries": without("q_norm"),
        "no norm of keys": without("k_norm"),
        "no centring of queries": changed_norm("q_norm", subtracts_mean=False),
        "no bias of keys": without("b_K"),
        "rotation of all coordinates": rotated(
            lambda rotate: lambda x, p: torch.cat([rotate(x, p)[..., :4], rotate(x.flip(-1), p)[..., :4]], -1)
        ),
    },
    "olmo2": {
        "a norm per head in place of one across heads": lambda heads: replace(
            heads, q_norm=Norm(lambda x: x, heads.q_norm.gain, None, heads.q_norm.eps)  # type: ignore[union-attr]
        ),
        "no gain of the norm of keys": changed_norm("k_norm", gain=None),
    },
    "esmc": {
        "no centring across heads": changed_norm("q_norm", subtracts_mean=False),
        "a centred norm per head in place of one across heads": lambda heads: replace(
            heads, k_norm=Norm(lambda x: x, heads.k_norm.gain, None, heads.k_norm.eps, True)  # type: ignore[union-attr]
        ),
    },
    "deepseek_v3": {
        "no norm of latent queries": without("q_norm"),
        "no norm of latent values": without("v_norm"),
        "another eps of the latent norm": changed_norm("k_norm", eps=1e-2),
    },
    "qwen3_next": {
        "no gate": without("gate"),
        "gates of other heads": gates(reverse_heads),
        "gate without its activation": gates(torch.logit),
        "gate squared": gates(torch.square),
    },
    "bitnet": {
        "no norm of head outputs": without("heads_norm"),
        "a norm per head in place of one across head outputs": norm_of_heads(width=lambda width: width // 4),
        "another eps of the norm of head outputs": norm_of_heads(eps=lambda eps: 1e-2),
        "a norm of head outputs that subtracts the mean": norm_of_heads(subtracts_mean=lambda _: True),
        "no gain of the norm of head outputs": outputs(lambda W: W / W.norm(dim=-1, keepdim=True)),
    },
    "diffllama": {
        "no signs of heads": outputs(torch.abs),
        "heads added in place of subtracted": outputs(lambda W: torch.cat([W[:2], -W[2:]])),
        "lambda of the second heads is 1": outputs(lambda W: torch.cat([W[:2], -W[:2]])),
        "the sum of heads in place of their difference has length 1": norm_of_heads(
            factor=lambda factor: torch.cat([factor[:2], -factor[2:]])
        ),
        "pairs of other heads": norm_of_heads(index=lambda index: index[[1, 0, 2, 3]]),
        "the values of the other product": projected(values=lambda x: x.roll(x.shape[-1] // 2, -1)),
    },
    "bitnet_layer_norm": {
        "no centring of head outputs": norm_of_heads(subtracts_mean=lambda _: False),
        "no bias of the norm of head outputs": without("b_O"),
    },
    "llama4": {
        "chunks one larger": with_mechanism(mask=Causal() & Chunks(6)),
        "chunks one smaller": with_mechanism(mask=Causal() & Chunks(4)),
        "a window in place of chunks": with_mechanism(mask=Causal() & Window(5)),
        "no chunks": with_mechanism(mask=Causal()),
        "no length of queries": without("q_norm"),
    },
    "minimax": {
        "no factor of attention": outputs(lambda W: 2 * W),
        "no factor of the stream": outputs(lambda W: 3.5 * W),
        "a norm between the stream and the heads": lambda heads: replace(heads, norm=Norm(eps=1e-6)),
        "rotation of adjacent coordinates": rotated(
            lambda rotate: lambda x, p: interleave_pairs(rotate(pairs_in_halves(x), p))
        ),
    },
    "gemma3n": {
        "window of a mixed stream one larger": with_mechanism(mask=Causal() & Window(6)),
        "no norm after attention that is added to a mixed stream": without("output_norm"),
        "no norm of values of a mixed stream": without("v_norm"),
        "attention reads a mixed stream without its norm": lambda heads: replace(heads, norm=Norm()),
    },
    "distilbert": {
        "a causal mask in an encoder": with_mechanism(mask=Causal()),
        "a norm before the heads": lambda heads: replace(heads, norm=Norm(lambda x: x - x.mean(-1, keepdim=True))),
    },
}  # fmt: skip
CASES = [(network, name) for network, mutants in MUTANTS.items() for name in mutants]


def test_there_are_mutants_for_every_part_of_a_description() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", MUTANTS)
def test_the_description_itself_is_certified(name: str) -> None:
    certify(name, lambda heads: heads)


@pytest.mark.parametrize(("name", "mutant"), CASES)
def test_a_mutant_is_rejected(name: str, mutant: str) -> None:
    with pytest.raises(RheoscopeError, match="does not reproduce this model"):
        certify(name, MUTANTS[name][mutant])

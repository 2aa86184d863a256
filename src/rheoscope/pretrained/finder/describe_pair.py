"""Describe an encoder-decoder: two stacks with clouds of their own, and the cross-attention between them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rheoscope.attention.mask import NoMask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.score import Gram
from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.blocks import Block, find_blocks, group_layers
from rheoscope.pretrained.finder.describe_network import (
    PROBE_LENGTHS,
    DescribedBlock,
    assemble_heads,
    describe_block,
    describe_logits,
    describe_stack,
    read_projections,
    spread_ids,
    visible_softmax,
)
from rheoscope.pretrained.finder.head_matrices import input_norm
from rheoscope.pretrained.finder.hook_points import attention_module
from rheoscope.pretrained.finder.layer_copies import every_layer
from rheoscope.pretrained.finder.outputs import read_outputs
from rheoscope.pretrained.finder.plain_products import plain_products
from rheoscope.pretrained.finder.projections import match_projection
from rheoscope.pretrained.finder.softmax_calls import read_softmax_call, softmax_indices
from rheoscope.pretrained.finder.stream_ends import no_vocabulary
from rheoscope.pretrained.finder.tape import Tape, Value, record_tape
from rheoscope.pretrained.finder.tape_file import TapeFile, describe_tape
from rheoscope.pretrained.network_inputs import feature_inputs, network_sizes, reads_tokens
from rheoscope.running.stream import ModelDescription
from rheoscope.shapes import RheoscopeError
from rheoscope.space.cross_attention import CrossHeads


@dataclass(frozen=True, eq=False)
class PairTape:
    """One forward pass on a source and a target. Both tapes hold the same operations and count other tokens."""

    source: Tape
    target: Tape

    def softmaxes(self, queries: Tape, keys: Tape) -> list[int]:
        """The softmaxes with these queries and keys."""
        sizes = queries.n_tokens, keys.n_tokens
        tape = self.source
        return [i for i in softmax_indices(tape) if tape.template(tape.operations[i].results[0]).shape[-2:] == sizes]


def describe_pair(network: Any, file: TapeFile | None = None) -> tuple[ModelDescription, ModelDescription]:
    """The descriptions of the encoder and of the decoder, from one forward pass, or from one that a file has stored."""

    def n_layers(descriptions: tuple[ModelDescription, ModelDescription]) -> int:
        return sum(len(x.layer_heads) for x in descriptions)

    return describe_tape(network, file, record_pair, describe_streams, n_layers)


@torch.no_grad()
def describe_streams(network: Any, tape: Tape) -> tuple[ModelDescription, ModelDescription]:
    """The description of the encoder and that of the decoder, which has the heads of cross-attention too."""
    pair = PairTape(tape, tape.counting(target_length(network)))
    source_blocks = find_blocks(pair.source, network, pair.softmaxes(pair.source, pair.source))
    source_layers = group_layers(pair.source, network, source_blocks)
    table = None if reads_tokens(network) else no_vocabulary(pair.source, source_layers[0].block.points)
    memory = source_layers[-1].output
    crossings = pair.softmaxes(pair.target, pair.source)
    target_blocks = find_blocks(pair.target, network, pair.softmaxes(pair.target, pair.target), crossings)
    layers = group_layers(pair.target, network, target_blocks)
    sources, crossed = every_layer(pair.source, source_layers, layers)
    source_described = [describe_block(own_tape, layer.block) for own_tape, layer in sources]
    encoder = describe_stack(pair.source, network, sources, source_described, table)
    _, targets = every_layer(pair.target, source_layers, layers)
    described = [describe_block(own_tape, layer.block) for own_tape, layer in targets]
    decoder = replace(
        describe_stack(pair.target, network, targets, described, network.get_input_embeddings()),
        cross_heads=tuple(
            cross_heads(PairTape(source, target), layer.block, block, memory)
            for (source, _), (target, layer), block in zip(crossed, targets, described, strict=True)
        ),
        cross_attention_modules=tuple(_cross_module(own_tape, layer.block) for own_tape, layer in targets),
        **describe_logits(pair.target, network, layers[-1].output, False),
    )
    return replace(encoder, is_encoder=True), decoder


def free_lengths(network: Any) -> Iterator[int]:
    """Lengths of texts that are no size of the network, that of the target first."""
    sizes = network_sizes(network)
    return (n for n in PROBE_LENGTHS if n not in sizes)


def target_length(network: Any) -> int:
    """The number of tokens of the recorded target."""
    return next(free_lengths(network))


def record_pair(network: Any) -> Tape:
    """A tape of the network on a source and a target of different lengths. It counts the tokens of the source."""
    if not reads_tokens(network):
        return record_feature_pair(network)
    n_target, n_source, *_ = free_lengths(network)
    source, target = (spread_ids(network, n) for n in (n_source, n_target))
    with visible_softmax(network), plain_products(network), record_tape(network, n_source) as tape:
        network(input_ids=source, decoder_input_ids=target.flip(-1), use_cache=False)
    return tape


def record_feature_pair(network: Any) -> Tape:
    """The same for a source of random features, if possible with a number of tokens that is no size of the network."""
    sizes, tapes, n_target = network_sizes(network), list[Tape](), target_length(network)
    target = spread_ids(network, n_target)
    for inputs in feature_inputs(network):
        with visible_softmax(network), plain_products(network), record_tape(network, 0) as tape:
            network(**inputs, decoder_input_ids=target, use_cache=False)
        shapes = [tape.template(tape.operations[i].results[0]).shape[-2:] for i in softmax_indices(tape)]
        tape.n_tokens = next((n for n, n_keys in shapes if n == n_keys != n_target), 0)
        tapes.append(tape)
        if tape.n_tokens not in sizes:
            return tape
    return tapes[0]


def cross_heads(pair: PairTape, block: Block, described: DescribedBlock, memory: Value) -> CrossHeads:
    """The heads of cross-attention: queries from the points after self-attention, keys and values from the source."""
    tape, half = pair.target, described.stream.cross
    if block.cross_softmax is None or half is None:
        raise RheoscopeError(Message("{module} reads nothing of the source", module=type(block.call.module).__name__))
    end, points = block.call.last_operation, half.before
    tokens, source_tokens = tape.descendants({points}, end), tape.descendants({memory}, end)
    softmax = block.cross_softmax
    call = tape.share(("call", softmax), lambda: read_softmax_call(tape, softmax, tokens | source_tokens))
    if not bool(call.mask.all()) or call.bias is not None or call.cap is not None or call.sinks is not None:
        raise RheoscopeError(Message("cross-attention has a mask, a bias, a cap or a sink"))
    q = match_projection(tape, call.queries, points, tokens)
    k, v = (match_projection(pair.source, rows, memory, source_tokens) for rows in (call.keys, call.values))
    projections = read_projections((pair.target, pair.source, pair.source), (q, k, (v,)), len(call.scale))
    outputs = read_outputs(tape, call, half, tokens)
    if outputs.heads_norm is not None:
        raise RheoscopeError(Message("a norm lies between the heads of cross-attention and their output matrix"))
    mechanism = Mechanism(Gram(scale=float(call.scale[0])), NoMask())
    norm = input_norm(tape, q, points, tokens)
    heads = replace(
        assemble_heads(projections, outputs.W_O, mechanism, norm), b_O=outputs.b_O, output_norm=outputs.norm
    )
    return CrossHeads(heads, input_norm(pair.source, k, memory, source_tokens))


def _cross_module(tape: Tape, block: Block) -> Any:
    assert block.cross_softmax is not None
    return attention_module(tape, replace(block, softmax=block.cross_softmax))


def pair_ids(ids: Tensor) -> tuple[Tensor, Tensor]:
    """A source and a shorter target from some ids."""
    return ids, ids.flip(0)[: max(1, len(ids) - 2)]

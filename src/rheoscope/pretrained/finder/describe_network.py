"""Describe a network that no family file knows: its stream, its heads and its norms, from a tape of one forward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rheoscope.attention.mask import NoMask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.score import Gram, Score, SoftCap
from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.blocks import Block, find_blocks, group_layers
from rheoscope.pretrained.finder.entry_norms import begin_at_norms
from rheoscope.pretrained.finder.feed_forward import feed_forward
from rheoscope.pretrained.finder.gates import gate_function, read_sinks
from rheoscope.pretrained.finder.head_matrices import (
    HeadProjection,
    head_projection,
    input_norm,
    join_coordinates,
    project_together,
)
from rheoscope.pretrained.finder.hook_points import attention_module, embed_tap, layer_taps
from rheoscope.pretrained.finder.key_choice import longest_text_without_choice
from rheoscope.pretrained.finder.layer_copies import PlacedLayer, every_layer
from rheoscope.pretrained.finder.masks import every_mask, read_mask
from rheoscope.pretrained.finder.mixed_streams import (
    end_at_readers,
    mixed_block,
    mixed_stream,
    n_streams,
    without_taps,
)
from rheoscope.pretrained.finder.outputs import read_outputs
from rheoscope.pretrained.finder.patch_order import check_patch_order
from rheoscope.pretrained.finder.plain_products import plain_products
from rheoscope.pretrained.finder.positions import read_position
from rheoscope.pretrained.finder.projections import Projection, match_projection
from rheoscope.pretrained.finder.rotation import PlacesError
from rheoscope.pretrained.finder.segments import one_segment, within_segments
from rheoscope.pretrained.finder.softmax_calls import (
    SoftmaxCall,
    distinct_softmaxes,
    output_product,
    read_softmax_call,
    softmax_indices,
)
from rheoscope.pretrained.finder.stream import BlockStream, read_stream
from rheoscope.pretrained.finder.stream_ends import (
    find_final_norm,
    logits_value,
    longest_text,
    no_vocabulary,
    prediction_head,
    read_embedding,
    read_unembedding,
    token_table,
)
from rheoscope.pretrained.finder.tape import Tape, Value, record_tape
from rheoscope.pretrained.finder.tape_file import TapeFile, describe_tape
from rheoscope.pretrained.finder.temperature import longest_text_without_growth
from rheoscope.pretrained.network_inputs import feature_inputs, network_sizes, reads_tokens
from rheoscope.pretrained.packed_patches import is_packed
from rheoscope.pretrained.unsupported_networks import refuse_hidden_patches, refuse_other_mask
from rheoscope.running.eval_mode import eval_mode
from rheoscope.running.stream import ModelDescription
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import Norm

PROBE_LENGTHS = (11, 13, 7, 17, 19, 23, 29)
"""Numbers of tokens of the recorded text. The first that is no size of the network is used."""
FAMILY = "found"
"""The family in the facts of a network that this file describes."""


def describe(network: Any, file: TapeFile | None = None) -> ModelDescription:
    """The description of a network from one recorded forward pass, or from one that a file has stored."""
    refuse_hidden_patches(network)
    refuse_other_mask(network)
    describe_with = partial(
        describe_tape, network, file, describe=describe_stream, n_layers=lambda x: len(x.layer_heads)
    )
    try:
        return describe_with(record=record_forward)
    except PlacesError:
        return describe_with(record=record_own_size)


def describe_stream(network: Any, tape: Tape) -> ModelDescription:
    """The description of a network with one stream. Raises if the axis of tokens has the size of another axis."""
    try:
        return _describe_stream(network, tape)
    except RheoscopeError:
        raise
    except Exception as error:
        if reads_tokens(network) or tape.n_tokens not in network_sizes(network):
            raise
        raise RheoscopeError(
            Message(
                "{network} reads inputs of {n} tokens alone, and weights have {n} rows or columns too, so the axis of tokens is unknown",
                network=type(network).__name__,
                n=tape.n_tokens,
            )
        ) from error


@torch.no_grad()
def _describe_stream(network: Any, tape: Tape) -> ModelDescription:
    softmaxes = distinct_softmaxes(tape) if reads_tokens(network) else square_softmaxes(tape)
    all_blocks = find_blocks(tape, network, softmaxes, other_block=mixed_block)
    own = [block for block in all_blocks if reads_own_points(tape, block)]
    shares_states = 0 < len(own) < len(all_blocks) or all_blocks[0].reader is not None
    layers = end_at_readers(tape, begin_at_norms(tape, group_layers(tape, network, own or all_blocks)))
    (placed,) = every_layer(tape, layers)
    blocks = [describe_block(own_tape, layer.block) for own_tape, layer in placed]
    if is_packed(network):
        check_patch_order(network, tape, network_sizes(network))
    if not reads_tokens(network):
        table = no_vocabulary(tape, layers[0].block.points)
        return replace(describe_stack(tape, network, placed, blocks, table), is_encoder=True, unembed_scale=None)
    is_encoder = any(isinstance(block.heads.mechanism.mask, NoMask) for block in blocks)
    return replace(
        describe_stack(tape, network, placed, blocks),
        is_encoder=is_encoder,
        shares_states=shares_states,
        **describe_logits(tape, network, layers[-1].output, is_encoder),
    )


@dataclass(frozen=True, eq=False)
class DescribedBlock:
    """What was found in a block: its half-layers, its heads, and the module that reads the outputs of all heads.

    `longest_text` is the number of positions beyond which its scores depend on more than distances.
    """

    stream: BlockStream
    heads: Heads
    output_projection: nn.Module
    longest_text: int | None = None


def describe_stack(
    tape: Tape,
    network: Any,
    placed: Sequence[PlacedLayer],
    blocks: Sequence[DescribedBlock],
    table: nn.Embedding | None = None,
) -> ModelDescription:
    """The description of a stack of layers, from the embedding to its last norm. `table` is that of the network by default."""
    layers = [layer for _, layer in placed]
    points = layers[0].block.points
    table = token_table(network) if table is None else table
    embedding = read_embedding(tape, table, points)
    streams = [block.stream for block in blocks]
    limits = [n for n in (longest_text(tape), *(block.longest_text for block in blocks)) if n is not None]
    return ModelDescription(
        embed_tap=embed_tap(tape, layers[0]),
        layer_taps=tuple(
            layer_taps(own_tape, index, layer, stream)
            for index, ((own_tape, layer), stream) in enumerate(zip(placed, streams, strict=True))
        ),
        layer_heads=tuple(block.heads for block in blocks),
        attention_modules=tuple(attention_module(own_tape, layer.block) for own_tape, layer in placed),
        output_projections=tuple(block.output_projection for block in blocks),
        mlps=tuple(feed_forward(*pair, stream) for pair, stream in zip(placed, streams, strict=True)),
        embedding=table if isinstance(table, nn.Embedding) else nn.Embedding.from_pretrained(table.weight),
        final_norm=find_final_norm(tape, layers[-1].output),
        embed_projection=embedding.projection,
        embed_scale=embedding.scale,
        opaque_blocks=tuple(name for layer in layers for name in layer.opaque_names),
        n_streams=n_streams(tape, layers[0].block),
        context_length=min(limits, default=None),
    )


def describe_logits(tape: Tape, network: Any, output: Value, is_encoder: bool) -> dict[str, Any]:
    """How logits follow from the last points: the factor and bias of the unembedding, or a chain of modules."""
    norm = find_final_norm(tape, output)
    logits = logits_value(tape, output, len(token_table(network).weight))
    cap = getattr(network.config.get_text_config(), "final_logit_softcapping", None)
    unembedding = read_unembedding(tape, network, output, logits, norm, cap)
    head_logits = logits if is_encoder or unembedding.scale is None else None
    return {
        "unembed_projection": unembedding.projection,
        "unembed_scale": unembedding.scale,
        "unembed_bias": unembedding.bias,
        "prediction_head": None if head_logits is None else prediction_head(tape, output, head_logits),
    }


def record_forward(network: Any) -> Tape:
    """A tape of the network on a few tokens or on random features, with its eager attention."""
    if not reads_tokens(network):
        return record_features(network)
    ids = probe_ids(network)
    with visible_softmax(network), every_mask(), plain_products(network), record_tape(network, ids.shape[1]) as tape:
        network(input_ids=ids, use_cache=False)
    return tape


def record_features(network: Any) -> Tape:
    """A tape of the network on random features, if possible of a number of tokens that is no size of the network."""
    sizes, tapes = network_sizes(network), list[Tape]()
    for tape in _feature_tapes(network):
        if tape.n_tokens not in sizes:
            return tape
        tapes.append(tape)
    return tapes[0]


def _feature_tapes(network: Any) -> Iterator[Tape]:
    for index, inputs in enumerate(feature_inputs(network)):
        with visible_softmax(network), plain_products(network), record_tape(network, 0) as tape, one_segment(network):
            network(**inputs)
        shapes = [tape.template(tape.operations[i].results[0]).shape[-2:] for i in softmax_indices(tape)]
        tape.n_tokens, tape.has_own_size = next((n for n, n_keys in shapes if n == n_keys), 0), index == 0
        yield tape


def record_own_size(network: Any) -> Tape:
    """The tape of random features of the network's own size."""
    return next(_feature_tapes(network))


def square_softmaxes(tape: Tape) -> list[int]:
    """The softmaxes of tokens over tokens. Others pool the last points into a vector."""
    square = (tape.n_tokens, tape.n_tokens)
    return [i for i in softmax_indices(tape) if tape.template(tape.operations[i].results[0]).shape[-2:] == square]


@contextmanager
def visible_softmax(network: Any) -> Iterator[None]:
    """Inside, the network computes its attention by a softmax and two products, without dropout or a fused kernel."""
    original = network.config._attn_implementation
    network.set_attn_implementation("eager")
    try:
        with eval_mode(network), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        network.set_attn_implementation(original)


def probe_ids(network: Any) -> Tensor:
    """Ids of a text whose number of tokens is no size of the network."""
    sizes = network_sizes(network)
    return spread_ids(network, next((n for n in PROBE_LENGTHS if n not in sizes), PROBE_LENGTHS[0]))


def spread_ids(network: Any, n: int) -> Tensor:
    """Ids from the upper part of the vocabulary, where special tokens are rare."""
    embedding = token_table(network).weight
    return torch.linspace(len(embedding) // 3, len(embedding) - 1, n, device=embedding.device).long()[None]


def reads_own_points(tape: Tape, block: Block) -> bool:
    """Whether the values of a block come from its own points. Others share those of an earlier block (Gemma 4), so they are no layers."""
    tokens = tape.descendants({block.points}, block.call.last_operation)
    return output_product(tape, block.softmax).args[-1].value in tokens


def describe_block(tape: Tape, block: Block) -> DescribedBlock:
    """The half-layers of a block and its self-attention."""
    points, end = block.points, block.call.last_operation
    tokens = tape.descendants({points}, end)
    call = tape.share(("call", block.softmax), lambda: read_softmax_call(tape, block.softmax, tokens))
    stream = tape.share(("stream", block.softmax), lambda: _read_half_layers(tape, block, call))
    q, k, *v = (match_projection(tape, rows, points, tokens) for rows in (call.queries, call.keys, *call.all_values))
    if {x.source for x in (k, *v)} != {q.source}:
        raise RheoscopeError(Message("queries, keys and values read different tensors"))
    n_heads = len(call.scale)
    projections = read_projections((tape, tape, tape), (q, k, tuple(v)), n_heads)
    outputs = read_outputs(tape, call, stream.attention, tokens)
    if outputs.projection is None:
        raise RheoscopeError(Message("no module applies the output matrix of the heads"))
    norm = without_taps(tape, block, input_norm(tape, q, points, tokens), q.source)
    mechanism = tape.share(("mechanism", call.index), lambda: mechanism_of(tape, call, q, tokens))
    mechanism = within_segments(tape, block, mechanism)
    heads = replace(
        assemble_heads(projections, outputs.W_O, mechanism, norm),
        b_O=outputs.b_O,
        output_norm=outputs.norm,
        heads_norm=outputs.heads_norm,
    )
    sinks = None if outputs.gate is None else read_sinks(tape, outputs.gate, call)
    if sinks is not None:
        heads = replace(heads, mechanism=replace(heads.mechanism, normaliser=Sink(sinks)))
    elif outputs.gate is not None:
        factors_of, gate_source = gate_function(tape, outputs.gate, call, points, tokens)
        if gate_source != q.source:
            raise RheoscopeError(Message("a gate reads another tensor than the heads"))
        heads = replace(heads, gate=lambda x: factors_of(norm.apply(x)))
    longest = tape.share(("longest text", call.index), lambda: _longest_text(tape, call, q, tokens))
    return DescribedBlock(stream, heads, outputs.projection, longest)


def _read_half_layers(tape: Tape, block: Block, call: SoftmaxCall) -> BlockStream:
    if block.reader is not None:
        return mixed_stream(tape, block)
    end, cross = block.call.last_operation, block.cross_softmax
    cross_weights = None if cross is None else tape.descendants(set(tape.operations[cross].results), end)
    return read_stream(tape, block, tape.descendants({call.weights}, end), cross_weights)


def _longest_text(tape: Tape, call: SoftmaxCall, q: Projection, tokens: set[Value]) -> int | None:
    limits = longest_text_without_growth(tape, call.queries, q, tokens), longest_text_without_choice(call.choices)
    return min((n for n in limits if n is not None), default=None)


def read_projections(
    tapes: tuple[Tape, Tape, Tape], matched: tuple[Projection, Projection, tuple[Projection, ...]], n_heads: int
) -> tuple[HeadProjection, HeadProjection, HeadProjection]:
    """The matrices of queries, keys and values, whose coordinates may be read by several products.

    Keys and values that heads share are given once, if all are shared alike.
    """
    queries = head_projection(tapes[0], matched[0], n_heads, False)
    pairs = [(tapes[1], matched[1]), *((tapes[2], values) for values in matched[2])]
    keys, *values = (head_projection(tape, projection, n_heads, True) for tape, projection in pairs)
    if len({len(x.W) for x in (keys, *values)}) > 1:
        keys, *values = (head_projection(tape, projection, n_heads, False) for tape, projection in pairs)
    return queries, keys, join_coordinates(values)


def assemble_heads(
    projections: tuple[HeadProjection, HeadProjection, HeadProjection], W_O: Tensor, mechanism: Mechanism, norm: Norm
) -> Heads:
    queries, keys, values = projections
    scale = mechanism.score.without_cap.scale  # type: ignore[attr-defined]
    return Heads(
        queries.W, keys.W, values.W, W_O, scale, mechanism, partial(project_together, projections), queries.b, keys.b, values.b,
        norm=norm, q_norm=queries.norm, k_norm=keys.norm, v_norm=values.norm,
    )  # fmt: skip


def mechanism_of(tape: Tape, call: SoftmaxCall, q: Projection, tokens: set[Value]) -> Mechanism:
    """The mechanism around the softmax: scale, cap, mask, positions and sinks."""
    if not bool(torch.isclose(call.scale, call.scale[:1], rtol=1e-9).all()):
        raise RheoscopeError(Message("heads of one layer have different scales"))
    score: Score = Gram(scale=float(call.scale[0]))
    score = score if call.cap is None else SoftCap(score, call.cap)
    mechanism = Mechanism(score, read_mask(tape, call), read_position(tape, call, q, tokens))
    return mechanism if call.sinks is None else replace(mechanism, normaliser=Sink(call.sinks))

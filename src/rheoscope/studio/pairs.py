"""Encoder-decoders on the page: the clouds of a source and of its target, and cross-attention between them."""

from typing import TYPE_CHECKING, Any

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.picture.token_labels import display_token
from rheoscope.report.long_texts import split_special_tokens
from rheoscope.report.text_pairs import greedy_outputs
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.pair_sides import PairSide
from rheoscope.running.runner import RunnableModel
from rheoscope.running.stream import taps
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from rheoscope.studio import wire

if TYPE_CHECKING:
    from rheoscope.studio.session import TextEntry


def pair_json(model: RunnableModel, trace: Trace) -> dict[str, Any] | None:
    """Which side of an encoder-decoder a trace shows, the tokens of its source, and how many steps each side has."""
    if not isinstance(model, PairSide):
        return None
    source = trace if trace.source_trace is None else trace.source_trace
    return {
        "side": str(model.view.facts["side"]),
        "source": [display_token(token) for token in source.tokens],
        "steps": {
            "source": len(taps(model.pair.source_description)),
            "target": len(taps(model.pair.description)),
        },
    }


def pack_cross_map(entry: "TextEntry", layer: int, head: int) -> bytes:
    """The weights of target tokens (rows) on source tokens (columns) of a head of cross-attention."""
    weights = entry.trace.cross_weights(layer, head).float().cpu().numpy()
    header = entry.head_facts(layer, head) | {"kind": "cross"}
    return wire.pack_envelope(header, {"map": wire.quantise(weights, ["query", "key"])})


def greedy_target(model: RunnableModel, source: str) -> str:
    """The model's own greedy output for a source, as a text."""
    if not isinstance(model, EncoderDecoder):
        raise RheoscopeError(Message("{model} has no encoder, so it has no target", model=model.view.name))
    (ids,) = greedy_outputs(model, [source])
    return "".join(model.token_strings_in_text(split_special_tokens(model, ids.tolist())[1])).strip()


def check_reads_texts(model: RunnableModel, source: str) -> None:
    """Raise for an encoder-decoder whose source is a sound."""
    if isinstance(model, EncoderDecoder) and not model.encoder.reads_tokens:
        raise RheoscopeError(
            Message("the studio shows texts, but the source of {model} is a sound", model=source),
            Advice("rs.target_model(model, sound)"),
        )

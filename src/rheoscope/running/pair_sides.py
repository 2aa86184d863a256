"""The two sides of an encoder-decoder as models of one text each, so that every analysis of one cloud runs on both."""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.lost_text import Span
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edits, Text
from rheoscope.space.traces import Traces

SOURCE, TARGET = "source", "target"
"""The names of the sides, as the facts of their Views have them."""


@dataclass(frozen=True, eq=False, repr=False)
class PairSide(RunnableModel):
    """One side of an encoder-decoder. Both sides share its network and its tokenizer."""

    pair: EncoderDecoder

    @abstractmethod
    def in_pair(self, pair: EncoderDecoder) -> "PairSide":
        """The same side of another encoder-decoder, such as an untrained one."""

    def edit_heads(self, edit: Edits) -> AbstractContextManager[None]:
        return self.pair.edit_heads(edit)

    def token_spans(self, text: str) -> list[Span] | None:
        return self.pair.token_spans(text)

    def decode(self, token_id: int) -> str:
        return self.pair.decode(token_id)

    def vocabulary_entry(self, token_id: int) -> str:
        return self.pair.vocabulary_entry(token_id)


@dataclass(frozen=True, eq=False, repr=False)
class SourceModel(PairSide):
    """The encoder of an encoder-decoder: a text is a source, and there are no logits."""

    def in_pair(self, pair: EncoderDecoder) -> "SourceModel":
        description, view = pair.source_description, source_model(pair).view
        return SourceModel(pair.network, pair.tokenizer, description, view, pair)

    def forward_logits(self, ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None) -> Tensor:
        raise RheoscopeError(
            Message("the encoder of an encoder-decoder has no logits; give it a target"),
            Advice("rs.target_model(model, source)", "--target TEXT"),
        )

    def forward_points(self, ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None) -> None:
        self.pair.forward_source(ids, is_token)

    def edit_heads(self, edit: Edits) -> AbstractContextManager[None]:
        if edit:
            raise RheoscopeError(
                Message("heads of an encoder cannot be edited yet; edit those of the decoder"),
                Advice("rs.target_model(model, source)", "--target TEXT"),
            )
        return super().edit_heads(edit)

    def encode(self, text: str) -> list[int]:
        return self.pair.encode_source(text)


@dataclass(frozen=True, eq=False, repr=False)
class TargetModel(PairSide):
    """The decoder of an encoder-decoder: a text is a target. `sources` has the source of each target of a batch, or one for all."""

    sources: tuple[Tensor, ...]

    def in_pair(self, pair: EncoderDecoder) -> "TargetModel":
        return targets_model(pair, self.sources)

    def for_texts(self, texts: Sequence[int]) -> "TargetModel":
        """The decoder for some of the targets, by their indices."""
        return replace(self, sources=tuple(self.sources[text] for text in texts)) if len(self.sources) > 1 else self

    def _sources_of(self, n_targets: int) -> tuple[Tensor, ...]:
        sources = self.sources * n_targets if len(self.sources) == 1 else self.sources
        if len(sources) != n_targets:
            raise RheoscopeError(
                Message(
                    "this decoder has {n} sources and expected as many targets, got {received}",
                    n=len(self.sources),
                    received=n_targets,
                ),
                Advice("rs.target_model(model, source)"),
            )
        return sources

    def _pairs(self, ids: Int[Tensor, "b n"]) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """The ids of sources and targets, and the mask of the sources. Decoders ignore the padding after a target."""
        source_ids, is_token = self.pair.pad_sources(self._sources_of(len(ids)))
        return (source_ids, ids), is_token

    def forward_logits(self, ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None) -> Tensor:
        return self.pair.forward_logits(*self._pairs(ids))

    def forward_points(self, ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None) -> None:
        self.pair.forward_points(*self._pairs(ids))

    def encode(self, text: str) -> list[int]:
        return self.pair.encode(text)

    def _traces(self, batch: list[Tensor], texts: list[str], logits: bool, record_outputs: bool) -> Traces:
        targets = super()._traces(batch, texts, logits, record_outputs)
        sources = source_model(self.pair).trace(list(self.sources))
        return targets.with_sources(list(sources) * len(batch) if len(sources) == 1 else sources)

    def _refuse_pairs(self) -> None:
        """Every target of a batch has a source."""


def source_model(model: EncoderDecoder) -> RunnableModel:
    """The encoder of an encoder-decoder as a model of one text, or of one sound.

    **Question** What does the encoder do with a source? Every analysis of one cloud runs on the result.

    **See also** `rs.target_model` is the decoder.

    >>> import rheoscope as rs
    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import Translator
    >>> model = rs.load(Translator(Config(vocabulary=9, width=8, depth=1, heads=2, form="encoder-decoder")))
    >>> rs.source_model(model).trace([5, 6, 7]).points.shape
    torch.Size([3, 3, 8])
    """
    encoder = replace(model.encoder, facts=model.encoder.facts | side_facts(model, SOURCE))
    own_model = model.encoder_model(encoder)
    return own_model or SourceModel(model.network, model.tokenizer, model.source_description, encoder, model)


def side_facts(model: EncoderDecoder, side: str) -> dict[str, str]:
    """What the View of a side adds to its facts: its name, and the digest of the weights of the pair."""
    return {"side": side, "pair_weights": str(model.view.facts.get("weights"))}


def target_model(model: EncoderDecoder, source: Text) -> TargetModel:
    """The decoder of an encoder-decoder for one source, as a model of targets.

    **Question** What does the decoder do with a target, given this source? Every analysis of one cloud runs on the result, and
    `trace.cross_weights(layer, head)` are the weights of target tokens on source tokens.

    >>> import rheoscope as rs
    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import Translator
    >>> model = rs.load(Translator(Config(vocabulary=9, width=8, depth=1, heads=2, form="encoder-decoder")))
    >>> rs.target_model(model, [5, 6, 7]).trace([1, 8]).cross_weights(0, 1).shape
    torch.Size([2, 3])
    """
    return targets_model(model, [model.source_ids(source)])


def targets_model(model: EncoderDecoder, sources: Sequence[Tensor]) -> TargetModel:
    """The decoder for one source per target of a batch, or for one source that all share."""
    decoder = replace(model.view, facts=model.view.facts | side_facts(model, TARGET))
    return TargetModel(model.network, model.tokenizer, model.description, decoder, model, tuple(sources))


def one_text_model(model: RunnableModel) -> RunnableModel:
    """The model itself if it reads one text, and the encoder of an encoder-decoder."""
    return source_model(model) if isinstance(model, EncoderDecoder) else model


def same_side(model: RunnableModel, other: RunnableModel) -> RunnableModel:
    """`other`, such as an untrained control, as the side that `model` is. An ordinary model stays itself."""
    return model.in_pair(other) if isinstance(model, PairSide) and isinstance(other, EncoderDecoder) else other


def sides_for(model: RunnableModel, text: Any, target: str | None) -> tuple[RunnableModel, Any]:
    """What a command analyses: an ordinary model and its text, the encoder and the source, or the decoder and the target."""
    if not isinstance(model, EncoderDecoder):
        if target is not None:
            raise RheoscopeError(
                Message("{model} has no encoder, so it reads one text; leave out --target", model=model.view.name)
            )
        return model, text
    return (source_model(model), text) if target is None else (target_model(model, text), target)

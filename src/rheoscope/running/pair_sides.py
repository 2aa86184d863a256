"""The two sides of an encoder-decoder as models of one text each, so that every analysis of one cloud runs on both."""

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
from rheoscope.space.model import Edits, Hooks, Text
from rheoscope.space.trace import Trace


@dataclass(frozen=True, eq=False, repr=False)
class PairSide(RunnableModel):
    """One side of an encoder-decoder. Both sides share its network and its tokenizer."""

    pair: EncoderDecoder

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
    """The decoder of an encoder-decoder for one source: a text is a target."""

    source: Int[Tensor, " s"]

    def _pairs(self, ids: Int[Tensor, "b n"]) -> tuple[Tensor, Tensor]:
        return self.source.to(ids.device).expand(len(ids), -1), ids

    def forward_logits(self, ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None) -> Tensor:
        return self.pair.forward_logits(self._pairs(ids), None)

    def forward_points(self, ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None) -> None:
        self.pair.forward_points(self._pairs(ids), None)

    def encode(self, text: str) -> list[int]:
        return self.pair.encode(text)

    def trace(self, text: Any, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None) -> Any:
        """The target as points of E after every half-layer, with the source as its memory."""
        traced = super().trace(text, logits, edit, hooks)
        if not isinstance(traced, Trace):
            return traced
        return replace(traced, memory=source_model(self.pair).trace(self.source).points[-1])

    def _refuse_pairs(self) -> None:
        """A batch of targets shares the source."""


def source_model(model: EncoderDecoder) -> SourceModel:
    """The encoder of an encoder-decoder as a model of one text.

    **Question** What does the encoder do with a source? Every analysis of one cloud runs on the result.

    **See also** `rs.target_model` is the decoder.

    >>> import rheoscope as rs
    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import Translator
    >>> model = rs.load(Translator(Config(vocabulary=9, width=8, depth=1, heads=2, form="encoder-decoder")))
    >>> rs.source_model(model).trace([5, 6, 7]).points.shape
    torch.Size([3, 3, 8])
    """
    return SourceModel(model.network, model.tokenizer, model.source_description, model.encoder, model)


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
    source_ids = model.ids(source, model.encode_source)
    return TargetModel(model.network, model.tokenizer, model.description, model.view, model, source_ids)


def one_text_model(model: RunnableModel) -> RunnableModel:
    """The model itself if it reads one text, and the encoder of an encoder-decoder."""
    return source_model(model) if isinstance(model, EncoderDecoder) else model


def sides_for(model: RunnableModel, text: str, target: str | None) -> tuple[RunnableModel, str]:
    """What a command analyses: an ordinary model and its text, the encoder and the source, or the decoder and the target."""
    if not isinstance(model, EncoderDecoder):
        if target is not None:
            raise RheoscopeError(
                Message("{model} has no encoder, so it reads one text; leave out --target", model=model.view.name)
            )
        return model, text
    return (source_model(model), text) if target is None else (target_model(model, text), target)

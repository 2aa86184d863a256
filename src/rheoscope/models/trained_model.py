"""Models of this project as Models of Rheoscope: our modules compute, and plain hooks record the points."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.models.cached_network import cached_decoder, cached_translator
from rheoscope.models.head_edits import edit_heads
from rheoscope.models.vocabulary import END, SPECIALS, START
from rheoscope.running.cached_network import CachedNetwork, refuse_generation
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.lost_text import Span
from rheoscope.running.runner import RunnableModel, pad_batch
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edits

SourceTargetIds = tuple[Int[Tensor, "b s"], Int[Tensor, "b t"]]
"""Ids of sources and of targets."""


class NativeModel(RunnableModel):
    """What both kinds of models share: how heads are edited and how text becomes ids."""

    def edit_heads(self, edit: Edits) -> AbstractContextManager[None]:
        return edit_heads(self.description, edit)

    def encode(self, text: str) -> list[int]:
        try:
            return list(self.tokenizer.encode(text).ids)
        except Exception as error:  # the library raises plain Exception
            raise RheoscopeError(
                Message(
                    "the tokenizer cannot encode this text ({reason}); use only characters of the training text",
                    reason=str(error),
                )
            ) from error

    def token_spans(self, text: str) -> list[Span] | None:
        unknown = getattr(self.tokenizer.model, "unk_token", None)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return [span for token, span in zip(encoding.tokens, encoding.offsets, strict=True) if token != unknown]

    def decode(self, token_id: int) -> str:
        return str(self.tokenizer.decode([token_id], skip_special_tokens=False))

    def vocabulary_entry(self, token_id: int) -> str:
        return self.tokenizer.id_to_token(token_id) or ""


@dataclass(frozen=True, eq=False, repr=False)
class NativeTransformer(NativeModel):
    """A Transformer of this project with its tokenizer, description and View. `rheoscope.load` returns one."""

    def forward_logits(
        self, ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b n vocabulary"]:
        with self.eval_mode():
            return self.network(ids, is_token)

    def forward_points(self, ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None) -> None:
        with self.eval_mode():
            self.network.stack(ids, is_token)

    def cached_network(self, n_tokens: int, source: Tensor | None = None) -> CachedNetwork:
        if not self.view.predicts_next_token:
            raise refuse_generation(self.view)
        return cached_decoder(self.network, self.tokenizer, n_tokens)


@dataclass(frozen=True, eq=False, repr=False)
class NativeTranslator(NativeModel, EncoderDecoder):
    """A Translator of this project: its decoder as `view`, its encoder as `encoder`. `rheoscope.load` returns one.

    As in training, a source ends with ``<|end|>`` and a target starts with ``<|start|>``.
    """

    def forward_logits(
        self, ids: SourceTargetIds, is_token: Bool[Tensor, "b s"] | None
    ) -> Float[Tensor, "b t vocabulary"]:
        with self.eval_mode():
            return self.network(*ids, is_token)

    def forward_points(self, ids: SourceTargetIds, is_token: Bool[Tensor, "b s"] | None) -> None:
        with self.eval_mode():
            self.network.decoder(ids[1], None, None, self.network.encoder(ids[0], is_token), is_token)

    def forward_source(self, ids: Int[Tensor, "b s"], is_token: Bool[Tensor, "b s"] | None) -> None:
        with self.eval_mode():
            self.network.encoder(ids, is_token)

    def cached_network(self, n_tokens: int, source: Tensor | None = None) -> CachedNetwork:
        assert source is not None, "a pair has a source"
        return cached_translator(self.network, source, n_tokens)

    @torch.no_grad()
    def greedy_targets(self, sources: Sequence[Int[Tensor, " _"]], max_tokens: int) -> list[Int[Tensor, " _"]]:
        from rheoscope.models.generate import translate

        ids, is_token = pad_batch(list(sources), self.device)
        outputs = translate(self.network, ids, START, END, max_tokens, is_token=is_token).cpu()
        lengths = [int((output == END).int().argmax()) if END in output else len(output) for output in outputs]
        return [
            torch.cat([torch.tensor([START]), output[:length]]) for output, length in zip(outputs, lengths, strict=True)
        ]

    def encode_source(self, text: str) -> list[int]:
        return [*super().encode(text.strip()), self._special_id(END)]

    def encode(self, text: str) -> list[int]:
        return [self._special_id(START), *super().encode(text.strip())]

    def _special_id(self, token_id: int) -> int:
        if self.tokenizer.token_to_id(SPECIALS[token_id]) != token_id:
            raise RheoscopeError(
                Message(
                    "the tokenizer has no {token} with id {id}; pass token ids (source, target) instead of texts",
                    token=SPECIALS[token_id],
                    id=token_id,
                )
            )
        return token_id

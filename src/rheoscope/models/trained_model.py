"""A model of this project as a Model of Rheoscope: our own modules compute, plain hooks show the points."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.models.head_edits import edit_heads
from rheoscope.models.sentence_pairs import END, SPECIALS, START
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edits

SourceTargetIds = tuple[Int[Tensor, "b s"], Int[Tensor, "b t"]]
"""Ids of sources and of targets."""


class NativeModel(RunnableModel):
    """What both kinds of models of this project share: how heads are edited and how text becomes ids."""

    def edit_heads(self, edit: Edits) -> AbstractContextManager[None]:
        return edit_heads(self.description, edit)

    def encode(self, text: str) -> list[int]:
        try:
            return list(self.tokenizer.encode(text).ids)
        except Exception as error:  # the library raises Exception itself
            raise RheoscopeError(
                f"the tokenizer cannot read this text ({error}); type a text of the characters it was made from"
            ) from error

    def decode(self, token_id: int) -> str:
        return str(self.tokenizer.decode([token_id], skip_special_tokens=False))

    def vocabulary_entry(self, token_id: int) -> str:
        return self.tokenizer.id_to_token(token_id) or ""


@dataclass(frozen=True, eq=False, repr=False)
class NativeTransformer(NativeModel):
    """A Transformer of this project, its tokenizer, its description and its View. `rheoscope.load` makes one."""

    def forward_logits(
        self, ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b n vocabulary"]:
        return self.network(ids, is_token)

    def forward_points(self, ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None) -> None:
        self.network.stack(ids, is_token)


@dataclass(frozen=True, eq=False, repr=False)
class NativeTranslator(NativeModel, EncoderDecoder):
    """A Translator of this project: its decoder as `view`, its encoder as `encoder`. `rheoscope.load` makes one.

    A source is its tokens and ``<|end|>``, a target ``<|start|>`` and its tokens, as it was trained.
    """

    def forward_logits(
        self, ids: SourceTargetIds, is_token: Bool[Tensor, "b s"] | None
    ) -> Float[Tensor, "b t vocabulary"]:
        return self.network(*ids, is_token)

    def forward_points(self, ids: SourceTargetIds, is_token: Bool[Tensor, "b s"] | None) -> None:
        self.network.decoder(ids[1], None, None, self.network.encoder(ids[0], is_token), is_token)

    def encode_source(self, text: str) -> list[int]:
        return [*super().encode(text.strip()), self._special_id(END)]

    def encode(self, text: str) -> list[int]:
        return [self._special_id(START), *super().encode(text.strip())]

    def _special_id(self, token_id: int) -> int:
        if self.tokenizer.token_to_id(SPECIALS[token_id]) != token_id:
            raise RheoscopeError(
                f"this tokenizer has no {SPECIALS[token_id]} with id {token_id}; type token ids (source, target)"
            )
        return token_id

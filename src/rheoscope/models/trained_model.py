"""A model of this project as a Model of Rheoscope: our own modules compute, plain hooks show the points."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.models.head_edits import editing
from rheoscope.models.sentence_pairs import END, SPECIALS, START
from rheoscope.running.encoder_decoder import Pairing
from rheoscope.running.runner import Running
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edits

Both = tuple[Int[Tensor, "b s"], Int[Tensor, "b t"]]
"""Ids of sources and of targets."""


class Ours(Running):
    """What both kinds of models of this project share: how heads are edited and how text becomes ids."""

    def editing(self, edit: Edits) -> AbstractContextManager[None]:
        return editing(self.description, edit)

    def encode(self, text: str) -> list[int]:
        try:
            return list(self.tokenizer.encode(text).ids)
        except Exception as error:  # the library raises Exception itself
            raise RheoscopeError(
                f"the tokenizer cannot read this text ({error}); type a text of the characters it was made from"
            ) from error

    def decode(self, token: int) -> str:
        return str(self.tokenizer.decode([token], skip_special_tokens=False))

    def piece(self, token: int) -> str:
        return self.tokenizer.id_to_token(token) or ""


@dataclass(frozen=True, eq=False, repr=False)
class Trained(Ours):
    """A Transformer of this project, its tokenizer, its description and its View. `rheoscope.load` makes one."""

    def call(self, ids: Int[Tensor, "b n"], real: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b n vocabulary"]:
        return self.network(ids, real)

    def pass_through(self, ids: Int[Tensor, "b n"], real: Bool[Tensor, "b n"] | None) -> None:
        self.network.stack(ids, real)


@dataclass(frozen=True, eq=False, repr=False)
class Translating(Ours, Pairing):
    """A Translator of this project: its decoder as `view`, its encoder as `encoder`. `rheoscope.load` makes one.

    A source is its tokens and ``<|end|>``, a target ``<|start|>`` and its tokens, as it was trained.
    """

    def call(self, ids: Both, real: Bool[Tensor, "b s"] | None) -> Float[Tensor, "b t vocabulary"]:
        return self.network(*ids, real)

    def pass_through(self, ids: Both, real: Bool[Tensor, "b s"] | None) -> None:
        self.network.decoder(ids[1], None, None, self.network.encoder(ids[0], real), real)

    def encode_source(self, text: str) -> list[int]:
        return [*super().encode(text.strip()), self._special(END)]

    def encode(self, text: str) -> list[int]:
        return [self._special(START), *super().encode(text.strip())]

    def _special(self, at: int) -> int:
        if self.tokenizer.token_to_id(SPECIALS[at]) != at:
            raise RheoscopeError(f"this tokenizer has no {SPECIALS[at]} with id {at}; type token ids (source, target)")
        return at

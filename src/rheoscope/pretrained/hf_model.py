"""A pretrained model as a Model of Rheoscope: Hugging Face computes, plain hooks show the points."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.pretrained.head_edits import editing
from rheoscope.running.runner import Running
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edits


@dataclass(frozen=True, eq=False, repr=False)
class Pretrained(Running):
    """A Hugging Face model, its tokenizer, its description and its View. `rheoscope.load` makes one."""

    def call(self, ids: Int[Tensor, "b n"], real: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b n vocabulary"]:
        logits = getattr(self.network(**_inputs(ids, real)), "logits", None)
        if logits is None or logits.shape[-1] != len(self.view.embed):
            raise RheoscopeError(
                f"{type(self.network).__name__} has no unembedding, so there are no logits; "
                "type the name of a language model"
            )
        return logits

    def pass_through(self, ids: Int[Tensor, "b n"], real: Bool[Tensor, "b n"] | None) -> None:
        self.network.base_model(**_inputs(ids, real))

    def editing(self, edit: Edits) -> AbstractContextManager[None]:
        if edit and len({weight.device for weight in self.network.parameters()}) > 1:
            raise RheoscopeError("heads are edited on one device, and this model is on several; type device='cpu'")
        return editing(self.network, self.description, edit)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text)["input_ids"]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        asked = {"return_attention_mask": False, "return_token_type_ids": False}  # half of its time
        return self.tokenizer(list(texts), **asked)["input_ids"] if texts else []

    def decode(self, token: int) -> str:
        return self.tokenizer.decode([token])

    def piece(self, token: int) -> str:
        return self.tokenizer.convert_ids_to_tokens(token) or ""


def _inputs(ids: Int[Tensor, "b n"], real: Bool[Tensor, "b n"] | None) -> dict[str, Any]:
    given = {"input_ids": ids, "use_cache": False}
    return given if real is None else given | {"attention_mask": real.long()}

"""Pretrained models as Models of Rheoscope: Hugging Face computes, and plain hooks record the points."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.pretrained.cached_network import cached_decoder, cached_pair
from rheoscope.pretrained.head_edits import apply_edits
from rheoscope.running.cached_network import CachedNetwork, refuse_generation
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.lost_text import Span
from rheoscope.running.runner import RunnableModel, pad_batch
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edits

LOGITS = ("logits", "prediction_logits")
"""The names of logits in the output of a network. `BertForPreTraining` has the second."""


@dataclass(frozen=True, eq=False, repr=False)
class Pretrained(RunnableModel):
    """A Hugging Face model with its tokenizer, description and View. `rheoscope.load` returns one."""

    @property
    def parameter_count(self) -> int:
        """The number of parameters; tied ones count once, and two in a byte count as two."""
        return int(self.network.num_parameters())

    def forward_logits(
        self, ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b n vocabulary"]:
        with self.eval_mode():
            outputs = self.network(**_network_inputs(ids, is_token))
        logits = next((outputs[name] for name in LOGITS if name in outputs), None)
        if logits is None or logits.shape[-1] != len(self.view.embed):
            raise RheoscopeError(
                Message(
                    "{network} has no unembedding and therefore no logits; choose a language model",
                    network=type(self.network).__name__,
                )
            )
        return logits

    def forward_points(self, ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None) -> None:
        with self.eval_mode():
            self.network.base_model(**_network_inputs(ids, is_token))

    def cached_network(self, n_tokens: int, source: Tensor | None = None) -> CachedNetwork:
        if not self.view.predicts_next_token:
            raise refuse_generation(self.view)
        return cached_decoder(self.network)

    def edit_heads(self, edit: Edits) -> AbstractContextManager[None]:
        if edit and len({weight.device for weight in self.network.parameters()}) > 1:
            raise RheoscopeError(
                Message("editing heads needs a model on one device, but this model is on several"), use(device="cpu")
            )
        return apply_edits(self.network, self.description, edit)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, verbose=False)["input_ids"]  # the length is checked later, with advice

    def token_spans(self, text: str) -> list[Span] | None:
        if not getattr(self.tokenizer, "is_fast", False):
            return None
        encoding = self.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False)
        unknown = self.tokenizer.unk_token_id
        spans = list(zip(encoding["input_ids"], encoding["offset_mapping"], strict=True))
        return [tuple(span) for token_id, span in spans if token_id != unknown]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        tokenizer_options = {
            "return_attention_mask": False,
            "return_token_type_ids": False,
            "verbose": False,
        }  # saves half of the time
        return self.tokenizer(list(texts), **tokenizer_options)["input_ids"] if texts else []

    def decode(self, token_id: int) -> str:
        return self.tokenizer.decode([token_id])

    def vocabulary_entry(self, token_id: int) -> str:
        return self.tokenizer.convert_ids_to_tokens(token_id) or ""


PairIds = tuple[Int[Tensor, "b s"], Int[Tensor, "b t"]]
"""Ids of sources and of targets."""


@dataclass(frozen=True, eq=False, repr=False)
class PretrainedPair(Pretrained, EncoderDecoder):
    """A Hugging Face encoder-decoder: its decoder as `view`, its encoder as `encoder`. `rheoscope.load` returns one.

    A target begins with the id that the model's config names for the start of the decoder.
    """

    def forward_logits(self, ids: PairIds, is_token: Bool[Tensor, "b s"] | None) -> Float[Tensor, "b t vocabulary"]:  # type: ignore[override]
        with self.eval_mode():
            return self.network(**_pair_inputs(ids, is_token)).logits

    def forward_points(self, ids: PairIds, is_token: Bool[Tensor, "b s"] | None) -> None:  # type: ignore[override]
        with self.eval_mode():
            self.network.base_model(**_pair_inputs(ids, is_token))

    def forward_source(self, ids: Int[Tensor, "b s"], is_token: Bool[Tensor, "b s"] | None) -> None:
        inputs = _network_inputs(ids, is_token)
        del inputs["use_cache"]
        with self.eval_mode():
            self.network.get_encoder()(**inputs)

    def cached_network(self, n_tokens: int, source: Tensor | None = None) -> CachedNetwork:
        assert source is not None, "a pair has a source"
        return cached_pair(self.network, source)

    @torch.no_grad()
    def greedy_targets(self, sources: Sequence[Int[Tensor, " _"]], max_tokens: int) -> list[Int[Tensor, " _"]]:
        if not self.network.can_generate():
            raise RheoscopeError(
                Message("{network} cannot generate targets; give them", network=type(self.network).__name__),
                Advice("rs.card(model, [(source, target), …])", "--texts FILE"),
            )
        ids, is_token = pad_batch(list(sources), self.device)
        settings = copy(self.network.generation_config)
        settings.update(do_sample=False, num_beams=1, early_stopping=False, length_penalty=1.0)
        settings.update(max_new_tokens=max_tokens, max_length=None)
        inputs = {name: x for name, x in _network_inputs(ids, is_token).items() if name != "use_cache"}
        with self.eval_mode():
            outputs = self.network.generate(**inputs, generation_config=settings)
        return [_without_end(output.cpu(), settings.eos_token_id) for output in outputs]

    def encode_source(self, text: str) -> list[int]:
        return super().encode(text)

    def encode(self, text: str) -> list[int]:
        ids = self.tokenizer(text_target=text, verbose=False)["input_ids"]
        start = self.network.config.decoder_start_token_id
        end = self.tokenizer.eos_token_id
        ids = ids[:-1] if ids and ids[-1] == end else ids  # a target ends where the model continues it
        return ids if start is None or ids[:1] == [start] else [start, *ids]


def _without_end(output: Int[Tensor, " n"], end: int | list[int] | None) -> Int[Tensor, " _"]:
    """A generated output up to the first token that ends it. The token that starts the decoder may have the same id."""
    ends = torch.isin(output[1:], torch.tensor([] if end is None else end, dtype=output.dtype)).nonzero()
    return output[: 1 + int(ends[0])] if len(ends) else output


def _pair_inputs(ids: PairIds, is_token: Bool[Tensor, "b s"] | None) -> dict[str, Any]:
    return _network_inputs(ids[0], is_token) | {"decoder_input_ids": ids[1]}


def _network_inputs(ids: Int[Tensor, "b n"], is_token: Bool[Tensor, "b n"] | None) -> dict[str, Any]:
    inputs = {"input_ids": ids, "use_cache": False}
    return inputs if is_token is None else inputs | {"attention_mask": is_token.long()}

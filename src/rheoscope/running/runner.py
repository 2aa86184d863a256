"""A runnable model: forward hooks turn texts into points, and a subclass only calls the network."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rheoscope.attention.memory import explain_out_of_memory
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.notebook_html import card, format_count
from rheoscope.running.cached_network import CachedNetwork, refuse_generation
from rheoscope.running.certificate import Certificate
from rheoscope.running.eval_mode import eval_mode
from rheoscope.running.head_edits import prepare_run_edits
from rheoscope.running.lost_text import Span, check_lost_text
from rheoscope.running.stream import (
    ModelDescription,
    apply_hooks,
    capture_points,
    check_reused_blocks,
    describe_value,
    record_block_outputs,
    record_head_outputs,
    record_points,
    reuse_block_outputs,
    taps,
)
from rheoscope.running.thread_hooks import apply_module_hooks
from rheoscope.running.token_ids import as_token_ids
from rheoscope.shapes import RheoscopeError
from rheoscope.space.device_transfer import to_device
from rheoscope.space.model import Edits, Hooks, Input, Text, Texts, check_same_weights
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.token_text import as_bytes, decode_token, decode_tokens, decode_utf8
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View


@dataclass(frozen=True, eq=False)
class RunnableModel(ABC):
    """A network with its tokenizer (or None), its description and its View; `rheoscope.load` returns one.

    A subclass calls the network, edits its heads, encodes strings and decodes ids. Everything else is here.
    """

    network: Any
    tokenizer: Any
    description: ModelDescription
    view: View

    def __repr__(self) -> str:
        return f"<Model {self.view.summary}, {format_count(self.parameter_count)} parameters>"

    def _repr_html_(self) -> str:
        facts = self.view.summary_fields | {"parameters": format_count(self.parameter_count)}
        return card(self, self.view.name, facts | {"certificate": self.view.facts.get("certificate", "none")})

    @property
    def parameter_count(self) -> int:
        """The number of parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    @abstractmethod
    def forward_logits(self, ids: Any, is_token: Bool[Tensor, "b n"] | None) -> Tensor:
        """Logits (b, n, vocabulary) of the network for ids (b, n), or for the ids of a source and of a target.

        `is_token` is False at padding (for pairs, of the source); None without padding.
        """

    @abstractmethod
    def forward_points(self, ids: Any, is_token: Bool[Tensor, "b n"] | None) -> None:
        """Run the network up to the last point, without logits."""

    @abstractmethod
    def edit_heads(self, edit: Edits) -> AbstractContextManager[None]:
        """Inside, edits compute their heads (layer, head) or whole layers; undone on exit."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a string, with the special tokens of the tokenizer."""

    def token_spans(self, text: str) -> list[Span] | None:
        """The characters [start, end) of every token that stands for text; None if the tokenizer does not report them."""
        return None

    def for_texts(self, texts: Sequence[int]) -> "RunnableModel":
        """The model that reads some texts of a batch, by their indices: itself, unless it reads more than the texts."""
        return self

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of several strings."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def decode(self, token_id: int) -> str:
        """One id as text, by the tokenizer."""

    @abstractmethod
    def vocabulary_entry(self, token_id: int) -> str:
        """The vocabulary entry of one id."""

    @overload
    def trace(  # type: ignore[overload-overlap]  # a string is a sequence of strings; here it is one text
        self, text: Input, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None
    ) -> Trace: ...

    @overload
    def trace(
        self, text: Texts, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None
    ) -> Traces: ...

    def trace(
        self, text: Input | Texts, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None
    ) -> Trace | Traces:
        """The text as points of E after every half-layer; a list of texts returns Traces, computed as one batch.

        `logits=True` also stores the logits (N, vocabulary), bit for bit the unhooked model's for one text. With `edit` and
        `hooks`, as in `run`, the points are those of the edited model. Weights and displacements of the Trace are recomputed
        by the View, which no edit changes.
        """
        is_batch = isinstance(text, list | tuple) and bool(text) and not isinstance(text[0], Integral)
        batch: Any = text if is_batch else [text]
        ids, texts = (
            [self.ids(text_item) for text_item in batch],
            [text_string(text_item) for text_item in batch],
        )
        self.view.check_current(reads_device=not is_batch)
        with (
            self.apply_edits(edit, hooks),
            explain_out_of_memory(Message("a text of this length"), use(device="cpu")),
        ):
            traces = self._traces(ids, texts, logits, record_outputs=self.view.uses_half_precision and not edit)
        return traces if is_batch else traces[0]

    @torch.no_grad()
    def _traces(self, batch: list[Tensor], texts: list[str], logits: bool, record_outputs: bool) -> Traces:
        ids, is_token = pad_batch(batch, self.device)
        points, outputs, batch_logits = allocate_points(self.description, ids), dict[int, Tensor](), None
        with (
            record_points(self.description, points),
            record_head_outputs(self.description, outputs) if record_outputs else nullcontext(),
        ):
            if logits:
                batch_logits = self.forward_logits(ids, is_token)
            else:
                self.forward_points(ids, is_token)
        token_texts = [self.token_strings_in_text(text_ids) for text_ids in batch]
        return make_traces(self.view, self.description, points, batch, token_texts, texts, batch_logits).with_outputs(
            outputs
        )

    def run(
        self,
        text: Text,
        edit: Edits | None = None,
        hooks: Hooks | None = None,
    ) -> Tensor:
        """Logits (n, vocabulary) with edited heads and points; undone on exit, differentiable.

        `edit={(layer, head): f}`: f(q, k, v, mechanism) of that head (b, 1, n, ·) returns its output (b, 1, n, e).
        `edit={layer: f}`: f(q, k, v, mechanism, out) of all heads of that layer returns their outputs (b, h, n, e). A `Rewrite`
        also reads the points of the layer, and may write to the stream outside the heads.
        `hooks={"L3.resid_mid": g}`: the points (b, n, d) at that step become g(points).
        All functions get float32 or better. Their results are rounded to the model's dtype once.
        """
        ids = self.ids(text)[None].to(self.device)
        self.view.check_current()
        with self.apply_edits(edit, hooks):
            return self.forward_logits(ids, None)[0]

    @contextmanager
    def apply_edits(self, edit: Edits | None, hooks: Hooks | None) -> Iterator[None]:
        """Inside, and in this thread only, edit heads and points."""
        run_edits = prepare_run_edits(self.description, edit or {}, hooks or {})
        with (
            self.edit_heads(run_edits.edits),
            apply_hooks(self.description, run_edits.hooks),
            apply_module_hooks(run_edits.observers),
        ):
            yield

    def run_batch(
        self,
        ids: Int[Tensor, "b n"],
        edit: Edits | None = None,
        hooks: Hooks | None = None,
        block_outputs: Sequence[Any] = (),
    ) -> Float[Tensor, "b n vocabulary"]:
        """Logits of a batch of texts of equal length, with heads and points edited as in `run`.

        `block_outputs=model.block_outputs(ids)[:5]` reuses the outputs of the first five blocks. This is exact if nothing is
        edited before the sixth.
        """
        self._refuse_pairs()
        layers = [edit_key if isinstance(edit_key, int) else edit_key[0] for edit_key in edit or {}]
        check_reused_blocks(self.description, block_outputs, layers, hooks or {})
        with self.apply_edits(edit, hooks), reuse_block_outputs(self.description, block_outputs):
            return self.forward_logits(ids.to(self.device), None)

    @torch.no_grad()
    def block_outputs(self, ids: Int[Tensor, "b n"]) -> list[Any]:
        """The output of every block for a batch of texts of equal length: see `run_batch`."""
        self._refuse_pairs()
        self.view.check_current()
        outputs: list[Any] = []
        with record_block_outputs(self.description, outputs):
            self.forward_points(ids.to(self.device), None)
        return outputs

    def _refuse_pairs(self) -> None:
        if self.view.cross_heads:
            raise RheoscopeError(
                Message("this model reads one pair (source, target) at a time, got a batch of texts"),
                Advice("model.run((source, target))"),
            )

    def gradients(
        self, text: Text, objective: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, dict[str, Float[Tensor, "n d"]]]:
        """The value of `objective` on the logits (n, vocabulary), and its gradient at every step that the model reads.

        One forward pass and one backward pass. Weights get no gradients, so they may be frozen.
        """
        self.view.check_current()
        captured_points: dict[str, Tensor] = {}
        with torch.enable_grad(), capture_points(self.description, captured_points):
            value = objective(self.forward_logits(self.ids(text)[None].to(self.device), None)[0])
        if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
            raise RheoscopeError(
                Message(
                    "objective must return a scalar tensor that depends on the logits, got {received}",
                    received=describe_value(value),
                ),
                Advice("lambda logits: logits[-1].max()"),
            )
        points = {str(tap.step): captured_points[str(tap.step)] for tap in taps(self.description) if not tap.is_virtual}
        gradients = torch.autograd.grad(value, list(points.values()), materialize_grads=True)
        return value.detach(), {
            label: at_least_float32(g).reshape(-1, g.shape[-1]) for label, g in zip(points, gradients, strict=True)
        }

    def cached_network(self, n_tokens: int, source: Tensor | None = None) -> CachedNetwork:
        """The network with an empty key/value cache for `n_tokens` tokens, and with the source of an encoder-decoder."""
        raise refuse_generation(self.view)

    def with_certificate(self, certificate: Certificate) -> "RunnableModel":
        """The same model with a certificate among its facts."""
        return replace(self, view=self.view.with_certificate(certificate))

    def with_facts(self, facts: dict[str, str]) -> "RunnableModel":
        """The same model with further facts, which become attributes of every result."""
        return replace(self, view=replace(self.view, facts=self.view.facts | facts)) if facts else self

    def with_check(self, check_current: Callable[..., None]) -> "RunnableModel":
        """The same model with a function that raises if its weights are out of date."""
        return replace(self, view=self.view.with_check(check_current))

    def without_check(self) -> "RunnableModel":
        """The same model without this check, for code that changes the weights itself and restores them."""
        return self.with_check(lambda reads_device=True: None)

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Inside, the network is in evaluation mode."""
        with eval_mode(self.network, self._modules):
            yield

    @cached_property
    def _modules(self) -> tuple[torch.nn.Module, ...]:
        return tuple(self.network.modules())

    @property
    def device(self) -> torch.device:
        return self.description.embedding.weight.device

    def ids(self, text: Text, encode: Callable[[str], list[int]] | None = None) -> Int[Tensor, " n"]:
        """Token ids of a string (special tokens included), of a Trace, or the ids themselves, checked against the model."""
        if isinstance(text, Trace):
            check_same_weights(self, text)
            return text.ids.cpu()
        if isinstance(text, str) and self.tokenizer is None:
            raise RheoscopeError(
                Message("this model has no tokenizer, expected a tokenizer.json with its weights, or sentencepiece"),
                Advice("model.trace([1, 2, 3])", page=Message("open another model")),
            )
        ids = torch.tensor((encode or self.encode)(text)).long() if isinstance(text, str) else as_token_ids(text)
        context_length, vocabulary_size = self.view.context_length, len(self.view.embed)
        if not len(ids) or (isinstance(text, str) and not text):  # a tokenizer may add a start token to an empty text
            raise RheoscopeError(Message("the text has no tokens, expected at least one"))
        if isinstance(text, str) and (spans := self.token_spans(text)) is not None:
            check_lost_text(text, spans)
        if context_length is not None and len(ids) > context_length:
            raise RheoscopeError(
                Message(
                    "the text has {received:,} tokens, but the model reads at most {maximum:,}; use a shorter text",
                    received=len(ids),
                    maximum=context_length,
                )
            )
        id_list = ids.tolist()  # so few that torch's threads would cost more than they do
        smallest, largest = min(id_list), max(id_list)
        if smallest < 0 or largest >= vocabulary_size:
            raise RheoscopeError(
                Message(
                    "token ids must lie between 0 and {maximum:,}, got {smallest:,} to {largest:,}",
                    maximum=vocabulary_size - 1,
                    smallest=smallest,
                    largest=largest,
                )
            )
        return ids

    def token_strings(self, ids: Int[Tensor, " n"] | Sequence[int]) -> list[str]:
        """Each token as text by itself; its id if there is no tokenizer.

        A leading space is part of the token. Bytes of an incomplete character are written as `⟨e4⟩`.
        """
        if self.tokenizer is None:
            return [str(token_id) for token_id in _as_int_list(ids)]
        return [decode_token(self.token_bytes(token_id)) for token_id in _as_int_list(ids)]

    def token_strings_in_text(self, ids: Int[Tensor, " n"] | Sequence[int]) -> list[str]:
        """Each token as text in context: a character that spans several tokens belongs to the last of them."""
        if self.tokenizer is None:
            return self.token_strings(ids)
        id_list = _as_int_list(ids)
        cached_strings = self._string_cache
        for token_id in set(id_list).difference(cached_strings):
            cached_strings[token_id] = decode_utf8(self.token_bytes(token_id)) or None
        whole_strings = [string for string in map(cached_strings.__getitem__, id_list) if string is not None]
        return (
            whole_strings
            if len(whole_strings) == len(id_list)
            else decode_tokens([self.token_bytes(token_id) for token_id in id_list])
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes of one id, cached."""
        if token_id not in self._bytes_cache:
            self._bytes_cache[token_id] = as_bytes(self.vocabulary_entry(token_id), self.decode(token_id))
        return self._bytes_cache[token_id]

    @cached_property
    def _bytes_cache(self) -> dict[int, bytes]:
        return {}

    @cached_property
    def _string_cache(self) -> dict[int, str | None]:
        """Tokens as text. None for tokens that are empty or hold an incomplete character."""
        return {}


def _as_int_list(ids: Int[Tensor, " n"] | Sequence[int]) -> list[int]:
    return ids.tolist() if isinstance(ids, Tensor) else [int(token_id) for token_id in ids]


def text_string(text: Any) -> str:
    """A text as a string; empty if only its token ids are given."""
    return text.text if isinstance(text, Trace) else text if isinstance(text, str) else ""


def allocate_points(description: ModelDescription, ids: Int[Tensor, "b n"]) -> Float[Tensor, "b p n d"]:
    """An empty tensor for the points of a batch, in float32 or better. The clouds of one step are contiguous, as the model
    writes them and as kernels read them."""
    width, dtype = description.layer_heads[0].W_O.shape[-1], description.layer_heads[0].W_O.dtype
    return torch.empty(len(taps(description)), *ids.shape, width, device=ids.device, dtype=dtype).transpose(0, 1)


def make_traces(
    view: View,
    description: ModelDescription,
    points: Float[Tensor, "b p n d"],
    batch: Sequence[Tensor],
    tokens: Sequence[list[str]],
    texts: Sequence[str],
    logits: Float[Tensor, "b n vocabulary"] | None = None,
) -> Traces:
    """The Traces of a batch after one forward pass."""
    ids, _ = pad_batch(batch)
    # non-blocking: otherwise the host would wait for the whole forward pass
    lengths = to_device(torch.tensor([len(text_ids) for text_ids in batch]), points.device)
    input_steps = tuple(len(description.layer_taps[0]) * layer for layer in range(view.layers))
    return Traces(
        view=view,
        points=points,
        ids=ids,
        is_token=torch.arange(ids.shape[1], device=points.device) < lengths[:, None],
        lengths=lengths,
        tokens=tuple(tokens),
        texts=tuple(texts),
        steps=tuple(tap.step for tap in taps(description)),
        input_steps=input_steps,
        mid_steps=tuple(step_index + 1 for step_index in input_steps),
        logits=logits,
        unread_steps=frozenset(tap.step for tap in taps(description) if tap.is_virtual or tap.is_shared),
    )


def pad_batch(
    batch: Sequence[Tensor], device: torch.device | None = None
) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"] | None]:
    """The ids of a batch, padded on the right, and the mask of valid tokens; None without padding, for the plain fused kernel."""
    ids, lengths = pad_sequence(list(batch), batch_first=True), [len(text_ids) for text_ids in batch]
    if min(lengths) == ids.shape[1]:
        return to_device(ids, device), None
    return to_device(ids, device), to_device(torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None], device)

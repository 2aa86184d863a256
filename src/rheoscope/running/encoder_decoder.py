"""Encoder-decoders: a source and a target as two Traces, linked by cross-attention."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.certificate import Certificate
from rheoscope.running.runner import RunnableModel, allocate_points, make_traces, pad_batch
from rheoscope.running.stream import ModelDescription, apply_hooks, record_points
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edits, Hooks
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

SOURCE_PREFIX = "source."
"""The prefix of encoder steps in hooks: `source.L0.resid_mid`."""

PairIds = tuple[Tensor, Int[Tensor, " t"]]
"""A source, as token ids or features, and the token ids of a target."""


@dataclass(frozen=True, eq=False)
class LinkedTraces:
    """The Traces of a pair of texts: `source` holds the points of the encoder, `target` those of the decoder.

    `target.cross_weights(layer, head)` (T, S) are the weights of target tokens on source tokens.
    `target.cross_displacements(layer)` (h, T, d) are the displacements that they cause.

    >>> import rheoscope as rs
    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import Translator
    >>> model = rs.load(Translator(Config(vocabulary=9, width=8, depth=1, heads=2, form="encoder-decoder")))
    >>> linked = model.trace(([5, 6, 7, 2], [1, 8]))
    >>> [str(step) for step in linked.target.steps]
    ['embed', 'L0.resid_mid', 'L0.resid_cross', 'L0.resid_post']
    >>> linked.target.cross_weights(0, 1).shape
    torch.Size([2, 4])
    """

    source: Trace
    target: Trace

    def __repr__(self) -> str:
        return f"<Linked source {self.source!r} and target {self.target!r}>"

    def save(self, directory: str | Path) -> Path:
        """Save both Traces in one directory; `LinkedTraces.open(directory, model)` reads them."""
        self.source.save(Path(directory) / "source")
        self.target.save(Path(directory) / "target")
        return Path(directory)

    @staticmethod
    def open(directory: str | Path, model: "EncoderDecoder") -> "LinkedTraces":
        """A saved pair with the Views of the model that traced it; raises for another model."""
        return LinkedTraces(
            Trace.open(Path(directory) / "source", model.encoder), Trace.open(Path(directory) / "target", model.view)
        )


@dataclass(frozen=True, eq=False, repr=False)
class EncoderDecoder(RunnableModel):
    """A runnable encoder-decoder: `view` is the decoder, `encoder` the View of the encoder, and a text is a pair.

    A subclass calls the network on a source and a target, and encodes strings for either side.
    """

    source_description: ModelDescription
    encoder: View

    @abstractmethod
    def forward_source(self, ids: Int[Tensor, "b s"], is_token: Bool[Tensor, "b s"] | None) -> None:
        """Run the encoder alone."""

    @abstractmethod
    def encode_source(self, text: str) -> list[int]:
        """Token ids of a source; `encode` returns those of a target."""

    def encoder_model(self, view: View) -> RunnableModel | None:
        """The encoder as a model of its own with this View, if its source is no text."""
        return None

    @abstractmethod
    def greedy_targets(self, sources: Sequence[Int[Tensor, " _"]], max_tokens: int) -> list[Int[Tensor, " _"]]:
        """The model's own greedy output for every source, as ids of targets: without the token that ends an output."""

    def trace(self, text: Any, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None) -> Any:
        """The pair (source, target) as LinkedTraces; a list of pairs returns a list of them, computed as one batch.

        `logits=True` also stores the logits (T, vocabulary) of the target, bit for bit the unhooked model's for one pair. With
        `edit` and `hooks`, as in `run`, the points are those of the edited model.
        """
        self.view.check_current()
        is_batch = isinstance(text, list) and bool(text)
        batch = text if is_batch else [text]
        with self.apply_edits(edit, hooks):
            linked = self._trace_pairs([self.pair_ids(pair) for pair in batch], batch, logits)
        return linked if is_batch else linked[0]

    @torch.no_grad()
    def _trace_pairs(self, batch: list[tuple[Tensor, Tensor]], texts: list[Any], logits: bool) -> list[LinkedTraces]:
        source_batch, target_batch = (list(side) for side in zip(*batch, strict=True))
        (sources, is_token), (targets, _) = self.pad_sources(source_batch), pad_batch(target_batch, self.device)
        source_points, target_points, target_logits = (
            allocate_points(self.source_description, self.source_tokens(sources)),
            allocate_points(self.description, targets),
            None,
        )
        with record_points(self.source_description, source_points), record_points(self.description, target_points):
            if logits:
                target_logits = self.forward_logits((sources, targets), is_token)
            else:
                self.forward_points((sources, targets), is_token)
        source_texts, target_texts = zip(*texts, strict=True)
        source_traces = self.source_traces(source_points, source_batch, source_texts)
        target_traces = self._side_traces(
            self.view, self.description, target_points, target_batch, target_texts, target_logits
        )
        linked_targets = target_traces.with_sources(source_traces)
        return [LinkedTraces(source, target) for source, target in zip(source_traces, linked_targets, strict=True)]

    def pad_sources(self, sources: Sequence[Tensor]) -> tuple[Tensor, Bool[Tensor, "b s"] | None]:
        """A batch of sources as the network reads it, and which of its tokens are no padding; None if all are tokens."""
        return pad_batch(sources, self.device)

    def source_tokens(self, sources: Tensor) -> Int[Tensor, "b s"]:
        """The ids of the tokens of a batch of sources. A source that is no text has numbers of its tokens as ids."""
        return sources

    def source_traces(self, points: Tensor, sources: Sequence[Tensor], texts: Sequence[Any]) -> Traces:
        """The Traces of the encoder after a forward pass."""
        return self._side_traces(self.encoder, self.source_description, points, sources, texts)

    def _side_traces(
        self,
        view: View,
        description: ModelDescription,
        points: Tensor,
        ids: Sequence[Tensor],
        texts: Sequence[Any],
        logits: Tensor | None = None,
    ) -> Traces:
        """The Traces of the sources or of the targets of all pairs."""
        side_texts = [text if isinstance(text, str) else "" for text in texts]
        return make_traces(
            view,
            description,
            points,
            ids,
            [self.token_strings_in_text(text_ids) for text_ids in ids],
            side_texts,
            logits,
        )

    def run(self, text: Any, edit: Edits | None = None, hooks: Hooks | None = None) -> Tensor:
        """Logits (T, vocabulary) of the pair (source, target) with edited heads and points.

        `edit={(layer, head): f}` edits self-attention of the decoder. `hooks` change points of the decoder, and points of the
        encoder with the prefix `source.`: `{"source.L0.resid_mid": g}`. All edits are undone on exit.
        """
        self.view.check_current()
        ids = tuple(side_ids[None].to(self.device) for side_ids in self.pair_ids(text))
        with self.apply_edits(edit, hooks):
            return self.forward_logits(ids, None)[0]

    @contextmanager
    def apply_edits(self, edit: Edits | None, hooks: Hooks | None) -> Iterator[None]:
        """Edit heads of the decoder and points of both sides; undone on exit."""
        hooks_by_label = {str(step): hook for step, hook in (hooks or {}).items()}
        source_hooks = {label: hook for label, hook in hooks_by_label.items() if label.startswith(SOURCE_PREFIX)}
        target_hooks = {label: hook for label, hook in hooks_by_label.items() if label not in source_hooks}
        with apply_hooks(self.source_description, source_hooks, SOURCE_PREFIX), super().apply_edits(edit, target_hooks):
            yield

    def pair_ids(self, pair: Any) -> PairIds:
        """The token ids of a source and of a target, from strings or ids."""
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise RheoscopeError(
                Message(
                    "an encoder-decoder expects a pair (source, target), got {received}", received=type(pair).__name__
                ),
                Advice("model.trace((source, target))"),
            )
        return self.source_ids(pair[0]), self.ids(pair[1])

    def source_ids(self, source: Any) -> Tensor:
        """The token ids of a source, or its features if it is no text."""
        return self.ids(source, self.encode_source)

    def with_check(self, check_current: Callable[..., None]) -> "EncoderDecoder":
        """The same model with a function that raises if the weights of either View are out of date."""
        return replace(self, view=self.view.with_check(check_current), encoder=self.encoder.with_check(check_current))

    def with_certificate(self, certificate: Certificate) -> "EncoderDecoder":
        """The same model with the certificate in the facts of both Views."""
        return replace(
            self, view=self.view.with_certificate(certificate), encoder=self.encoder.with_certificate(certificate)
        )

"""Encoder-decoders: a source and a target as two Traces, linked by cross attention."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from rheoscope.running.certificate import Certificate
from rheoscope.running.runner import Running, padded, room, traced
from rheoscope.running.stream import Description, changing, watching
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edits, Hooks
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

SOURCE = "source."
"""Before a step of the encoder where a hook names it: `source.L0.resid_mid`."""

Ids = tuple[Int[Tensor, " s"], Int[Tensor, " t"]]


@dataclass(frozen=True, eq=False)
class Linked:
    """A pair of texts: `source`, the points of the encoder, and `target`, those of the decoder.

    `target.cross_weights(layer, head)` (T, S) says which source token a target token reads, and
    `target.cross_displacements(layer)` (h, T, d) what it takes from there.

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
        """Both Traces, side by side; `Linked.open(directory, model)` reads them again."""
        self.source.save(Path(directory) / "source")
        self.target.save(Path(directory) / "target")
        return Path(directory)

    @staticmethod
    def open(directory: str | Path, model: "Pairing") -> "Linked":
        """A saved pair, seen through the Views of the model that made it; another model is refused."""
        return Linked(
            Trace.open(Path(directory) / "source", model.encoder), Trace.open(Path(directory) / "target", model.view)
        )


@dataclass(frozen=True, eq=False, repr=False)
class Pairing(Running):
    """An encoder-decoder that runs: `view` is the decoder, `encoder` the View of the encoder, a text is a pair.

    A maker says how to call the network on a source and a target, and how a string becomes ids on either side.
    """

    source_description: Description
    encoder: View

    @abstractmethod
    def encode_source(self, text: str) -> list[int]:
        """Ids of a source; `encode` gives those of a target."""

    def trace(self, text: Any, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None) -> Any:
        """The pair (source, target) as Linked Traces; a list of pairs gives a list of them from one batch.

        `logits=True` keeps the logits (T, vocabulary) of the target too, equal bit for bit to the untouched model's for
        one pair. With `edit` and `hooks`, as `run` takes them, the points are those of the changed model.
        """
        many = isinstance(text, list) and bool(text)
        batch = text if many else [text]
        with self.changed(edit, hooks):
            linked = self._linked([self.both(pair) for pair in batch], batch, logits)
        return linked if many else linked[0]

    @torch.no_grad()
    def _linked(self, batch: list[tuple[Tensor, Tensor]], texts: list[Any], logits: bool) -> list[Linked]:
        (sources, real), (targets, _) = (padded(side, self.device) for side in zip(*batch, strict=True))
        far, near, found = room(self.source_description, sources), room(self.description, targets), None
        with watching(self.source_description, far), watching(self.description, near):
            if logits:
                found = self.call((sources, targets), real)
            else:
                self.pass_through((sources, targets), real)
        source = self._side(self.encoder, self.source_description, far, batch, texts, 0)
        target = self._side(self.view, self.description, near, batch, texts, 1, found)
        return [Linked(one, replace(other, memory=one.points[-1])) for one, other in zip(source, target, strict=True)]

    def _side(
        self,
        view: View,
        description: Description,
        points: Tensor,
        batch: list[tuple[Tensor, Tensor]],
        texts: list[Any],
        side: int,
        logits: Tensor | None = None,
    ) -> Traces:
        """One text of every pair: the sources (0) or the targets (1)."""
        ids = [pair[side] for pair in batch]
        told = [pair[side] if isinstance(pair[side], str) else "" for pair in texts]
        return traced(view, description, points, ids, [self.words_in_text(one) for one in ids], told, logits)

    def run(self, text: Any, edit: Edits | None = None, hooks: Hooks | None = None) -> Tensor:
        """Logits (T, vocabulary) of the pair (source, target), with heads edited and points changed; undone on exit.

        `edit={(layer, head): f}` edits self attention of the decoder; `hooks` change points of the decoder, and those of
        the encoder under `source.`: `{"source.L0.resid_mid": g}`.
        """
        ids = tuple(one[None].to(self.device) for one in self.both(text))
        with self.changed(edit, hooks):
            return self.call(ids, None)[0]

    @contextmanager
    def changed(self, edit: Edits | None, hooks: Hooks | None) -> Iterator[None]:
        """Inside, heads of the decoder and points of both sides are changed; undone on exit."""
        asked = {str(step): hook for step, hook in (hooks or {}).items()}
        far = {label: hook for label, hook in asked.items() if label.startswith(SOURCE)}
        near = {label: hook for label, hook in asked.items() if label not in far}
        with changing(self.source_description, far, SOURCE), super().changed(edit, near):
            yield

    def both(self, pair: Any) -> Ids:
        """The ids of a source and of a target, from strings or as they are given."""
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise RheoscopeError(
                f"an encoder-decoder reads pairs of texts, got {type(pair).__name__}; type model.trace((source, target))"
            )
        return self.ids(pair[0], self.encode_source), self.ids(pair[1])

    def proved(self, certificate: Certificate) -> "Pairing":
        """The same model, with the certificate among the facts of both Views."""
        return replace(self, view=self.view.proved(certificate), encoder=self.encoder.proved(certificate))
